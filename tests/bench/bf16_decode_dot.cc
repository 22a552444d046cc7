// BF16 decode by dpbf16. Built for AVX512_BF16: includes nothing that other files instantiate.
#include <immintrin.h>

#include "tests/bench/bf16_avx512.h"
#include "tests/bench/bf16_dot.h"
#include "tests/bench/bf16_kernels.h"

namespace oscarkv::bench {
namespace {

// Lanes of a vector are kHeads query heads times 32 / kHeads channels: a key's channels are loaded
// once for all the heads, and few sums across lanes remain.
template <int kGroup>
inline constexpr int kHeads = kGroup < 4 ? kGroup : 4;

template <int kCopies>
inline __m512i LoadRepeated(const std::uint16_t* p) {
  if constexpr (kCopies == 1) {
    return _mm512_load_si512(p);
  } else if constexpr (kCopies == 2) {
    return _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
  } else {
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
  }
}

// sums[h][t] for four tokens t of which a, b, c, d are the lanewise products.
template <int kCopies>
inline void StoreSums(__m512 a, __m512 b, __m512 c, __m512 d, float* sums, int stride) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512 sum = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  if constexpr (kCopies == 4) {
    _mm_store_ps(sums, _mm512_castps512_ps128(sum));
    _mm_store_ps(sums + stride, _mm512_extractf32x4_ps(sum, 1));
    _mm_store_ps(sums + 2 * stride, _mm512_extractf32x4_ps(sum, 2));
    _mm_store_ps(sums + 3 * stride, _mm512_extractf32x4_ps(sum, 3));
  } else {
    const __m256 first = _mm512_castps512_ps256(sum);
    const __m256 second = _mm512_extractf32x8_ps(sum, 1);
    if constexpr (kCopies == 2) {
      _mm_store_ps(sums,
                   _mm_add_ps(_mm256_castps256_ps128(first), _mm256_extractf128_ps(first, 1)));
      _mm_store_ps(sums + stride,
                   _mm_add_ps(_mm256_castps256_ps128(second), _mm256_extractf128_ps(second, 1)));
    } else {
      const __m256 both = _mm256_add_ps(first, second);
      _mm_store_ps(sums, _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1)));
    }
  }
}

template <int kDim, int kGroup>
class Decoder {
 public:
  explicit Decoder(const DecodeUnit& unit) : unit_(unit) {
    constexpr int kChannels = 32 / kCopies;
    for (int set = 0; set < kSets; ++set) {
      for (int step = 0; step < kSteps; ++step) {
        for (int lane = 0; lane < 32; ++lane) {
          const int head = set * kCopies + lane / kChannels;
          const int channel = step * kChannels + lane % kChannels;
          queries_[set][step][lane] = unit.queries[head * kDim + channel];
        }
      }
    }
    for (float& x : outputs_[0]) x = 0;
    for (int g = 0; g < kGroup; ++g) {
      for (float& x : outputs_[g]) x = 0;
      maxima_[g] = -__builtin_inff();
      sums_[g] = 0;
    }
  }

  void Run() {
    for (std::int64_t begin = 0; begin < unit_.tokens; begin += kDecodeBlock) {
      Logits(unit_.keys + begin * kDim);
      Softmax();
      Accumulate(unit_.values + begin * kDim);
    }
    for (int g = 0; g < kGroup; ++g) {
      unit_.maxima[g] = maxima_[g];
      unit_.sums[g] = sums_[g];
      for (int c = 0; c < kDim; c += 32)
        StoreInOrder(outputs_[g] + c, unit_.outputs + g * kDim + c);
    }
  }

 private:
  static constexpr int kCopies = kHeads<kGroup>;
  static constexpr int kSets = kGroup / kCopies;
  static constexpr int kSteps = kDim * kCopies / 32;
  static constexpr int kTile = kSets == 1 ? 8 : 4;  // tokens at a time
  static constexpr int kHeadsAtATime = kGroup < 8 ? kGroup : 8;
  static constexpr int kChannelsAtATime =
      32 * (8 / kHeadsAtATime) < kDim ? 32 * (8 / kHeadsAtATime) : kDim;

