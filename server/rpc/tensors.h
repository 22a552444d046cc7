// Tensors of requests, seen as rows; and tensors of replies.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "oscarkv/v1/kv_cache.pb.h"
#include "server/session/session_store.h"

namespace oscarkv {

// The dtype of a field that requires one. INVALID_ARGUMENT for UNSPECIFIED and unknown values.
absl::StatusOr<DType> DecodeDType(std::string_view field, v1::DataType dtype);
v1::DataType EncodeDType(DType dtype);

// A tensor [rows, heads, dim], checked: its first axis is `rows`, heads and dim are within limits,
// and there are exactly as many bytes as the shape asks for. `tensor` may be null (the field is
// absent), if rows == 0. The result points into `tensor`.
absl::StatusOr<Rows> DecodeRows(std::string_view field, const v1::Tensor* tensor,
                                std::int64_t rows);

// The rows [begin, ...) of `rows`.
Rows RowsFrom(const Rows& rows, std::int64_t begin);
std::int64_t ElementsPerRow(const Rows& rows);

// Gives `tensor`, which is empty, a shape, a dtype and zeros.
void ShapeTensor(std::initializer_list<std::int64_t> shape, DType dtype, v1::Tensor& tensor);

// The elements of `tensor` become `values`, rounded to `dtype`; what is beyond its largest finite
// value becomes that value. REQUIRES: the tensor was shaped for so many elements of `dtype`.
void RoundFloats(std::span<const float> values, DType dtype, v1::Tensor& tensor);

}  // namespace oscarkv
