// Attention of a tile of queries over sealed pages, on the codes as they lie there.
#pragma once

#include "kernels/cpu/layer_memory.h"
#include "kernels/cpu/query_tile.h"

namespace oscarkv::cpu {

// Counts pages [first, last) of `layer` in `state`, whose `out` stays in the space in which values
// were quantized: rotated if the codec rotates values.
void AttendPages(const LayerMemory& layer, int first, int last, QueryTile& queries,
                 TileState& state);

}  // namespace oscarkv::cpu
