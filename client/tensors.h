// Tensors of the service from and to memory. Elements are little-endian and row-major, packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "oscarkv/v1/kv_cache.pb.h"

namespace oscarkv {

// Bytes of one element; 0 for DATA_TYPE_UNSPECIFIED and values this library does not know.
std::size_t ElementBytes(v1::DataType dtype);

// A tensor of the bytes. REQUIRES: bytes.size() is the product of `shape` times the element's size.
v1::Tensor MakeTensor(v1::DataType dtype, std::initializer_list<std::int64_t> shape,
                      std::string_view bytes);

// A tensor of fp32. REQUIRES: values.size() is the product of `shape`.
v1::Tensor MakeTensor(std::initializer_list<std::int64_t> shape, std::span<const float> values);

// A tensor of 16-bit elements, given as their bits. REQUIRES: likewise; dtype is BF16 or FP16.
v1::Tensor MakeTensor(v1::DataType dtype, std::initializer_list<std::int64_t> shape,
                      std::span<const std::uint16_t> bits);

// OK if shape, dtype and number of bytes of a received tensor fit together.
absl::Status CheckTensor(const v1::Tensor& tensor);

// The elements where they are, valid as long as the tensor is unchanged. INVALID_ARGUMENT if it is
// not a whole tensor of fp32.
absl::StatusOr<std::span<const float>> ViewFloats(const v1::Tensor& tensor);

// The elements, of any dtype, as fp32. INVALID_ARGUMENT if it is not a whole tensor.
absl::StatusOr<std::vector<float>> CopyFloats(const v1::Tensor& tensor);

}  // namespace oscarkv
