// The queries of one layer by which key plans and residual directions are chosen: those of every
// spec.query_sample_stride()-th position, in the storage dtype, chosen by position and never by
// arrival, so that it makes no difference how tokens were cut into requests.
//
// Thread-safety: none; guarded by its layer's lock.
//
// Invariants: positions ascend; each (position + position_base) is a multiple of the stride; rows
// are finite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/api/dtype.h"
#include "kernels/api/layer_spec.h"

namespace oscarkv {

// Query rows as they come with a request: row i sits at position begin + i * stride, counted from
// the session's first token.
struct QueryRows {
  DType dtype = DType::kBF16;
  const void* data = nullptr;  // [count][query_heads][key_dim], packed, any alignment, finite
  std::int32_t count = 0;
  std::int64_t begin = 0;
  std::int64_t stride = 1;
};

class QuerySample {
 public:
  // REQUIRES: spec outlives the sample.
  QuerySample(const LayerSpec* spec, std::int64_t position_base)
      : spec_(spec), position_base_(position_base) {}
  QuerySample(const QuerySample&) = delete;
  QuerySample& operator=(const QuerySample&) = delete;

  // The rows of a request, by index, that would be added: at positions in [from, to) that are
  // sampled. A position that has a row keeps it.
  std::vector<std::int32_t> Missing(const QueryRows& rows, std::int64_t from,
                                    std::int64_t to) const;

  // Rows as the sample keeps them.
  struct Addition {
    std::vector<std::int64_t> positions;
    std::vector<std::uint16_t> rows;  // [positions.size()][query_heads][key_dim]
  };
  // Those rows of a request, by index, in the storage dtype, what is beyond its range clamped to
  // it; with room made for them. REQUIRES: Missing named them.
  Addition Prepare(const QueryRows& rows, std::span<const std::int32_t> indices);
  // REQUIRES: prepared; since then rows were dropped at most.
  void Add(const Addition& addition) noexcept;

  // Takes rows in the place of its own. REQUIRES: positions ascend and are sampled.
  void Assign(Addition all) {
    positions_ = std::move(all.positions);
    rows_ = std::move(all.rows);
  }
  std::span<const std::int64_t> positions() const { return positions_; }

  // Takes the rows of another sample in the place of its own. REQUIRES: equal specs and bases.
  void CopyRows(const QuerySample& other) {
    positions_ = other.positions_;
    rows_ = other.rows_;
  }

  void DropBefore(std::int64_t position) noexcept;
  void DropFrom(std::int64_t position) noexcept;

  struct Slice {
    const std::uint16_t* rows = nullptr;  // [count][query_heads][key_dim]
    std::int32_t count = 0;
  };
  // The rows at positions in [from, to); valid until the next change.
  Slice Range(std::int64_t from, std::int64_t to) const;

  std::int64_t row_bytes() const { return static_cast<std::int64_t>(2 * row_values()); }
  std::int64_t bytes() const { return row_bytes() * static_cast<std::int64_t>(positions_.size()); }

 private:
  std::size_t row_values() const {
    return static_cast<std::size_t>(spec_->query_heads) * static_cast<std::size_t>(spec_->key_dim);
  }
  std::size_t IndexOf(std::int64_t position) const;  // of the first row at or after it
  bool IsSampled(std::int64_t position) const;

  const LayerSpec* spec_;
  std::int64_t position_base_;
  std::vector<std::int64_t> positions_;
  std::vector<std::uint16_t> rows_;  // [positions_.size()][query_heads][key_dim]
};

}  // namespace oscarkv
