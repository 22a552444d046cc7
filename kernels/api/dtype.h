// Element types of tensors, their conversions, and the check that keeps NaN and infinity out.
// All conversions round to nearest even and are exact where the target can hold the value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace oscarkv {

enum class DType : std::uint8_t {
  kBF16,  // bfloat16
  kFP16,  // IEEE 754 binary16
  kFP32,  // IEEE 754 binary32
};

constexpr std::size_t SizeOf(DType dtype) { return dtype == DType::kFP32 ? 4 : 2; }
const char* NameOf(DType dtype);  // "bf16", "fp16", "fp32"

float FromBF16(std::uint16_t bits);
float FromFP16(std::uint16_t bits);
std::uint16_t ToBF16(float x);  // beyond the largest finite value: infinity
std::uint16_t ToFP16(float x);  // likewise

float LargestFinite(DType dtype);

// The value of a 16-bit element. REQUIRES: dtype is kBF16 or kFP16.
float FromBits16(DType dtype, std::uint16_t bits);
std::uint16_t ToBits16(DType dtype, float x);

// out[0..count) = values[0..count) as fp32. `values` needs no alignment.
void ToFloats(DType dtype, const void* values, std::size_t count, float* out);

// out[0..count) = values rounded to the 16-bit type `storage`. `values` needs no alignment.
// REQUIRES: storage is 16 bits wide; dtype is `storage` or kFP32.
void ToStorage(DType dtype, const void* values, std::size_t count, DType storage,
               std::uint16_t* out);

// The largest magnitude of keys, values and queries: far beyond what models compute, and small
// enough that no sum of products of attention overflows fp32.
inline constexpr float kLargestInput = 0x1p40F;

// The index of the first element that is NaN, beyond `limit` in magnitude, or infinite once rounded
// to `storage` (kFP32: as it stands), if any. `values` needs no alignment.
// REQUIRES: limit is a power of two, or infinite for none.
std::optional<std::size_t> FindUnusable(DType dtype, const void* values, std::size_t count,
                                        DType storage, float limit);

}  // namespace oscarkv
