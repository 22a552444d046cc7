#include "kernels/cpu/encode_steps.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/codec/scaled.h"
#include "kernels/cpu/rotate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/encode_steps.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/rotate-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/transpose-inl.h"

// Loops without vectors written out are ones that compilers make vector code of.

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

inline constexpr int kDoubles = 8;  // sums at once, in double

HWY_INLINE double SumOf(const double* lanes) {
  double sum = 0;
  for (int lane = 0; lane < kDoubles; ++lane) sum += lanes[lane];
  return sum;
}

template <DType storage>
HWY_INLINE void WidenAs(const std::uint16_t* from, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; i += kLanes) {
    hn::StoreU(LoadFloats<storage>(from + i), F32(), out + i);
  }
}

void WidenOfTarget(DType storage, const void* from, std::size_t count, float* out) {
  const auto* const bits = static_cast<const std::uint16_t*>(from);
  storage == DType::kBF16 ? WidenAs<DType::kBF16>(bits, count, out)
                          : WidenAs<DType::kFP16>(bits, count, out);
}

void SumSquaresOfTarget(const float* x, int tokens, int dim, double* sums) {
  for (int t = 0; t < tokens; ++t, x += dim) {
    double lanes[kDoubles] = {};
    for (int c = 0; c < dim; c += kDoubles) {
      for (int lane = 0; lane < kDoubles; ++lane) {
        const double value = x[c + lane];
        lanes[lane] += value * value;
      }
    }
    sums[t] = SumOf(lanes);
  }
}

void DivideByNormsOfTarget(const float* HWY_RESTRICT x, const std::uint16_t* norms, int tokens,
                           int dim, float* HWY_RESTRICT out) {
  if (norms == nullptr) {
    std::memcpy(out, x, sizeof(float) * tokens * dim);
    return;
  }
  for (int t = 0; t < tokens; ++t, x += dim, out += dim) {
    const float norm = std::bit_cast<float>(std::uint32_t{norms[t]} << 16);
    for (int c = 0; c < dim; ++c) out[c] = x[c] / norm;
  }
}

void RescaleOfTarget(float* x, std::size_t count, int& exponent) {
  std::int32_t largest = 0;  // magnitudes order like their bits
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff);
  }
  const int added =
      std::clamp(ScaleExponent(std::bit_cast<float>(largest)), -126 - exponent, 127 - exponent);
  if (added == 0) return;
  const float factor = std::ldexp(1.0F, -added);
  for (std::size_t i = 0; i < count; ++i) x[i] *= factor;
  exponent += added;
}

void TransposeRowsOfTarget(const float* x, int tokens, int dim, float* out) {
  Transpose({x, dim}, tokens, dim, {out, tokens});
}

void RotateColumnsOfTarget(float* x, int dim, int columns) {
  // Copied, since rows a power of two apart would share few sets of the cache.
  HWY_ALIGN float group[kMaxHeadDim * kGroup];
  for (int column = 0; column < columns; column += kGroup) {
    for (int c = 0; c < dim; ++c) {
      std::memcpy(group + c * kGroup, x + c * columns + column, sizeof(float) * kGroup);
    }
    RotateGroup(group, dim, /*back=*/false);
    for (int c = 0; c < dim; ++c) {
      std::memcpy(x + c * columns + column, group + c * kGroup, sizeof(float) * kGroup);
    }
  }
}

void ScaleRowsOfTarget(float factor, const std::uint16_t* norms, int tokens, int dim, float* keys) {
  for (int t = 0; t < tokens; ++t, keys += dim) {
    const float norm =
        norms == nullptr ? 1.0F : std::bit_cast<float>(std::uint32_t{norms[t]} << 16);
    for (int c = 0; c < dim; ++c) keys[c] = keys[c] * factor * norm;
  }
}

