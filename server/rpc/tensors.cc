#include "server/rpc/tensors.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/error.h"
#include "server/rpc/fields.h"
#include "server/rpc/limits.h"

namespace oscarkv {
namespace {

constexpr std::int64_t kMaxHeads = std::int64_t{limits::kKvHeads} * kMaxQueryHeadsPerKvHead;

std::string ShapeText(const v1::Tensor& tensor) {
  const int shown = std::min(tensor.shape_size(), 8);
  return absl::StrCat("[",
                      absl::StrJoin(tensor.shape().begin(), tensor.shape().begin() + shown, ", "),
                      tensor.shape_size() > shown ? ", ...]" : "]");
}

}  // namespace

absl::StatusOr<DType> DecodeDType(std::string_view field, v1::DataType dtype) {
  switch (dtype) {
    case v1::DATA_TYPE_BF16:
      return DType::kBF16;
    case v1::DATA_TYPE_FP16:
      return DType::kFP16;
    case v1::DATA_TYPE_FP32:
      return DType::kFP32;
    default:
      return InvalidField(field, absl::StrCat(static_cast<int>(dtype)),
                          "DATA_TYPE_BF16, DATA_TYPE_FP16 or DATA_TYPE_FP32");
  }
}

v1::DataType EncodeDType(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return v1::DATA_TYPE_BF16;
    case DType::kFP16:
      return v1::DATA_TYPE_FP16;
    case DType::kFP32:
      break;
  }
  return v1::DATA_TYPE_FP32;
}

absl::StatusOr<Rows> DecodeRows(std::string_view field, const v1::Tensor* tensor,
                                std::int64_t rows) {
  if (tensor == nullptr) {
    if (rows == 0) return Rows{};
    return InvalidField(field, "absent",
                        absl::StrCat("a tensor with ", rows, " rows, as the items say"));
  }
  const absl::StatusOr<DType> dtype = DecodeDType(Joined(field, "dtype"), tensor->dtype());
  if (!dtype.ok()) return dtype.status();
  const auto& shape = tensor->shape();
  if (shape.size() != 3 || shape[0] != rows || shape[1] < 1 || shape[1] > kMaxHeads ||
      shape[2] < 1 || shape[2] > kHeadDims.back()) {
    return InvalidField(Joined(field, "shape"), ShapeText(*tensor),
                        absl::StrCat("[", rows, " (the sum over items), heads, head dim]"));
  }
  // A row has two bytes at least: after this check the product below is far from an overflow.
  const std::string& raw = tensor->raw();
  const std::int64_t have = static_cast<std::int64_t>(raw.size());
  const std::int64_t row_bytes = shape[1] * shape[2] * static_cast<std::int64_t>(SizeOf(*dtype));
  if (rows > have || rows * row_bytes != have) {
    return InvalidField(Joined(field, "raw"), absl::StrCat(have, " bytes"),
                        absl::StrCat(rows, " x ", row_bytes, " bytes, for ", NameOf(*dtype), " ",
                                     ShapeText(*tensor)));
  }
  return Rows{.dtype = *dtype,
              .heads = static_cast<int>(shape[1]),
              .dim = static_cast<int>(shape[2]),
              .data = raw.data()};
}

std::int64_t ElementsPerRow(const Rows& rows) {
  return static_cast<std::int64_t>(rows.heads) * rows.dim;
}

Rows RowsFrom(const Rows& rows, std::int64_t begin) {
  Rows rest = rows;
  rest.data = static_cast<const char*>(rows.data) +
              begin * ElementsPerRow(rows) * static_cast<std::int64_t>(SizeOf(rows.dtype));
  return rest;
}

void ShapeTensor(std::initializer_list<std::int64_t> shape, DType dtype, v1::Tensor& tensor) {
  tensor.set_dtype(EncodeDType(dtype));
  tensor.mutable_shape()->Assign(shape.begin(), shape.end());
  std::size_t elements = 1;
  for (const std::int64_t size : shape) elements *= static_cast<std::size_t>(size);
  tensor.mutable_raw()->resize(elements * SizeOf(dtype));
}

void RoundFloats(std::span<const float> values, DType dtype, v1::Tensor& tensor) {
  if (dtype == DType::kFP32) {
    if (!values.empty())
      std::memcpy(tensor.mutable_raw()->data(), values.data(), values.size_bytes());
    return;
  }
  constexpr std::size_t kBlock = 256;
  const float limit = LargestFinite(dtype);
  auto* out = reinterpret_cast<std::uint16_t*>(tensor.mutable_raw()->data());
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, values.size() - begin);
    // Clamped before they are rounded: what is beyond the largest finite value may still round to
    // it. NaN stays.
    float clamped[kBlock];
    for (std::size_t i = 0; i < count; ++i) {
      clamped[i] = std::clamp(values[begin + i], -limit, limit);
    }
    ToStorage(DType::kFP32, clamped, count, dtype, out + begin);
  }
}

}  // namespace oscarkv
