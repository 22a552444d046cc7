#include "kernels/cpu/code_logits.h"

#include <cstddef>
#include <cstring>

#include "kernels/codec/hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/code_logits.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// Tokens at once. A lane of 32 bits has two channels of a token, of a query likewise.
inline constexpr int kTokens = 32;
inline constexpr int kMaxPairs = kMaxHeadDim / 2;
using VI = hn::Vec<I32>;

// sum + the products of the halves of a and b, which are int16.
HWY_INLINE VI AddPairs(VI sum, VI a, VI b) {
#if HWY_TARGET == HWY_AVX3
  return VI{_mm512_add_epi32(sum.raw, _mm512_madd_epi16(a.raw, b.raw))};
#elif HWY_TARGET == HWY_AVX2
  return VI{_mm256_add_epi32(sum.raw, _mm256_madd_epi16(a.raw, b.raw))};
#else
  const auto low = [](VI x) HWY_ATTR { return hn::ShiftRight<16>(hn::ShiftLeft<16>(x)); };
  const auto high = [](VI x) HWY_ATTR { return hn::ShiftRight<16>(x); };
  return hn::Add(sum, hn::Add(hn::Mul(low(a), low(b)), hn::Mul(high(a), high(b))));
#endif
}

// out[dim / 2][kTokens] = pairs of codes[kTokens][dim], transposed.
HWY_INLINE void TransposePairs(const std::uint8_t* codes, int dim, float* out) {
  const U32 u;
  const U16 two_bytes;
  HWY_ALIGN float rows[kTokens * kMaxPairs];
  const int pairs = dim / 2;
  for (int t = 0; t < kTokens; ++t, codes += dim) {
    for (int first = 0; first < pairs; first += kLanes) {
      const int p = first + kLanes <= pairs ? first : pairs - kLanes;  // the last may do some again
      std::uint16_t bytes[kLanes];
      std::memcpy(bytes, codes + 2 * p, sizeof(bytes));
      const auto both = hn::PromoteTo(u, hn::LoadU(two_bytes, bytes));
      const auto high = hn::ShiftLeft<8>(hn::And(both, hn::Set(u, 0xFF00)));
      const auto split = hn::Or(hn::And(both, hn::Set(u, 0x00FF)), high);
      hn::StoreU(hn::BitCast(F32(), split), F32(), rows + t * pairs + p);
    }
  }
  Transpose({rows, pairs}, kTokens, pairs, {out, kTokens});
}

// One query, times the scales of a group of tokens.
struct Query {
  HWY_ALIGN std::int16_t whole[kMaxHeadDim];
  float step;  // what one of `whole` stands for
  float bias;  // the dot product with the zeros
};

// `scaled`: scratch [dim].
HWY_INLINE void Quantize(const float* query, const AffineFP16* params, int dim, float* scaled,
                         Query* out) {
  const F32 d;
  VF largest = hn::Zero(d);
  GroupSum bias;
  for (int c = 0; c < dim; c += kGroup) {
    for (int part = 0; part < kParts; ++part) {
      const int at = c + part * kLanes;
      VF scale;
      VF zero;
      LoadFP16Pairs(params + at, scale, zero);
      const VF q = hn::LoadU(d, query + at);
      const VF x = hn::Mul(q, scale);
      hn::Store(x, d, scaled + at);
      largest = hn::Max(largest, hn::Abs(x));
      bias.AddProduct(part, q, zero);
    }
  }
  out->bias = bias.Fold();
  const float most = LargestLane(largest);
  const bool vanishes = !(most > 0x1p-110F);  // the reciprocal would overflow
  out->step = vanishes ? 0.0F : most / 32767;
  const VF reciprocal = hn::Set(d, vanishes ? 0.0F : 32767 / most);
  for (int c = 0; c < dim; c += kLanes) {
    const VF shifted = FusedMulAdd(hn::Load(d, scaled + c), reciprocal, hn::Set(d, kToWhole));
    const auto last = hn::TruncateTo(U16(), hn::BitCast(U32(), shifted));
    std::uint16_t words[kLanes];
    hn::StoreU(last, U16(), words);
    std::memcpy(out->whole + c, words, sizeof(words));
  }
}

// Of `count` queries and kTokens tokens; rows of logits are kPageTokens apart.
template <int count>
HWY_INLINE void Dots(const Query* queries, const float* pairs, int dim, float* logits) {
  const F32 d;
  for (int t = 0; t < kTokens; t += 2 * kLanes) {
    VI first[count];
    VI second[count];
    for (int i = 0; i < count; ++i) first[i] = second[i] = hn::Zero(I32());
    for (int p = 0; p < dim / 2; ++p) {
      const VI a = hn::BitCast(I32(), hn::LoadU(d, pairs + p * kTokens + t));
      const VI b = hn::BitCast(I32(), hn::LoadU(d, pairs + p * kTokens + t + kLanes));
      for (int i = 0; i < count; ++i) {
        std::int32_t pair;
        std::memcpy(&pair, queries[i].whole + 2 * p, sizeof(pair));
        const VI query = hn::Set(I32(), pair);
        first[i] = AddPairs(first[i], query, a);
        second[i] = AddPairs(second[i], query, b);
      }
    }
    for (int i = 0; i < count; ++i) {
      const VF step = hn::Set(d, queries[i].step);
      const VF bias = hn::Set(d, queries[i].bias);
      float* const out = logits + i * kPageTokens + t;
      hn::StoreU(FusedMulAdd(hn::ConvertTo(d, first[i]), step, bias), d, out);
      hn::StoreU(FusedMulAdd(hn::ConvertTo(d, second[i]), step, bias), d, out + kLanes);
    }
  }
}

void CodeLogitsOfTarget(const float* queries, int num_queries, const KeyCodes& keys,
                        float* logits) {
  constexpr int kQueries = 4;  // at once
  HWY_ALIGN float pairs[kPageTokens * kMaxPairs];
  HWY_ALIGN float scaled[kMaxHeadDim];
  Query at_once[kQueries];
  const int block = kTokens * keys.dim / 2;
  for (int t = 0; t < kPageTokens; t += kTokens) {
    TransposePairs(keys.codes + static_cast<std::ptrdiff_t>(t) * keys.dim, keys.dim,
                   pairs + t / kTokens * block);
  }
  for (int first = 0; first < num_queries; first += kQueries) {
    const int count = num_queries - first < kQueries ? num_queries - first : kQueries;
    for (int t = 0; t < kPageTokens; t += kTokens) {
      if (t % keys.group == 0) {
        const AffineFP16* const params =
            keys.params + static_cast<std::ptrdiff_t>(t / keys.group) * keys.dim;
        for (int i = 0; i < count; ++i) {
          Quantize(queries + static_cast<std::ptrdiff_t>(first + i) * keys.dim, params, keys.dim,
                   scaled, &at_once[i]);
        }
      }
      float* const out = logits + static_cast<std::ptrdiff_t>(first) * kPageTokens + t;
      const float* const of_block = pairs + t / kTokens * block;
      if (count == kQueries) {
        Dots<kQueries>(at_once, of_block, keys.dim, out);
      } else {
        for (int i = 0; i < count; ++i) {
          Dots<1>(&at_once[i], of_block, keys.dim, out + i * kPageTokens);
        }
      }
    }
  }
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::cpu {

HWY_EXPORT(CodeLogitsOfTarget);

void CodeLogits(const float* queries, int num_queries, const KeyCodes& keys, float* logits) {
  HWY_DYNAMIC_DISPATCH(CodeLogitsOfTarget)(queries, num_queries, keys, logits);
}

}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
