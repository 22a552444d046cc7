// How each instruction set multiplies bytes of codes with int8 and sums in fours. The loops around
// it are one text, code_dots.inc, compiled for each. For each of them here:
//
//   kRows     rows (words) of a vector of bytes: kLanes
//   kBlocks   vectors of bytes that are worked on at a time, to share entries of x between them
//   Bytes     that vector; Entries: four entries of x, in front of every row
//   Unpack    the codes of 4 shifts: b[s] holds column group s, times 1 or, where that saves a
//             shift, times 4. A word of a tile is one row, and its byte i holds, at shift 2 s,
//             column 4 s + i: entries 4 s .. 4 s + 3 of a vector face every word.
//   Sums      sums of kRows rows, from zero; Add<s> adds the products of column group s; Flush is
//             called after every kFlushTiles<bits> tiles at the latest; then Total has them.
//             (Constructors are spelled out: others are compiled for another instruction set.)
//
// Instructions for dot products (AVX-512 VNNI; NEON's) are no target of Highway's of their own:
// where there are any, a second set is compiled with them, and chosen at run time.

// Included once per instruction set.
#if defined(OSCARKV_KERNELS_CPU_CODE_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCARKV_KERNELS_CPU_CODE_BYTES_INL_H_
#undef OSCARKV_KERNELS_CPU_CODE_BYTES_INL_H_
#else
#define OSCARKV_KERNELS_CPU_CODE_BYTES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

#undef OSCARKV_DOT_ATTRIBUTES
#if HWY_ARCH_ARM_A64
#include <arm_neon.h>
#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#include <immintrin.h>
#endif
#if HWY_TARGET == HWY_AVX3
#define OSCARKV_DOT_ATTRIBUTES HWY_TARGET_STR ",avx512vnni"
#elif HWY_ARCH_ARM_A64 && HWY_COMPILER_CLANG
#define OSCARKV_DOT_ATTRIBUTES "dotprod"
#elif HWY_ARCH_ARM_A64
// GCC knows dot products from this architecture on only.
#define OSCARKV_DOT_ATTRIBUTES "arch=armv8.2-a+crypto+dotprod"
#endif

#if HWY_ARCH_ARM_A64
HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

// Of both sets. Codes are below 128, so they may count as signed.
using Bytes = int8x16_t;
using Entries = int8x16_t;

HWY_INLINE Entries Splat(const std::int8_t* x) {
  std::int32_t word;
  std::memcpy(&word, x, sizeof(word));
  return vreinterpretq_s8_s32(vdupq_n_s32(word));
}

