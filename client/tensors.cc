#include "client/tensors.h"

#include <bit>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/api/dtype.h"

namespace oscarkv {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are little-endian");

template <typename T>
std::string_view BytesOf(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// REQUIRES: ElementBytes(dtype) > 0.
DType ToDType(v1::DataType dtype) {
  if (dtype == v1::DATA_TYPE_FP32) return DType::kFP32;
  return dtype == v1::DATA_TYPE_FP16 ? DType::kFP16 : DType::kBF16;
}

}  // namespace

std::size_t ElementBytes(v1::DataType dtype) {
  switch (dtype) {
    case v1::DATA_TYPE_BF16:
    case v1::DATA_TYPE_FP16:
      return 2;
    case v1::DATA_TYPE_FP32:
      return 4;
    default:
      return 0;
  }
}

v1::Tensor MakeTensor(v1::DataType dtype, std::initializer_list<std::int64_t> shape,
                      std::string_view bytes) {
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  tensor.mutable_shape()->Assign(shape.begin(), shape.end());
  tensor.set_raw(bytes.data(), bytes.size());
  return tensor;
}

v1::Tensor MakeTensor(std::initializer_list<std::int64_t> shape, std::span<const float> values) {
  return MakeTensor(v1::DATA_TYPE_FP32, shape, BytesOf(values));
}

v1::Tensor MakeTensor(v1::DataType dtype, std::initializer_list<std::int64_t> shape,
                      std::span<const std::uint16_t> bits) {
  return MakeTensor(dtype, shape, BytesOf(bits));
}

absl::Status CheckTensor(const v1::Tensor& tensor) {
  const std::size_t element = ElementBytes(tensor.dtype());
  if (element == 0) return absl::InvalidArgumentError("a tensor has no known dtype");
  std::size_t bytes = element;
  for (const std::int64_t length : tensor.shape()) {
    if (length < 0)
      return absl::InvalidArgumentError("a tensor has a negative length in its shape");
    const auto factor = static_cast<std::size_t>(length);
    if (factor != 0 && bytes > std::numeric_limits<std::size_t>::max() / factor) {
      return absl::InvalidArgumentError("a tensor's shape is larger than memory");
    }
    bytes *= factor;
  }
  if (bytes != tensor.raw().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor's shape takes ", bytes, " bytes; it has ", tensor.raw().size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const float>> ViewFloats(const v1::Tensor& tensor) {
  if (absl::Status status = CheckTensor(tensor); !status.ok()) return status;
  if (tensor.dtype() != v1::DATA_TYPE_FP32) {
    return absl::InvalidArgumentError("a tensor is not fp32: copy it instead of viewing it");
  }
  // A std::string's characters are aligned for a pointer at least, wherever it keeps them.
  return std::span(reinterpret_cast<const float*>(tensor.raw().data()),
                   tensor.raw().size() / sizeof(float));
}

absl::StatusOr<std::vector<float>> CopyFloats(const v1::Tensor& tensor) {
  if (absl::Status status = CheckTensor(tensor); !status.ok()) return status;
  std::vector<float> values(tensor.raw().size() / ElementBytes(tensor.dtype()));
  ToFloats(ToDType(tensor.dtype()), tensor.raw().data(), values.size(), values.data());
  return values;
}

}  // namespace oscarkv
