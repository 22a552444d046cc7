#include "kernels/cpu/page_attend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/codec/page_decoder.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/page_attend.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/code_dots-inl.h"
#include "kernels/cpu/dense_tokens-inl.h"
#include "kernels/cpu/int8_step-inl.h"
#include "kernels/cpu/softmax_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// Numbers of the pages, brought to fp32.

// fp16 in the low halves of lanes whose high halves are zero.
HWY_INLINE VF FromFP16(hn::Vec<U32> bits) {
  const U32 u;
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(u, 0x8000)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(u, 0x7FFF)));
  // Brings the exponent's bias from fp32's to fp16's, and makes normal numbers of denormal ones.
  const VF value = hn::Mul(hn::BitCast(F32(), magnitude), hn::Set(F32(), 0x1p112F));
  return hn::Or(value, hn::BitCast(F32(), sign));
}

// Splits params[count] into scales and zeros, times `factor`.
HWY_INLINE void ReadParams(const AffineFP16* params, int count, float factor, float* scales,
                           float* zeros) {
  const U32 u;
  const VF factors = hn::Set(F32(), factor);
  for (int i = 0; i < count; i += kLanes) {
    const auto both = hn::LoadU(u, reinterpret_cast<const std::uint32_t*>(params + i));
    hn::Store(hn::Mul(FromFP16(hn::And(both, hn::Set(u, 0xFFFF))), factors), F32(), scales + i);
    hn::Store(hn::Mul(FromFP16(hn::ShiftRight<16>(both)), factors), F32(), zeros + i);
  }
}

// One kv head and tile of queries, page by page. Everything is sized for the widest head.
class PageAttend {
 public:
  PageAttend(const LayerMemory& layer, QueryTile& queries) : spec_(*layer.spec), queries_(queries) {
    std::fill_n(norms_, kPageTokens, 1.0F);
    std::fill_n(residuals_, kPageTokens, 0.0F);
    std::fill_n(query_residual_, kTileRows, 0.0F);
    if (!spec_.has_residual() || layer.directions == nullptr) return;
    const float* direction =
        layer.directions + static_cast<std::int64_t>(queries.kv_head()) * spec_.key_dim;
    for (int row = 0; row < queries.rows(); ++row) {
      GroupSum sum;
      const float* q = queries.plain() + row * spec_.key_dim;
      for (int c = 0; c < spec_.key_dim; c += kGroup) {
        for (int part = 0; part < kParts; ++part) {
          const int at = c + part * kLanes;
          sum.Add(part, hn::Mul(hn::Load(F32(), q + at), hn::LoadU(F32(), direction + at)));
        }
      }
      query_residual_[row] = sum.Fold();
    }
  }

  // `next`: the page that comes after this one, fetched into the cache meanwhile; or null.
  void Attend(const PageMemory& page, const std::byte* next, TileState& state) {
    const PageView view(spec_, page.bytes);
    const HeadView head = view.Head(queries_.kv_head());
    next_ = next == nullptr ? 0 : next - page.bytes;
    if (next != nullptr) FetchSmallParts(view.layout(), next);
    if (spec_.keys_are_coded()) {
      LogitsOfCodes(head);
    } else {
      DenseLogits(spec_.storage, queries_.plain(), queries_.rows(),
                  {head.key_codes, kPageTokens, spec_.key_dim, next_},
                  {&logits_[0][0], kPageTokens});
    }
    for (int row = 0; row < queries_.rows(); ++row) {
      ApplySoftcap(spec_.softcap, kPageTokens, logits_[row]);
      CountLogits(state, row, queries_.Visible(row, page.begin, page.tokens), kPageTokens,
                  logits_[row]);
    }
    if (spec_.values_are_coded()) {
      AddCodedValues(head, state);
    } else {
      AddDenseValues(spec_.storage, {&logits_[0][0], kPageTokens}, queries_.rows(),
                     {head.value_codes, kPageTokens, spec_.value_dim, next_},
                     {state.out(0), spec_.value_dim});
    }
  }

