// The int8 step of both products of attention on codes.
#pragma once

#include <cmath>
#include <cstdint>

namespace oscarkv::cpu {

// Sums over several lanes in a fixed order that vector units can follow.
// REQUIRES: count is a multiple of kSumLanes.
inline constexpr int kSumLanes = 16;

inline float SumOfLanes(const float (&lanes)[kSumLanes]) {
  float halves[kSumLanes / 2];
  for (int i = 0; i < kSumLanes / 2; ++i) halves[i] = lanes[i] + lanes[i + kSumLanes / 2];
  return ((halves[0] + halves[4]) + (halves[2] + halves[6])) +
         ((halves[1] + halves[5]) + (halves[3] + halves[7]));
}

inline float Dot(const float* a, const float* b, int count) {
  float lanes[kSumLanes] = {};
  for (int i = 0; i < count; i += kSumLanes) {
    for (int lane = 0; lane < kSumLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  return SumOfLanes(lanes);
}

// Quantizes x[count] to int8 with one step, max|x| / 127, and returns the step (0 if x is zero).
// `rest` is set to the sum of what rounding took away, sum_i (x_i - step * codes_i).
// REQUIRES: count is a multiple of kSumLanes.
inline float QuantizeToInt8(const float* x, int count, std::int8_t* codes, float* rest) {
  float largest = 0;
  for (int i = 0; i < count; ++i) {
    const float magnitude = std::fabs(x[i]);
    largest = magnitude > largest ? magnitude : largest;
  }
  const float step = largest / 127;
  const float divisor = step > 0 ? step : 1;
  float lanes[kSumLanes] = {};
  for (int i = 0; i < count; i += kSumLanes) {
    for (int lane = 0; lane < kSumLanes; ++lane) {
      float code = std::nearbyint(x[i + lane] / divisor);
      // A step that is not normal can be off by much; the comparisons also turn NaN into -127.
      code = code < 127 ? code : 127;
      code = code > -127 ? code : -127;
      codes[i + lane] = static_cast<std::int8_t>(code);
      lanes[lane] += x[i + lane] - step * code;
    }
  }
  *rest = SumOfLanes(lanes);
  return step;
}

}  // namespace oscarkv::cpu