template <int bits>
HWY_INLINE void Unpack(const std::byte* low, const std::byte* high, Bytes (&b)[4]) {
  const uint8x16_t mask = vdupq_n_u8(0x03);
  const uint8x16_t l = vld1q_u8(reinterpret_cast<const std::uint8_t*>(low));
  uint8x16_t codes[4] = {vandq_u8(l, mask), vandq_u8(vshrq_n_u8(l, 2), mask),
                         vandq_u8(vshrq_n_u8(l, 4), mask), vshrq_n_u8(l, 6)};
  if constexpr (bits == 4) {
    const uint8x16_t high_mask = vdupq_n_u8(0x0C);
    const uint8x16_t h = vld1q_u8(reinterpret_cast<const std::uint8_t*>(high));
    codes[0] = vorrq_u8(codes[0], vandq_u8(vshlq_n_u8(h, 2), high_mask));
    codes[1] = vorrq_u8(codes[1], vandq_u8(h, high_mask));
    codes[2] = vorrq_u8(codes[2], vandq_u8(vshrq_n_u8(h, 2), high_mask));
    codes[3] = vorrq_u8(codes[3], vandq_u8(vshrq_n_u8(h, 4), high_mask));
  }
  for (int s = 0; s < 4; ++s) b[s] = vreinterpretq_s8_u8(codes[s]);
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_ARCH_ARM_A64

#ifdef OSCARKV_DOT_ATTRIBUTES
HWY_PUSH_ATTRIBUTES(OSCARKV_DOT_ATTRIBUTES)
namespace oscarkv::cpu::HWY_NAMESPACE::with_dot_instructions {

#if HWY_TARGET == HWY_AVX3

inline constexpr int kRows = 16;
inline constexpr int kBlocks = 2;
template <int bits>
inline constexpr int kFlushTiles = 16;
using Bytes = __m512i;
using Entries = __m512i;

HWY_INLINE Entries Splat(const std::int8_t* x) {
  std::int32_t word;
  std::memcpy(&word, x, sizeof(word));
  return _mm512_set1_epi32(word);
}

template <int bits>
HWY_INLINE void Unpack(const std::byte* low, const std::byte* high, Bytes (&b)[4]) {
  const Bytes l = _mm512_load_si512(low);
  const Bytes l4 = _mm512_srli_epi32(l, 4);
  const Bytes even = _mm512_set1_epi32(0x03030303);
  const Bytes odd = _mm512_set1_epi32(0x0C0C0C0C);
  b[0] = _mm512_and_si512(l, even);
  b[1] = _mm512_and_si512(l, odd);
  b[2] = _mm512_and_si512(l4, even);
  b[3] = _mm512_and_si512(l4, odd);
  if constexpr (bits == 4) {
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    const Bytes from = _mm512_load_si512(high);
    const Bytes h = _mm512_slli_epi32(from, 2);
    const Bytes h4 = _mm512_srli_epi32(from, 2);
    const Bytes high_odd = _mm512_set1_epi32(0x30303030);
    b[0] = _mm512_ternarylogic_epi32(b[0], h, odd, kOrAnd);
    b[1] = _mm512_ternarylogic_epi32(b[1], h, high_odd, kOrAnd);
    b[2] = _mm512_ternarylogic_epi32(b[2], h4, odd, kOrAnd);
    b[3] = _mm512_ternarylogic_epi32(b[3], h4, high_odd, kOrAnd);
  }
}

class Sums {
 public:
  HWY_INLINE Sums() { sum_[0] = sum_[1] = _mm512_setzero_si512(); }
  template <int s>
  HWY_INLINE void Add(Bytes b, Entries x) {
    sum_[s % 2] = _mm512_dpbusd_epi32(sum_[s % 2], b, x);
  }
  HWY_INLINE void Flush() {}
  HWY_INLINE hn::Vec<I32> Total() const {
    return hn::Vec<I32>{_mm512_add_epi32(sum_[0], _mm512_srai_epi32(sum_[1], 2))};
  }

 private:
  // Of column groups 0 and 2, and of 1 and 3, times 4.
  __m512i sum_[2];
};

#elif HWY_ARCH_ARM_A64

inline constexpr int kRows = 4;
inline constexpr int kBlocks = 2;
template <int bits>
inline constexpr int kFlushTiles = 16;

class Sums {
 public:
  HWY_INLINE Sums() { sum_ = vdupq_n_s32(0); }
  template <int s>
  HWY_INLINE void Add(Bytes b, Entries x) {
    sum_ = vdotq_s32(sum_, b, x);
  }
  HWY_INLINE void Flush() {}
  HWY_INLINE hn::Vec<I32> Total() const { return hn::Vec<I32>(sum_); }

 private:
  int32x4_t sum_;
};

#endif

}  // namespace oscarkv::cpu::HWY_NAMESPACE::with_dot_instructions
HWY_POP_ATTRIBUTES
#endif  // OSCARKV_DOT_ATTRIBUTES

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {
namespace plain {

#if HWY_TARGET == HWY_AVX3
inline constexpr int kRows = 16;
inline constexpr int kBlocks = 2;
// 16-bit sums hold 4 products of at most 2 * 3 * 127, or 2 * 15 * 127, from each of so many tiles.
template <int bits>
inline constexpr int kFlushTiles = bits == 2 ? 8 : 2;
using Bytes = __m512i;
using Entries = __m512i;

HWY_INLINE Entries Splat(const std::int8_t* x) {
  std::int32_t word;
  std::memcpy(&word, x, sizeof(word));
  return _mm512_set1_epi32(word);
}

template <int bits>
HWY_INLINE void Unpack(const std::byte* low, const std::byte* high, Bytes (&b)[4]) {
  const Bytes mask = _mm512_set1_epi32(0x03030303);
  const Bytes l = _mm512_load_si512(low);
  b[0] = _mm512_and_si512(l, mask);
  b[1] = _mm512_and_si512(_mm512_srli_epi32(l, 2), mask);
  b[2] = _mm512_and_si512(_mm512_srli_epi32(l, 4), mask);
  b[3] = _mm512_and_si512(_mm512_srli_epi32(l, 6), mask);
  if constexpr (bits == 4) {
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    const Bytes high_mask = _mm512_set1_epi32(0x0C0C0C0C);
    const Bytes h = _mm512_load_si512(high);
    b[0] = _mm512_ternarylogic_epi32(b[0], _mm512_slli_epi32(h, 2), high_mask, kOrAnd);
    b[1] = _mm512_ternarylogic_epi32(b[1], h, high_mask, kOrAnd);
    b[2] = _mm512_ternarylogic_epi32(b[2], _mm512_srli_epi32(h, 2), high_mask, kOrAnd);
    b[3] = _mm512_ternarylogic_epi32(b[3], _mm512_srli_epi32(h, 4), high_mask, kOrAnd);
  }
}

class Sums {
 public:
  HWY_INLINE Sums() { sum_ = pairs_ = _mm512_setzero_si512(); }
  template <int s>
  HWY_INLINE void Add(Bytes b, Entries x) {
    pairs_ = _mm512_add_epi16(pairs_, _mm512_maddubs_epi16(b, x));
  }
  HWY_INLINE void Flush() {
    sum_ = _mm512_add_epi32(sum_, _mm512_madd_epi16(pairs_, _mm512_set1_epi16(1)));
    pairs_ = _mm512_setzero_si512();
  }
  HWY_INLINE hn::Vec<I32> Total() const { return hn::Vec<I32>{sum_}; }

 private:
  __m512i sum_;
  __m512i pairs_;
};

#elif HWY_TARGET == HWY_AVX2
inline constexpr int kRows = 8;
inline constexpr int kBlocks = 1;
// As with AVX-512.
template <int bits>
inline constexpr int kFlushTiles = bits == 2 ? 8 : 2;
using Bytes = __m256i;
using Entries = __m256i;

HWY_INLINE Entries Splat(const std::int8_t* x) {
  std::int32_t word;
  std::memcpy(&word, x, sizeof(word));
  return _mm256_set1_epi32(word);
}

template <int bits>
HWY_INLINE void Unpack(const std::byte* low, const std::byte* high, Bytes (&b)[4]) {
  const Bytes mask = _mm256_set1_epi32(0x03030303);
  const Bytes l = _mm256_load_si256(reinterpret_cast<const __m256i*>(low));
  b[0] = _mm256_and_si256(l, mask);
  b[1] = _mm256_and_si256(_mm256_srli_epi32(l, 2), mask);
  b[2] = _mm256_and_si256(_mm256_srli_epi32(l, 4), mask);
  b[3] = _mm256_and_si256(_mm256_srli_epi32(l, 6), mask);
  if constexpr (bits == 4) {
    const Bytes high_mask = _mm256_set1_epi32(0x0C0C0C0C);
    const Bytes h = _mm256_load_si256(reinterpret_cast<const __m256i*>(high));
    b[0] = _mm256_or_si256(b[0], _mm256_and_si256(_mm256_slli_epi32(h, 2), high_mask));
    b[1] = _mm256_or_si256(b[1], _mm256_and_si256(h, high_mask));
    b[2] = _mm256_or_si256(b[2], _mm256_and_si256(_mm256_srli_epi32(h, 2), high_mask));
    b[3] = _mm256_or_si256(b[3], _mm256_and_si256(_mm256_srli_epi32(h, 4), high_mask));
  }
}

class Sums {
 public:
  HWY_INLINE Sums() { sum_ = pairs_ = _mm256_setzero_si256(); }
  template <int s>
  HWY_INLINE void Add(Bytes b, Entries x) {
    pairs_ = _mm256_add_epi16(pairs_, _mm256_maddubs_epi16(b, x));
  }
  HWY_INLINE void Flush() {
    sum_ = _mm256_add_epi32(sum_, _mm256_madd_epi16(pairs_, _mm256_set1_epi16(1)));
    pairs_ = _mm256_setzero_si256();
  }
  HWY_INLINE hn::Vec<I32> Total() const { return hn::Vec<I32>{sum_}; }

 private:
  __m256i sum_;
  __m256i pairs_;
};

#elif HWY_ARCH_ARM_A64

inline constexpr int kRows = 4;
inline constexpr int kBlocks = 2;
// 16-bit sums hold 4 products of at most 3 * 127, or 15 * 127, from each of so many tiles.
template <int bits>
inline constexpr int kFlushTiles = bits == 2 ? 16 : 4;
class Sums {
 public:
  HWY_INLINE Sums() {
    sum_ = vdupq_n_s32(0);
    low_ = high_ = vdupq_n_s16(0);
  }
  template <int s>
  HWY_INLINE void Add(Bytes b, Entries x) {
    low_ = vmlal_s8(low_, vget_low_s8(b), vget_low_s8(x));
    high_ = vmlal_high_s8(high_, b, x);
  }
  HWY_INLINE void Flush() {
    sum_ = vaddq_s32(sum_, vpaddq_s32(vpaddlq_s16(low_), vpaddlq_s16(high_)));
    low_ = high_ = vdupq_n_s16(0);
  }
  HWY_INLINE hn::Vec<I32> Total() const { return hn::Vec<I32>(sum_); }

 private:
  int32x4_t sum_;
  int16x8_t low_;  // of rows 0 and 1, four lanes each
  int16x8_t high_;
};

#else

inline constexpr int kRows = 1;
inline constexpr int kBlocks = 1;
template <int bits>
inline constexpr int kFlushTiles = 16;
struct Bytes {
  std::uint8_t byte[4];
};
struct Entries {
  std::int8_t entry[4];
};

HWY_INLINE Entries Splat(const std::int8_t* x) { return {{x[0], x[1], x[2], x[3]}}; }

template <int bits>
HWY_INLINE void Unpack(const std::byte* low, const std::byte* high, Bytes (&b)[4]) {
  for (int s = 0; s < 4; ++s) {
    for (int i = 0; i < 4; ++i) {
      unsigned code = (static_cast<unsigned>(low[i]) >> (2 * s)) & 3;
      if constexpr (bits == 4) code |= ((static_cast<unsigned>(high[i]) >> (2 * s)) & 3) << 2;
      b[s].byte[i] = static_cast<std::uint8_t>(code);
    }
  }
}

class Sums {
 public:
  HWY_INLINE Sums() { sum_ = 0; }
  template <int s>
  HWY_INLINE void Add(Bytes b, Entries x) {
    for (int i = 0; i < 4; ++i) sum_ += b.byte[i] * x.entry[i];
  }
  HWY_INLINE void Flush() {}
  HWY_INLINE hn::Vec<I32> Total() const { return hn::Vec<I32>(sum_); }

 private:
  std::int32_t sum_;
};

#endif

}  // namespace plain

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
