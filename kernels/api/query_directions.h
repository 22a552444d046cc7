// Residual directions, computed on the host for every backend.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/api/layer_spec.h"

namespace oscarkv {

// For each kv head, the principal direction of its queries: the first eigenvector of their second
// moment, in double. Returns [kv_heads][key_dim] unit vectors; the largest component of each is
// positive. A head whose queries are all zero gets the zero vector.
// `queries`: [num_queries][query_heads][key_dim] in the storage dtype. REQUIRES: num_queries > 0.
std::vector<float> PrincipalDirections(const LayerSpec& spec, const std::uint16_t* queries,
                                       int num_queries);

}  // namespace oscarkv