 private:
  // What is not fetched along with the codes of the page before.
  void FetchSmallParts(const PageLayout& layout, const std::byte* page) const {
    const std::byte* head = page + layout.heads + layout.head_bytes * queries_.kv_head();
    Fetch(page, layout.heads);
    Fetch(head + layout.key_params, layout.value_codes - layout.key_params);
    Fetch(head + layout.value_params, layout.head_bytes - layout.value_params);
  }
  static void Fetch(const std::byte* from, std::int64_t bytes) {
    for (std::int64_t i = 0; i < bytes; i += 64) hwy::Prefetch(from + i);
  }

  void LogitsOfCodes(const HeadView& head);
  void FinishLogits(const HeadView& head, int first, int last);
  void AddCodedValues(const HeadView& head, TileState& state);
  void Weigh(int row, const float* x, int count, int bits);
  ColumnTiles TilesWithWeight() const;
  const std::byte* Next(const std::byte* codes) const {
    return next_ == 0 ? nullptr : codes + next_;
  }

  const LayerSpec& spec_;
  QueryTile& queries_;
  std::ptrdiff_t next_ = 0;  // bytes from a part of this page to that of the next
  HWY_ALIGN float query_residual_[kTileRows];

  HWY_ALIGN float norms_[kPageTokens];
  HWY_ALIGN float residuals_[kPageTokens];
  HWY_ALIGN float logits_[kTileRows][kPageTokens];  // then the softmax weights
  HWY_ALIGN std::int8_t weights_q_[kTileRows][kMaxHeadDim];
  HWY_ALIGN std::int32_t dots_[kTileRows][kMaxHeadDim];
  HWY_ALIGN float scales_[kMaxHeadDim];
  HWY_ALIGN float zeros_[kMaxHeadDim];
  HWY_ALIGN float weights_[kMaxHeadDim];
  // Code sums times the step, plus the bias, are what sums of decoded numbers would be.
  float steps_[kTileRows];
  float biases_[kTileRows];
};

// Quantizes x * scales_ to weights_q_[row]. The codes are meant about their middle, which halves
// what rounding adds.
void PageAttend::Weigh(int row, const float* x, int count, int bits) {
  const F32 d;
  VF largest = hn::Zero(d);
  GroupSum zeros;
  for (int i = 0; i < count; i += kGroup) {
    for (int part = 0; part < kParts; ++part) {
      const int at = i + part * kLanes;
      const VF v = hn::Load(d, x + at);
      const VF weight = hn::Mul(v, hn::Load(d, scales_ + at));
      largest = hn::Max(largest, hn::Abs(weight));
      zeros.Add(part, hn::Mul(v, hn::Load(d, zeros_ + at)));
      hn::Store(weight, d, weights_ + at);
    }
  }
  GroupSum rest;
  steps_[row] = QuantizeToInt8(weights_, count, LargestLane(largest), weights_q_[row], rest);
  const VF middle = hn::Set(d, static_cast<float>((1 << bits) - 1) / 2);
  for (int part = 0; part < kParts; ++part) zeros.Add(part, hn::Mul(middle, rest.part[part]));
  biases_[row] = zeros.Fold();
}

void PageAttend::LogitsOfCodes(const HeadView& head) {
  const int dim = spec_.key_dim;
  const int bits = spec_.codec.key_bits;
  const float* queries = head.keys_rotated ? queries_.rotated() : queries_.plain();
  const CodeMatrix codes{head.key_codes, bits, kPageTokens / kTileSide, dim / kTileSide,
                         Next(head.key_codes)};
  const ColumnTiles columns = ColumnTiles::All(codes.column_tiles);
  if (head.norms != nullptr) {
    for (int t = 0; t < kPageTokens; t += kLanes) {
      hn::Store(LoadBF16(head.norms + t), F32(), norms_ + t);
    }
  }
  if (head.residuals != nullptr) {
    for (int t = 0; t < kPageTokens; t += kLanes) {
      const auto c = hn::PromoteTo(I32(), hn::LoadU(I8(), head.residuals + t));
      hn::Store(hn::ConvertTo(F32(), c), F32(), residuals_ + t);
    }
  }
  const int group_tiles = spec_.codec.key_group / kTileSide;
  for (int first = 0; first < codes.row_tiles; first += group_tiles) {
    ReadParams(head.key_params + first / group_tiles * dim, dim, head.key_factor, scales_, zeros_);
    for (int row = 0; row < queries_.rows(); ++row) Weigh(row, queries + row * dim, dim, bits);
    CodeDots(codes, first, group_tiles, columns, &weights_q_[0][0], kMaxHeadDim, queries_.rows(),
             &dots_[0][0], kMaxHeadDim);
    FinishLogits(head, first * kTileSide, (first + group_tiles) * kTileSide);
  }
}

