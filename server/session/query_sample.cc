#include "server/session/query_sample.h"

#include <algorithm>

#include "server/base/reserve.h"

namespace oscarkv {

std::size_t QuerySample::IndexOf(std::int64_t position) const {
  const auto it = std::lower_bound(positions_.begin(), positions_.end(), position);
  return static_cast<std::size_t>(it - positions_.begin());
}

bool QuerySample::IsSampled(std::int64_t position) const {
  return (position + position_base_) % spec_->query_sample_stride() == 0;
}

std::vector<std::int32_t> QuerySample::Missing(const QueryRows& rows, std::int64_t from,
                                               std::int64_t to) const {
  std::vector<std::int32_t> missing;
  for (std::int32_t i = 0; i < rows.count; ++i) {
    const std::int64_t position = rows.begin + i * rows.stride;
    if (position < from || position >= to || !IsSampled(position)) continue;
    const std::size_t at = IndexOf(position);
    if (at == positions_.size() || positions_[at] != position) missing.push_back(i);
  }
  return missing;
}

QuerySample::Addition QuerySample::Prepare(const QueryRows& rows,
                                           std::span<const std::int32_t> indices) {
  const std::size_t values = row_values();
  const float largest = LargestFinite(spec_->storage);
  Addition addition;
  addition.positions.reserve(indices.size());
  addition.rows.reserve(indices.size() * values);
  std::vector<float> floats(values);
  for (const std::int32_t index : indices) {
    addition.positions.push_back(rows.begin + index * rows.stride);
    const auto* row = static_cast<const std::byte*>(rows.data) +
                      static_cast<std::size_t>(index) * values * SizeOf(rows.dtype);
    ToFloats(rows.dtype, row, values, floats.data());
    for (const float x : floats) {
      addition.rows.push_back(ToBits16(spec_->storage, std::clamp(x, -largest, largest)));
    }
  }
  ReserveMore(addition.positions.size(), &positions_);
  ReserveMore(addition.rows.size(), &rows_);
  return addition;
}

void QuerySample::Add(const Addition& addition) noexcept {
  const auto values = static_cast<std::ptrdiff_t>(row_values());
  auto row = addition.rows.begin();
  for (const std::int64_t position : addition.positions) {
    const auto at = static_cast<std::ptrdiff_t>(IndexOf(position));
    positions_.insert(positions_.begin() + at, position);
    rows_.insert(rows_.begin() + at * values, row, row + values);
    row += values;
  }
}

void QuerySample::DropBefore(std::int64_t position) noexcept {
  const auto count = static_cast<std::ptrdiff_t>(IndexOf(position));
  positions_.erase(positions_.begin(), positions_.begin() + count);
  rows_.erase(rows_.begin(), rows_.begin() + count * static_cast<std::ptrdiff_t>(row_values()));
}

void QuerySample::DropFrom(std::int64_t position) noexcept {
  const std::size_t count = IndexOf(position);
  positions_.resize(count);
  rows_.resize(count * row_values());
}

QuerySample::Slice QuerySample::Range(std::int64_t from, std::int64_t to) const {
  const std::size_t first = IndexOf(from);
  const std::size_t last = IndexOf(to);
  return {.rows = rows_.data() + first * row_values(),
          .count = static_cast<std::int32_t>(last - first)};
}

}  // namespace oscarkv