  void Logits(const std::uint16_t* keys) {
    for (int t = 0; t < kDecodeBlock; t += kTile) {
      __m512 acc[kSets][kTile];
#pragma GCC unroll 4
      for (int s = 0; s < kSets; ++s) {
#pragma GCC unroll 8
        for (int i = 0; i < kTile; ++i) acc[s][i] = _mm512_setzero_ps();
      }
      for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 8
        for (int i = 0; i < kTile; ++i) {
          const std::uint16_t* const key = keys + (t + i) * kDim + step * (32 / kCopies);
          if (step % kCopies == 0) Prefetch(key + kDecodeBlock * kDim);
          const __m512i k = LoadRepeated<kCopies>(key);
#pragma GCC unroll 4
          for (int s = 0; s < kSets; ++s) {
            acc[s][i] = Dot(acc[s][i], k, _mm512_load_si512(queries_[s][step]));
          }
        }
      }
#pragma GCC unroll 4
      for (int s = 0; s < kSets; ++s) {
#pragma GCC unroll 2
        for (int i = 0; i < kTile; i += 4) {
          StoreSums<kCopies>(acc[s][i], acc[s][i + 1], acc[s][i + 2], acc[s][i + 3],
                             &logits_[s * kCopies][t + i], kDecodeBlock);
        }
      }
    }
  }

  // logits_ -> weights_, the running maxima and sums, and outputs_ brought to the new maxima.
  void Softmax() {
    const __m512 scale = _mm512_set1_ps(unit_.scale);
    for (int g = 0; g < kGroup; ++g) {
      __m512 x[kDecodeBlock / 16];
      __m512 most = _mm512_set1_ps(maxima_[g]);
#pragma GCC unroll 4
      for (int j = 0; j < kDecodeBlock / 16; ++j) {
        x[j] = _mm512_mul_ps(_mm512_load_ps(&logits_[g][16 * j]), scale);
        most = _mm512_max_ps(most, x[j]);
      }
      const float maximum = _mm512_reduce_max_ps(most);
      if (maximum > maxima_[g]) {
        const __m512 factor = Exp2(_mm512_set1_ps(maxima_[g] - maximum));
        maxima_[g] = maximum;
        sums_[g] *= _mm512_cvtss_f32(factor);
        for (int c = 0; c < kDim; c += 16) {
          _mm512_store_ps(outputs_[g] + c, _mm512_mul_ps(factor, _mm512_load_ps(outputs_[g] + c)));
        }
      }
      const __m512 subtract = _mm512_set1_ps(maxima_[g]);
      __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 2
      for (int j = 0; j < kDecodeBlock / 16; j += 2) {
        const __m512 first = Exp2(_mm512_sub_ps(x[j], subtract));
        const __m512 second = Exp2(_mm512_sub_ps(x[j + 1], subtract));
        sum = _mm512_add_ps(sum, _mm512_add_ps(first, second));
        _mm512_store_si512(&weights_[g][16 * j], ToBF16Vector(first, second));
      }
      sums_[g] += _mm512_reduce_add_ps(sum);
    }
  }

  void Accumulate(const std::uint16_t* values) {
    for (int c = 0; c < kDim; c += kChannelsAtATime) {
      for (int g = 0; g < kGroup; g += kHeadsAtATime) {
        AccumulatePart(values + c, g, c, /*fetch=*/g == 0);
      }
    }
  }

  void AccumulatePart(const std::uint16_t* values, int head, int channel, bool fetch) {
    constexpr int kParts = kChannelsAtATime / 32;
    __m512 acc[kHeadsAtATime][kParts][2];
#pragma GCC unroll 8
    for (int g = 0; g < kHeadsAtATime; ++g) {
#pragma GCC unroll 8
      for (int p = 0; p < kParts; ++p) {
        acc[g][p][0] = _mm512_load_ps(&outputs_[head + g][channel + 32 * p]);
        acc[g][p][1] = _mm512_load_ps(&outputs_[head + g][channel + 32 * p + 16]);
      }
    }
    for (int t = 0; t < kDecodeBlock; t += 2) {
      const std::uint16_t* const row = values + t * kDim;
#pragma GCC unroll 8
      for (int p = 0; p < kParts; ++p) {
        if (fetch) {
          Prefetch(row + 32 * p + kDecodeBlock * kDim);
          Prefetch(row + 32 * p + kDim + kDecodeBlock * kDim);
        }
        const __m512i even = _mm512_load_si512(row + 32 * p);
        const __m512i odd = _mm512_load_si512(row + kDim + 32 * p);
        const __m512i low = _mm512_unpacklo_epi16(even, odd);
        const __m512i high = _mm512_unpackhi_epi16(even, odd);
#pragma GCC unroll 8
        for (int g = 0; g < kHeadsAtATime; ++g) {
          const __m512i weights = BroadcastPair(&weights_[head + g][t]);
          acc[g][p][0] = Dot(acc[g][p][0], low, weights);
          acc[g][p][1] = Dot(acc[g][p][1], high, weights);
        }
      }
    }
#pragma GCC unroll 8
    for (int g = 0; g < kHeadsAtATime; ++g) {
#pragma GCC unroll 8
      for (int p = 0; p < kParts; ++p) {
        _mm512_store_ps(&outputs_[head + g][channel + 32 * p], acc[g][p][0]);
        _mm512_store_ps(&outputs_[head + g][channel + 32 * p + 16], acc[g][p][1]);
      }
    }
  }

  const DecodeUnit& unit_;
  alignas(64) std::uint16_t queries_[kSets][kSteps][32];
  alignas(64) float logits_[kGroup][kDecodeBlock];
  alignas(64) std::uint16_t weights_[kGroup][kDecodeBlock];
  alignas(64) float outputs_[kGroup][kDim];  // each 32 channels in the order of the unpacking
  float maxima_[kGroup];
  float sums_[kGroup];
};

template <int kDim>
void DecodeDim(const DecodeUnit& unit) {
  switch (unit.group) {
    case 1:
      return Decoder<kDim, 1>(unit).Run();
    case 2:
      return Decoder<kDim, 2>(unit).Run();
    case 4:
      return Decoder<kDim, 4>(unit).Run();
    case 8:
      return Decoder<kDim, 8>(unit).Run();
    default:
      return Decoder<kDim, 16>(unit).Run();
  }
}

}  // namespace

void DecodeByDot(const DecodeUnit& unit) {
  switch (unit.head_dim) {
    case 64:
      return DecodeDim<64>(unit);
    case 128:
      return DecodeDim<128>(unit);
    default:
      return DecodeDim<256>(unit);
  }
}

}  // namespace oscarkv::bench
