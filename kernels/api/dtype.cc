#include "kernels/api/dtype.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

// The loops below are free of branches, so that the compiler turns them into vector code.

namespace oscarkv {

static_assert(std::endian::native == std::endian::little, "tensors and pages are little-endian");

namespace {

constexpr std::uint32_t kFP32Magnitude = 0x7fffffff;
constexpr std::uint32_t kFP32Infinity = 0x7f800000;

std::uint32_t Bits(float x) { return std::bit_cast<std::uint32_t>(x); }
float Float(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// All ones where `condition` holds, else zero.
std::uint32_t Mask(bool condition) { return condition ? ~0U : 0U; }
std::uint32_t Select(std::uint32_t mask, std::uint32_t yes, std::uint32_t no) {
  return (mask & yes) | (~mask & no);
}
// Magnitudes are below 2^31, and vector units compare signed integers only.
bool Less(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a) < static_cast<std::int32_t>(b);
}

float WidenBF16(std::uint16_t bits) { return Float(static_cast<std::uint32_t>(bits) << 16); }

float WidenFP16(std::uint16_t bits) {
  constexpr std::uint32_t kRebias = (127 - 15) << 23;
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t magnitude = (bits & 0x7fffU) << 13;
  const std::uint32_t special = Mask(Less(0x7bffU << 13, magnitude));
  const std::uint32_t normal = magnitude + kRebias + (special & kRebias);
  // A denormal is its fraction in units of 2^-24: set that behind 2^-14, then take 2^-14 off.
  constexpr std::uint32_t kSmallest = (127 - 14) << 23;
  const std::uint32_t denormal = Bits(Float(magnitude + kSmallest) - Float(kSmallest));
  return Float(sign | Select(Mask(Less(magnitude, 0x0400U << 13)), denormal, normal));
}

std::uint16_t NarrowBF16(float x) {
  const std::uint32_t bits = Bits(x);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40;
  const std::uint32_t is_nan = Mask(Less(kFP32Infinity, bits & kFP32Magnitude));
  return static_cast<std::uint16_t>(Select(is_nan, quiet_nan, rounded));
}

std::uint16_t NarrowFP16(float x) {
  const std::uint32_t bits = Bits(x);
  const std::uint32_t magnitude = bits & kFP32Magnitude;
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t rounded =
      (magnitude + 0xfff + ((magnitude >> 13) & 1) - ((127U - 15) << 23)) >> 13;
  // Next to 0.5 a float's last place is 2^-24, that of a denormal: the adder rounds.
  const std::uint32_t denormal = Bits(Float(magnitude) + 0.5F) - Bits(0.5F);
  const std::uint32_t quiet_nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  std::uint32_t out = Select(Mask(Less(magnitude, (127 - 14) << 23)), denormal, rounded);
  out = Select(Mask(Less(0x477fefff, magnitude)), 0x7c00, out);  // 65520 and more
  out = Select(Mask(Less(kFP32Infinity, magnitude)), quiet_nan, out);
  return static_cast<std::uint16_t>(sign | out);
}

template <typename T>
T Load(const void* values, std::size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(values) + index * sizeof(T), sizeof(T));
  return value;
}

// The least magnitude, as bits of `dtype`, that is infinite once rounded to `storage`.
std::uint32_t FirstNonFinite(DType dtype, DType storage) {
  switch (dtype) {
    case DType::kFP16:
      return 0x7c00;
    case DType::kBF16:
      return storage == DType::kFP16 ? 0x4780 : 0x7f80;
    case DType::kFP32:
      break;
  }
  switch (storage) {
    case DType::kFP16:
      return 0x477ff000;
    case DType::kBF16:
      return 0x7f7f8000;
    case DType::kFP32:
      break;
  }
  return kFP32Infinity;
}

// The least magnitude, as bits of `dtype`, that is larger than the power of two `limit`; that of
// NaN at most.
std::uint32_t FirstBeyond(DType dtype, float limit) {
  if (dtype == DType::kFP32) return std::bit_cast<std::uint32_t>(limit) + 1;
  return ToBits16(dtype, limit) + 1U;
}

// REQUIRES: T is a signed integer type; `first` has no sign bit.
template <typename T>
std::optional<std::size_t> FindMagnitude(const void* values, std::size_t count, T first) {
  constexpr T kMagnitude = static_cast<T>(~(T{1} << (8 * sizeof(T) - 1)));
  constexpr std::size_t kBlock = 1024;  // a loop without an early exit can use vectors
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t end = std::min(count, begin + kBlock);
    T largest = 0;
    for (std::size_t i = begin; i < end; ++i) {
      largest = std::max(largest, static_cast<T>(Load<T>(values, i) & kMagnitude));
    }
    if (largest < first) continue;
    for (std::size_t i = begin; i < end; ++i) {
      if ((Load<T>(values, i) & kMagnitude) >= first) return i;
    }
  }
  return std::nullopt;
}

}  // namespace

const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bf16";
    case DType::kFP16:
      return "fp16";
    case DType::kFP32:
      return "fp32";
  }
  return "?";
}

float FromBF16(std::uint16_t bits) { return WidenBF16(bits); }
float FromFP16(std::uint16_t bits) { return WidenFP16(bits); }
std::uint16_t ToBF16(float x) { return NarrowBF16(x); }
std::uint16_t ToFP16(float x) { return NarrowFP16(x); }

float LargestFinite(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1.fep127F;
    case DType::kFP16:
      return 65504.0F;
    case DType::kFP32:
      break;
  }
  return std::numeric_limits<float>::max();
}

float FromBits16(DType dtype, std::uint16_t bits) {
  return dtype == DType::kBF16 ? WidenBF16(bits) : WidenFP16(bits);
}

std::uint16_t ToBits16(DType dtype, float x) {
  return dtype == DType::kBF16 ? NarrowBF16(x) : NarrowFP16(x);
}

void ToFloats(DType dtype, const void* values, std::size_t count, float* out) {
  switch (dtype) {
    case DType::kBF16:
      for (std::size_t i = 0; i < count; ++i) out[i] = WidenBF16(Load<std::uint16_t>(values, i));
      return;
    case DType::kFP16:
      for (std::size_t i = 0; i < count; ++i) out[i] = WidenFP16(Load<std::uint16_t>(values, i));
      return;
    case DType::kFP32:
      if (count > 0) std::memcpy(out, values, count * sizeof(float));
      return;
  }
}

void ToStorage(DType dtype, const void* values, std::size_t count, DType storage,
               std::uint16_t* out) {
  if (dtype == storage) {
    if (count > 0) std::memcpy(out, values, count * sizeof(std::uint16_t));
  } else if (storage == DType::kBF16) {
    for (std::size_t i = 0; i < count; ++i) out[i] = NarrowBF16(Load<float>(values, i));
  } else {
    for (std::size_t i = 0; i < count; ++i) out[i] = NarrowFP16(Load<float>(values, i));
  }
}

std::optional<std::size_t> FindUnusable(DType dtype, const void* values, std::size_t count,
                                        DType storage, float limit) {
  const std::uint32_t first = std::min(FirstNonFinite(dtype, storage), FirstBeyond(dtype, limit));
  if (dtype == DType::kFP32) {
    return FindMagnitude<std::int32_t>(values, count, static_cast<std::int32_t>(first));
  }
  return FindMagnitude<std::int16_t>(values, count, static_cast<std::int16_t>(first));
}

}  // namespace oscarkv
