// The unit of queries: a few query tokens times the query heads of one kv head, prepared once for
// all the pages and tokens that a unit of work looks at.
//
// Thread-safety: none; each unit of work makes its own.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/codec/softmax_state.h"
#include "kernels/cpu/layer_memory.h"

namespace oscarkv::cpu {

inline constexpr int kTileRows = 16;
static_assert(kTileRows >= kMaxQueryHeadsPerKvHead);

// Tokens of a run (a page, a block) that a row sees: [first, last), counted from the run's start.
struct VisibleTokens {
  int first;
  int last;
  bool empty() const { return first >= last; }
};

class QueryTile {
 public:
  // Query tokens [first, first + count) of `item` for `kv_head`. Row r is query token
  // first + r / queries_per_kv_head, query head r % queries_per_kv_head of the kv head.
  // REQUIRES: 1 <= count <= QueriesPerTile(spec).
  QueryTile(const AttendItem& item, int kv_head, int first, int count);

  static int QueriesPerTile(const LayerSpec& spec) {
    return kTileRows / spec.queries_per_kv_head();
  }

  int rows() const { return rows_; }
  int kv_head() const { return kv_head_; }

  // [rows][key_dim]: queries times the layer's scale; the second rotated too, on first use.
  const float* plain() const { return plain_.data(); }
  const float* rotated();

  // What row r sees of `tokens` tokens from position `begin` on.
  VisibleTokens Visible(int row, std::int64_t begin, int tokens) const;
  // Whether any row sees any of them.
  bool SeesAny(std::int64_t begin, std::int64_t end) const;

 private:
  const int kv_head_;
  const int rows_;
  const int key_dim_;
  bool has_rotated_ = false;
  // Positions [first, last) that each row sees.
  std::array<std::int64_t, kTileRows> first_seen_;
  std::array<std::int64_t, kTileRows> last_seen_;
  alignas(64) std::array<float, kTileRows * kMaxHeadDim> plain_;
  alignas(64) std::array<float, kTileRows * kMaxHeadDim> rotated_;
};

// Positions [first, last) that a query at `position` sees.
struct SeenPositions {
  std::int64_t first;
  std::int64_t last;
};
SeenPositions SeenFrom(const LayerView& layer, bool causal, std::int64_t position);

// Softmax states of a tile's rows over the tokens seen so far, in memory of the caller:
// FloatsFor(rows, value_dim) floats, 64-byte aligned, as each row of `out` then is.
class TileState {
 public:
  static constexpr std::int64_t FloatsFor(int rows, int value_dim) {
    return kStateFloats + static_cast<std::int64_t>(rows) * value_dim;
  }
  TileState(float* memory, int rows, int value_dim)
      : states_(memory), outs_(memory + kStateFloats), rows_(rows), value_dim_(value_dim) {}

  void Clear();
  int rows() const { return rows_; }
  int value_dim() const { return value_dim_; }
  float* out(int row) { return outs_ + static_cast<std::int64_t>(row) * value_dim_; }
  SoftmaxState state(int row) const { return {states_[2 * row], states_[2 * row + 1]}; }
  void set_state(int row, SoftmaxState state) {
    states_[2 * row] = state.max;
    states_[2 * row + 1] = state.sum;
  }

  void MergeFrom(TileState& other);

 private:
  static constexpr int kStateFloats = 2 * kTileRows;

  float* states_;
  float* outs_;
  int rows_;
  int value_dim_;
};

}  // namespace oscarkv::cpu
