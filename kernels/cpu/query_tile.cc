#include "kernels/cpu/query_tile.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/codec/hadamard.h"

namespace oscarkv::cpu {

SeenPositions SeenFrom(const LayerView& layer, bool causal, std::int64_t position) {
  const std::int64_t sliding = layer.spec->sliding_window;
  return {
      sliding > 0 ? std::max<std::int64_t>(0, position - std::min(sliding, kMaxPosition) + 1) : 0,
      causal ? std::min(layer.length, position + 1) : layer.length};
}

QueryTile::QueryTile(const AttendItem& item, int kv_head, int first, int count)
    : kv_head_(kv_head),
      rows_(count * item.layer.spec->queries_per_kv_head()),
      key_dim_(item.layer.spec->key_dim) {
  const LayerSpec& spec = *item.layer.spec;
  const int heads = spec.queries_per_kv_head();
  const std::size_t row_bytes = SizeOf(item.dtype) * key_dim_;
  for (int token = 0; token < count; ++token) {
    const std::int64_t row =
        static_cast<std::int64_t>(first + token) * spec.query_heads + kv_head * heads;
    ToFloats(item.dtype, static_cast<const std::byte*>(item.queries) + row * row_bytes,
             static_cast<std::size_t>(heads) * key_dim_,
             plain_.data() + static_cast<std::int64_t>(token) * heads * key_dim_);
    const SeenPositions seen = SeenFrom(item.layer, item.causal, item.query_begin + first + token);
    std::fill_n(first_seen_.begin() + token * heads, heads, seen.first);
    std::fill_n(last_seen_.begin() + token * heads, heads, seen.last);
  }
  for (int i = 0; i < rows_ * key_dim_; ++i) plain_[i] *= spec.scale;
}

const float* QueryTile::rotated() {
  if (!has_rotated_) {
    std::copy_n(plain_.data(), rows_ * key_dim_, rotated_.data());
    RotateRows(rotated_.data(), rows_, key_dim_);
    has_rotated_ = true;
  }
  return rotated_.data();
}

VisibleTokens QueryTile::Visible(int row, std::int64_t begin, int tokens) const {
  const std::int64_t first = std::clamp<std::int64_t>(first_seen_[row] - begin, 0, tokens);
  const std::int64_t last = std::clamp<std::int64_t>(last_seen_[row] - begin, 0, tokens);
  return {static_cast<int>(first), static_cast<int>(last)};
}

bool QueryTile::SeesAny(std::int64_t begin, std::int64_t end) const {
  for (int row = 0; row < rows_; ++row) {
    if (std::max(first_seen_[row], begin) < std::min(last_seen_[row], end)) return true;
  }
  return false;
}

void TileState::Clear() {
  for (int row = 0; row < rows_; ++row) set_state(row, SoftmaxState{});
  std::fill_n(outs_, static_cast<std::int64_t>(rows_) * value_dim_, 0.0f);
}

void TileState::MergeFrom(TileState& other) {
  for (int row = 0; row < rows_; ++row) {
    SoftmaxState into = state(row);
    Merge(into, out(row), other.state(row), other.out(row), value_dim_);
    set_state(row, into);
  }
}

void TileState::CountLogits(int row, VisibleTokens visible, int tokens, float* logits) {
  if (visible.empty()) {
    std::fill_n(logits, tokens, 0.0f);
    return;
  }
  SoftmaxState softmax = state(row);
  const float factor =
      softmax.Raise(*std::max_element(logits + visible.first, logits + visible.last));
  if (factor != 1) {
    float* o = out(row);
    for (int c = 0; c < value_dim_; ++c) o[c] *= factor;
  }
  std::fill(logits, logits + visible.first, 0.0f);
  float sum = 0;
  for (int t = visible.first; t < visible.last; ++t) {
    logits[t] = std::exp(logits[t] - softmax.max);
    sum += logits[t];
  }
  std::fill(logits + visible.last, logits + tokens, 0.0f);
  softmax.sum += sum;
  set_state(row, softmax);
}

}  // namespace oscarkv::cpu
