// BF16 prefill by dpbf16: two matrix products on blocks of tokens that are packed in pairs, with
// the softmax between them. Built for AVX512_BF16: includes nothing that other files instantiate.
//
// A block of tokens is packed once for all rows of the unit. Keys: for each pair of channels, both
// channels of each token, so that lanes are tokens. Values: for each pair of tokens, both tokens of
// each channel, so that lanes are channels. kPrefillRows rows times 64 lanes stay in registers.
#include <immintrin.h>

#include "tests/bench/bf16_avx512.h"
#include "tests/bench/bf16_dot.h"
#include "tests/bench/bf16_kernels.h"

namespace oscarkv::bench {
namespace {

constexpr int kRows = kPrefillRows;
constexpr int kBlock = kPrefillBlock;

// Sixteen rows of sixteen 32-bit elements -> columns.
inline void Transpose(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Column 4 l + i of rows 4 b to 4 b + 3 is 128-bit lane l of r[4 b + i].
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i even01 = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    const __m512i odd01 = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xDD);
    const __m512i even23 = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    const __m512i odd23 = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xDD);
    t[i] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    t[8 + i] = _mm512_shuffle_i32x4(even01, even23, 0xDD);
    t[4 + i] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(odd01, odd23, 0xDD);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

template <int kDim>
class Prefiller {
 public:
  explicit Prefiller(const PrefillUnit& unit) : unit_(unit) {
    for (int row = 0; row < unit.rows; ++row) {
      for (float& x : outputs_[row]) x = 0;
      maxima_[row] = -__builtin_inff();
      sums_[row] = 0;
    }
  }

  void Run() {
    for (std::int64_t begin = 0; begin < unit_.tokens; begin += kBlock) {
      PackKeys(unit_.keys + begin * kDim);
      PackValues(unit_.values + begin * kDim);
      for (int row = 0; row < unit_.rows; row += kRows) {
        if (!SeesFrom(row, begin)) continue;
        Logits(row);
        Softmax(row, begin);
        Accumulate(row);
      }
    }
    for (int row = 0; row < unit_.rows; ++row) {
      const __m512 sum = _mm512_set1_ps(sums_[row]);
      for (int c = 0; c < kDim; c += 32) {
        float* const out = unit_.outputs + row * kDim + c;
        StoreInOrder(outputs_[row] + c, out);
        _mm512_storeu_ps(out, _mm512_div_ps(_mm512_loadu_ps(out), sum));
        _mm512_storeu_ps(out + 16, _mm512_div_ps(_mm512_loadu_ps(out + 16), sum));
      }
    }
  }

 private:
  // Whether any of the kRows rows from `row` on sees the token at `begin`.
  bool SeesFrom(int row, std::int64_t begin) const {
    for (int r = 0; r < kRows; ++r) {
      if (unit_.positions[row + r] >= begin) return true;
    }
    return false;
  }

  void PackKeys(const std::uint16_t* keys) {
    for (int t = 0; t < kBlock; t += 16) {
      for (int c = 0; c < kDim; c += 32) {
        __m512i r[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          r[i] = _mm512_load_si512(keys + (t + i) * kDim + c);
          Prefetch(keys + (kBlock + t + i) * kDim + c);
        }
        Transpose(r);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm512_store_si512(&keys_[c / 2 + i][2 * t], r[i]);
      }
    }
  }

  void PackValues(const std::uint16_t* values) {
    for (int t = 0; t < kBlock; t += 2) {
      for (int c = 0; c < kDim; c += 32) {
        const __m512i even = _mm512_load_si512(values + t * kDim + c);
        const __m512i odd = _mm512_load_si512(values + (t + 1) * kDim + c);
        Prefetch(values + (kBlock + t) * kDim + c);
        Prefetch(values + (kBlock + t + 1) * kDim + c);
        _mm512_store_si512(&values_[t / 2][2 * c], _mm512_unpacklo_epi16(even, odd));
        _mm512_store_si512(&values_[t / 2][2 * c + 32], _mm512_unpackhi_epi16(even, odd));
      }
    }
  }

