#include "kernels/cpu/query_tile.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/rotate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/query_tile.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

template <DType dtype>
HWY_INLINE void ConvertType(const std::byte* from, int count, float factor, float* out) {
  const VF factors = hn::Set(F32(), factor);
  for (int i = 0; i < count; i += kLanes) {
    const VF x = LoadFloats<dtype>(from + SizeOf(dtype) * i);
    hn::Store(hn::Mul(x, factors), F32(), out + i);
  }
}

// out[count] = factor * from, elements of `dtype`. REQUIRES here and below: count is a multiple of
// kGroup, floats are aligned.
void ConvertScaled(DType dtype, const std::byte* from, int count, float factor, float* out) {
  switch (dtype) {
    case DType::kBF16:
      return ConvertType<DType::kBF16>(from, count, factor, out);
    case DType::kFP16:
      return ConvertType<DType::kFP16>(from, count, factor, out);
    case DType::kFP32:
      return ConvertType<DType::kFP32>(from, count, factor, out);
  }
}

// into[count] = factors.into * into + factors.from * from.
void AddScaled(const MergeFactors& factors, const float* from, int count, float* into) {
  const F32 d;
  const VF factor_into = hn::Set(d, factors.into);
  const VF factor_from = hn::Set(d, factors.from);
  for (int i = 0; i < count; i += kLanes) {
    const VF kept = hn::Mul(factor_into, hn::Load(d, into + i));
    hn::Store(FusedMulAdd(factor_from, hn::Load(d, from + i), kept), d, into + i);
  }
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::cpu {

HWY_EXPORT(ConvertScaled);
HWY_EXPORT(AddScaled);

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
    HWY_DYNAMIC_DISPATCH(ConvertScaled)
    (item.dtype, static_cast<const std::byte*>(item.queries) + row * row_bytes, heads * key_dim_,
     spec.scale, plain_.data() + static_cast<std::int64_t>(token) * heads * key_dim_);
    const SeenPositions seen = SeenFrom(item.layer, item.causal, item.query_begin + first + token);
    std::fill_n(first_seen_.begin() + token * heads, heads, seen.first);
    std::fill_n(last_seen_.begin() + token * heads, heads, seen.last);
  }
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
    const SoftmaxState from = other.state(row);
    if (from.empty()) continue;
    SoftmaxState into = state(row);
    const MergeFactors factors = Merge(into, from);
    set_state(row, into);
    HWY_DYNAMIC_DISPATCH(AddScaled)(factors, other.out(row), value_dim_, out(row));
  }
}

}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