// logits_ of tokens [first, last) from dots_.
void PageAttend::FinishLogits(const HeadView& head, int first, int last) {
  const F32 d;
  for (int row = 0; row < queries_.rows(); ++row) {
    const VF step = hn::Set(d, steps_[row]);
    const VF bias = hn::Set(d, biases_[row]);
    const VF residual =
        hn::Set(d, head.has_residual ? query_residual_[row] * head.residual_step : 0);
    for (int t = first; t < last; t += kLanes) {
      const VF dot = hn::ConvertTo(d, hn::Load(I32(), dots_[row] + t));
      const VF scaled = hn::Mul(hn::Load(d, norms_ + t), hn::Add(hn::Mul(dot, step), bias));
      const VF logit = hn::Add(scaled, hn::Mul(residual, hn::Load(d, residuals_ + t)));
      hn::Store(logit, d, logits_[row] + t);
    }
  }
}

// Those in which any row's weight is not zero: where attention is sharp, there are few.
ColumnTiles PageAttend::TilesWithWeight() const {
  ColumnTiles tiles{kPageTokens / kTileSide, 0, {}};
  for (int tile = 0; tile < tiles.of; ++tile) {
    std::uint64_t any = 0;
    for (int row = 0; row < queries_.rows(); ++row) {
      std::uint64_t words[2];
      static_assert(sizeof(words) == kTileSide);
      std::memcpy(words, weights_q_[row] + tile * kTileSide, sizeof(words));
      any |= words[0] | words[1];
    }
    if (any != 0) tiles.Add(tile);
  }
  return tiles;
}

void PageAttend::AddCodedValues(const HeadView& head, TileState& state) {
  const F32 d;
  const int dim = spec_.value_dim;
  const int bits = spec_.codec.value_bits;
  const CodeMatrix codes{head.value_codes, bits, dim / kTileSide, kPageTokens / kTileSide,
                         Next(head.value_codes)};
  const int group_tiles = spec_.value_group_channels() / kTileSide;
  for (int first = 0, group = 0; first < codes.row_tiles; first += group_tiles, ++group) {
    const int tiles = std::min(group_tiles, codes.row_tiles - first);
    ReadParams(head.value_params + group * kPageTokens, kPageTokens, head.value_factor, scales_,
               zeros_);
    for (int row = 0; row < queries_.rows(); ++row) Weigh(row, logits_[row], kPageTokens, bits);
    CodeDots(codes, first, tiles, TilesWithWeight(), &weights_q_[0][0], kMaxHeadDim,
             queries_.rows(), &dots_[0][0], kMaxHeadDim);
    for (int row = 0; row < queries_.rows(); ++row) {
      float* out = state.out(row);
      const VF step = hn::Set(d, steps_[row]);
      const VF bias = hn::Set(d, biases_[row]);
      for (int c = first * kTileSide; c < (first + tiles) * kTileSide; c += kLanes) {
        const VF dot = hn::ConvertTo(d, hn::Load(I32(), dots_[row] + c));
        const VF sum = hn::Add(hn::Mul(dot, step), bias);
        hn::Store(hn::Add(hn::Load(d, out + c), sum), d, out + c);
      }
    }
  }
}

void AttendRunOfPages(const LayerMemory& layer, int first, int last, QueryTile& queries,
                      TileState& state) {
  PageAttend attend(layer, queries);
  for (int i = first; i < last; ++i) {
    const PageMemory& page = layer.pages[i];
    if (!queries.SeesAny(page.begin, page.begin + page.tokens)) continue;
    attend.Attend(page, i + 1 < last ? layer.pages[i + 1].bytes : nullptr, state);
  }
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::cpu {

HWY_EXPORT(AttendRunOfPages);

void AttendPages(const LayerMemory& layer, int first, int last, QueryTile& queries,
                 TileState& state) {
  HWY_DYNAMIC_DISPATCH(AttendRunOfPages)(layer, first, last, queries, state);
}

}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