  void Logits(int row) {
    for (int t = 0; t < kBlock; t += 64) {
      __m512 acc[kRows][4];
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) acc[r][j] = _mm512_setzero_ps();
      }
      const std::uint16_t* const queries = unit_.queries + row * kDim;
      for (int c = 0; c < kDim / 2; ++c) {
        __m512i k[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) k[j] = _mm512_load_si512(&keys_[c][2 * t + 32 * j]);
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
          const __m512i q = BroadcastPair(queries + r * kDim + 2 * c);
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) acc[r][j] = Dot(acc[r][j], k[j], q);
        }
      }
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) _mm512_store_ps(&logits_[r][t + 16 * j], acc[r][j]);
      }
    }
  }

  void Softmax(int row, std::int64_t begin) {
    const __m512 scale = _mm512_set1_ps(unit_.scale);
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t visible = unit_.positions[row + r] + 1 - begin;
      if (visible < kBlock) Mask(r, visible);
      __m512 x[kBlock / 16];
      __m512 most = _mm512_set1_ps(maxima_[row + r]);
#pragma GCC unroll 8
      for (int j = 0; j < kBlock / 16; ++j) {
        x[j] = _mm512_mul_ps(_mm512_load_ps(&logits_[r][16 * j]), scale);
        most = _mm512_max_ps(most, x[j]);
      }
      const float maximum = _mm512_reduce_max_ps(most);
      if (maximum > maxima_[row + r]) Rescale(row + r, maximum);
      const __m512 subtract = _mm512_set1_ps(maxima_[row + r]);
      __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 4
      for (int j = 0; j < kBlock / 16; j += 2) {
        const __m512 first = Exp2(_mm512_sub_ps(x[j], subtract));
        const __m512 second = Exp2(_mm512_sub_ps(x[j + 1], subtract));
        sum = _mm512_add_ps(sum, _mm512_add_ps(first, second));
        _mm512_store_si512(&weights_[r][16 * j], ToBF16Vector(first, second));
      }
      sums_[row + r] += _mm512_reduce_add_ps(sum);
    }
  }

  void Mask(int r, std::int64_t visible) {
    for (std::int64_t t = visible < 0 ? 0 : visible; t < kBlock; ++t) {
      logits_[r][t] = -__builtin_inff();
    }
  }

  void Rescale(int row, float maximum) {
    const __m512 factor = Exp2(_mm512_set1_ps(maxima_[row] - maximum));
    maxima_[row] = maximum;
    sums_[row] *= _mm512_cvtss_f32(factor);
    for (int c = 0; c < kDim; c += 16) {
      _mm512_store_ps(outputs_[row] + c, _mm512_mul_ps(factor, _mm512_load_ps(outputs_[row] + c)));
    }
  }

  void Accumulate(int row) {
    for (int c = 0; c < kDim; c += 64) {
      __m512 acc[kRows][4];
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) acc[r][j] = _mm512_load_ps(&outputs_[row + r][c + 16 * j]);
      }
      for (int t = 0; t < kBlock / 2; ++t) {
        __m512i v[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) v[j] = _mm512_load_si512(&values_[t][2 * c + 32 * j]);
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
          const __m512i p = BroadcastPair(&weights_[r][2 * t]);
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) acc[r][j] = Dot(acc[r][j], v[j], p);
        }
      }
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) _mm512_store_ps(&outputs_[row + r][c + 16 * j], acc[r][j]);
      }
    }
  }

  const PrefillUnit& unit_;
  alignas(64) std::uint16_t keys_[kDim / 2][2 * kBlock];
  alignas(64) std::uint16_t values_[kBlock / 2][2 * kDim];
  alignas(64) float logits_[kRows][kBlock];
  alignas(64) std::uint16_t weights_[kRows][kBlock];
  alignas(
      64) float outputs_[kPrefillMaxRows][kDim];  // each 32 channels in the order of the unpacking
  float maxima_[kPrefillMaxRows];
  float sums_[kPrefillMaxRows];
};

}  // namespace

void PrefillByDot(const PrefillUnit& unit) {
  switch (unit.head_dim) {
    case 64:
      return Prefiller<64>(unit).Run();
    case 128:
      return Prefiller<128>(unit).Run();
    default:
      return Prefiller<256>(unit).Run();
  }
}

}  // namespace oscarkv::bench
