#include "kernels/codec/affine_fit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "kernels/api/dtype.h"

// Groups are fitted many at a time, one per vector lane: every loop over lanes is independent work,
// which the compiler turns into vector code.

namespace oscarkv {
namespace {

constexpr int kLanes = 64;  // at once; their sums stay in the first-level cache
constexpr float kLargestFP16 = 65504.0F;

using Lanes = float[kLanes];

// `lanes` groups of `count` values, rows `stride` apart.
struct Block {
  const float* x;
  int lanes;  // at most kLanes
  int count;
  std::ptrdiff_t stride;
};

struct Moments {
  Lanes low;
  Lanes high;
  Lanes mean;
  Lanes variance;  // times count
};

// Sums over the codes that a scale and a zero give.
struct CodeSums {
  Lanes code;
  Lanes squared;
  Lanes covariance;  // of codes and values, times count
};

// Rounds to nearest even what lies in [0, 2^22]. (rint needs SSE4 to be more than a call.)
float RoundNearestEven(float x) {
  constexpr float kUnit = 12582912.0F;  // 1.5 * 2^23: its last place is 1
  return (x + kUnit) - kUnit;
}

Moments MomentsOf(const Block& block) {
  Moments m;
  Lanes sum = {};
  for (int l = 0; l < block.lanes; ++l) m.low[l] = m.high[l] = block.x[l];
  for (int i = 0; i < block.count; ++i) {
    const float* x = block.x + i * block.stride;
    for (int l = 0; l < block.lanes; ++l) {
      m.low[l] = std::min(m.low[l], x[l]);
      m.high[l] = std::max(m.high[l], x[l]);
      sum[l] += x[l];
    }
  }
  // Second pass: about the mean, and what rounding left of it.
  const auto n = static_cast<float>(block.count);
  Lanes rest = {};
  Lanes squared = {};
  for (int l = 0; l < block.lanes; ++l) m.mean[l] = sum[l] / n;
  for (int i = 0; i < block.count; ++i) {
    const float* x = block.x + i * block.stride;
    for (int l = 0; l < block.lanes; ++l) {
      const float d = x[l] - m.mean[l];
      rest[l] += d;
      squared[l] += d * d;
    }
  }
  for (int l = 0; l < block.lanes; ++l) {
    m.variance[l] = std::max(0.0F, squared[l] - rest[l] * rest[l] / n);
    m.mean[l] = std::min(std::max(m.mean[l] + rest[l] / n, m.low[l]), m.high[l]);
  }
  return m;
}

// clamp(round((x - zero) / scale), 0, top), and 0 where scale is 0. `divisor` is scale, or 1 there;
// `last` is top, or 0 there.
void AssignRow(const float* x, int lanes, const Lanes& divisor, const Lanes& zero,
               const Lanes& last, Lanes& code) {
  for (int l = 0; l < lanes; ++l) {
    const float exact = (x[l] - zero[l]) / divisor[l];
    code[l] = RoundNearestEven(std::min(std::max(exact, 0.0F), last[l]));
  }
}

// Assigns codes; `codes` (rows `stride` apart) may be null.
CodeSums AssignCodes(const Block& block, const Lanes& scale, const Lanes& zero, const Lanes& mean,
                     float top, std::uint8_t* codes) {
  CodeSums sums = {};
  Lanes divisor;
  Lanes last;
  for (int l = 0; l < block.lanes; ++l) {
    divisor[l] = scale[l] > 0 ? scale[l] : 1.0F;
    last[l] = scale[l] > 0 ? top : 0.0F;
  }
  for (int i = 0; i < block.count; ++i) {
    const float* x = block.x + i * block.stride;
    Lanes code;
    AssignRow(x, block.lanes, divisor, zero, last, code);
    for (int l = 0; l < block.lanes; ++l) {
      sums.code[l] += code[l];
      sums.squared[l] += code[l] * code[l];
      sums.covariance[l] += code[l] * (x[l] - mean[l]);
    }
    if (codes != nullptr) {
      std::uint8_t* out = codes + i * block.stride;
      for (int l = 0; l < block.lanes; ++l)
        out[l] = static_cast<std::uint8_t>(static_cast<int>(code[l]));
    }
  }
  return sums;
}

// count^2 times the variance of the codes, exact: an integer below 2^24.
float CodeVariance(const CodeSums& sums, int lane, float n) {
  return n * sums.squared[lane] - sums.code[lane] * sums.code[lane];
}

// Rounds scale and zero to fp16; a scale that vanishes is degenerate.
void RoundParams(const Moments& m, int lanes, Lanes& scale, Lanes& zero, AffineFP16* params) {
  for (int l = 0; l < lanes; ++l) {
    params[l].scale = ToFP16Saturated(scale[l]);
    scale[l] = FromFP16(params[l].scale);
    params[l].zero = ToFP16Saturated(scale[l] > 0 ? zero[l] : m.mean[l]);
    zero[l] = FromFP16(params[l].zero);
  }
}

void ClearCodes(const Block& block, int lane, std::uint8_t* codes) {
  for (int i = 0; i < block.count; ++i) codes[i * block.stride + lane] = 0;
}

void FitMinMax(const Block& block, const Moments& m, float top, AffineFP16* params,
               std::uint8_t* codes) {
  Lanes scale;
  Lanes zero;
  for (int l = 0; l < block.lanes; ++l) {
    scale[l] = (m.high[l] - m.low[l]) / top;
    zero[l] = m.low[l];
  }
  RoundParams(m, block.lanes, scale, zero, params);
  const CodeSums sums = AssignCodes(block, scale, zero, m.mean, top, codes);
  for (int l = 0; l < block.lanes; ++l) {
    if (CodeVariance(sums, l, static_cast<float>(block.count)) > 0) continue;
    params[l] = {0, ToFP16Saturated(m.mean[l])};
    ClearCodes(block, l, codes);
  }
}

void FitVariance(const Block& block, const Moments& m, float top, AffineFP16* params,
                 std::uint8_t* codes) {
  constexpr int kRefits = 2;  // by least squares, before the variance is matched
  const auto n = static_cast<float>(block.count);
  const float shrink = top == 3.0F ? 0.75F : 0.95F;
  Lanes scale;
  Lanes zero;
  for (int l = 0; l < block.lanes; ++l) {
    const float half = (m.high[l] - m.low[l]) / 2 * shrink;
    scale[l] = m.variance[l] > 0 ? 2 * half / top : 0.0F;
    zero[l] = (m.low[l] + m.high[l]) / 2 - half;
  }
  for (int step = 0; step <= kRefits; ++step) {
    const bool last = step == kRefits;
    const CodeSums sums = AssignCodes(block, scale, zero, m.mean, top, last ? codes : nullptr);
    for (int l = 0; l < block.lanes; ++l) {
      const float code_variance = CodeVariance(sums, l, n);
      const bool fits = code_variance > 0 && sums.covariance[l] > 0;
      const float divisor = fits ? code_variance : 1.0F;
      const float refit =
          last ? std::sqrt(n * m.variance[l] / divisor) : n * sums.covariance[l] / divisor;
      scale[l] = fits ? refit : 0.0F;
      zero[l] = m.mean[l] - scale[l] * (sums.code[l] / n);
    }
  }
  RoundParams(m, block.lanes, scale, zero, params);
  for (int l = 0; l < block.lanes; ++l) {
    if (scale[l] == 0) ClearCodes(block, l, codes);
  }
}

}  // namespace

void FitGroups(const float* x, int count, int lanes, int bits, Fit fit, AffineFP16* params,
               std::uint8_t* codes) {
  const auto top = static_cast<float>((1 << bits) - 1);
  for (int lane = 0; lane < lanes; lane += kLanes) {
    const Block block = {x + lane, std::min(kLanes, lanes - lane), count, lanes};
    const Moments moments = MomentsOf(block);
    if (fit == Fit::kMinMax) {
      FitMinMax(block, moments, top, params + lane, codes + lane);
    } else {
      FitVariance(block, moments, top, params + lane, codes + lane);
    }
  }
}

void DecodeGroups(const std::uint8_t* codes, const AffineFP16* params, int count, int lanes,
                  float* x) {
  for (int lane = 0; lane < lanes; lane += kLanes) {
    const int width = std::min(kLanes, lanes - lane);
    Lanes scale;
    Lanes zero;
    for (int l = 0; l < width; ++l) {
      scale[l] = FromFP16(params[lane + l].scale);
      zero[l] = FromFP16(params[lane + l].zero);
    }
    for (int i = 0; i < count; ++i) {
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(i) * lanes + lane;
      for (int l = 0; l < width; ++l) {
        x[row + l] = scale[l] * static_cast<float>(codes[row + l]) + zero[l];
      }
    }
  }
}

int ScaleExponent(float largest) {
  if (largest == 0) return 0;
  return std::clamp(std::ilogb(largest) - 8, -126, 127);
}

float LargestMagnitude(const float* x, std::int64_t count) {
  std::int32_t largest = 0;  // magnitudes order like their bits
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff);
  }
  return std::bit_cast<float>(largest);
}

std::uint16_t ToFP16Saturated(float x) {
  return ToFP16(std::min(std::max(x, -kLargestFP16), kLargestFP16));
}

}  // namespace oscarkv