void ProjectErrorsOfTarget(const float* keys, const float* decoded, const float* direction,
                           int tokens, int dim, double* c) {
  for (int t = 0; t < tokens; ++t, keys += dim, decoded += dim) {
    double lanes[kDoubles] = {};
    for (int i = 0; i < dim; i += kDoubles) {
      for (int lane = 0; lane < kDoubles; ++lane) {
        const double error = static_cast<double>(keys[i + lane]) - decoded[i + lane];
        lanes[lane] += error * direction[i + lane];
      }
    }
    c[t] = SumOf(lanes);
  }
}

void AddResidualsOfTarget(const std::int8_t* codes, float step, const float* HWY_RESTRICT direction,
                          int tokens, int dim, float* HWY_RESTRICT keys) {
  for (int t = 0; t < tokens; ++t, keys += dim) {
    const float c = step * static_cast<float>(codes[t]);
    for (int i = 0; i < dim; ++i) keys[i] += c * direction[i];
  }
}

float RelativeErrorOfTarget(const float* x, const float* decoded, std::size_t count) {
  double squares[kDoubles] = {};
  double errors[kDoubles] = {};
  for (std::size_t i = 0; i < count; i += kDoubles) {
    for (int lane = 0; lane < kDoubles; ++lane) {
      const double value = x[i + lane];
      const double error = value - decoded[i + lane];
      squares[lane] += value * value;
      errors[lane] += error * error;
    }
  }
  const double all = SumOf(squares);
  return all > 0 ? static_cast<float>(std::sqrt(SumOf(errors) / all)) : 0.0F;
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::cpu {

HWY_EXPORT(WidenOfTarget);
HWY_EXPORT(SumSquaresOfTarget);
HWY_EXPORT(DivideByNormsOfTarget);
HWY_EXPORT(RescaleOfTarget);
HWY_EXPORT(TransposeRowsOfTarget);
HWY_EXPORT(RotateColumnsOfTarget);
HWY_EXPORT(ScaleRowsOfTarget);
HWY_EXPORT(ProjectErrorsOfTarget);
HWY_EXPORT(AddResidualsOfTarget);
HWY_EXPORT(RelativeErrorOfTarget);

void Widen(DType storage, const void* from, std::size_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(WidenOfTarget)(storage, from, count, out);
}

void SumSquares(const float* x, int tokens, int dim, double* sums) {
  HWY_DYNAMIC_DISPATCH(SumSquaresOfTarget)(x, tokens, dim, sums);
}

void DivideByNorms(const float* x, const std::uint16_t* norms, int tokens, int dim, float* out) {
  HWY_DYNAMIC_DISPATCH(DivideByNormsOfTarget)(x, norms, tokens, dim, out);
}

void Rescale(float* x, std::size_t count, int& exponent) {
  HWY_DYNAMIC_DISPATCH(RescaleOfTarget)(x, count, exponent);
}

void TransposeRows(const float* x, int tokens, int dim, float* out) {
  HWY_DYNAMIC_DISPATCH(TransposeRowsOfTarget)(x, tokens, dim, out);
}

void RotateColumns(float* x, int dim, int columns) {
  HWY_DYNAMIC_DISPATCH(RotateColumnsOfTarget)(x, dim, columns);
}

void RestoreKeys(bool rotated, float factor, const std::uint16_t* norms, int tokens, int dim,
                 float* keys) {
  if (rotated) RotateRowsBack(keys, tokens, dim);
  HWY_DYNAMIC_DISPATCH(ScaleRowsOfTarget)(factor, norms, tokens, dim, keys);
}

void ProjectErrors(const float* keys, const float* decoded, const float* direction, int tokens,
                   int dim, double* c) {
  HWY_DYNAMIC_DISPATCH(ProjectErrorsOfTarget)(keys, decoded, direction, tokens, dim, c);
}

void AddResiduals(const std::int8_t* codes, float step, const float* direction, int tokens, int dim,
                  float* keys) {
  HWY_DYNAMIC_DISPATCH(AddResidualsOfTarget)(codes, step, direction, tokens, dim, keys);
}

float RelativeError(const float* x, const float* decoded, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(RelativeErrorOfTarget)(x, decoded, count);
}

}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
