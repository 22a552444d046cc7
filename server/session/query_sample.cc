#include "server/session/query_sample.h"

#include <algorithm>

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

void QuerySample::Add(const QueryRows& rows, std::int32_t index) {
  const std::int64_t position = rows.begin + index * rows.stride;
  const std::size_t values = row_values();
  const auto* row = static_cast<const std::byte*>(rows.data) +
                    static_cast<std::size_t>(index) * values * SizeOf(rows.dtype);
  std::vector<float> floats(values);
  ToFloats(rows.dtype, row, values, floats.data());
  const float largest = LargestFinite(spec_->storage);
  for (float& x : floats) x = std::clamp(x, -largest, largest);

  const std::size_t at = IndexOf(position);
  positions_.insert(positions_.begin() + static_cast<std::ptrdiff_t>(at), position);
  const auto place = rows_.begin() + static_cast<std::ptrdiff_t>(at * values);
  const auto added = rows_.insert(place, values, std::uint16_t{0});
  std::transform(floats.begin(), floats.end(), added,
                 [&](float x) { return ToBits16(spec_->storage, x); });
}

void QuerySample::DropBefore(std::int64_t position) {
  const auto count = static_cast<std::ptrdiff_t>(IndexOf(position));
  positions_.erase(positions_.begin(), positions_.begin() + count);
  rows_.erase(rows_.begin(), rows_.begin() + count * static_cast<std::ptrdiff_t>(row_values()));
}

void QuerySample::DropFrom(std::int64_t position) {
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
