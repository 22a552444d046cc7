// The oracle's own reading of pages (kernels/PAGE_FORMAT.md).
#include <algorithm>
#include <cmath>

#include "kernels/codec/oracle.h"

namespace oscarkv::oracle {
namespace {

int ByteAt(const std::byte* bytes, std::int64_t i) { return std::to_integer<int>(bytes[i]); }

std::uint16_t Word16(const std::byte* bytes, std::int64_t i) {
  return static_cast<std::uint16_t>(ByteAt(bytes, 2 * i) | (ByteAt(bytes, 2 * i + 1) << 8));
}

double SignedByte(const std::byte* bytes, std::int64_t i) {
  const int value = ByteAt(bytes, i);
  return value < 128 ? value : value - 256;
}

// Code (row, column) of a packed [rows][columns] matrix.
int Code(const std::byte* packed, int rows, int columns, int bits, int row, int column) {
  int code = 0;
  for (int plane = 0; plane < bits / 2; ++plane) {
    const std::int64_t tile = (row / 16) * (columns / 16) + column / 16;
    const std::int64_t byte = plane * (rows * columns / 4) + tile * 64 + row % 16 * 4 + column % 4;
    code += ((ByteAt(packed, byte) >> (2 * (column % 16 / 4))) & 3) << (2 * plane);
  }
  return code;
}

// Scales and zeros of `count` groups.
void ReadParams(const std::byte* params, int count, int exponent, Quantized* out) {
  const double factor = std::ldexp(1.0, exponent);
  for (int i = 0; i < count; ++i) {
    out->scales.push_back(Value16(DType::kFP16, Word16(params, 2 * i)) * factor);
    out->zeros.push_back(Value16(DType::kFP16, Word16(params, 2 * i + 1)) * factor);
  }
}

std::vector<double> ReadRaw(DType dtype, const std::byte* bytes, int count) {
  std::vector<double> out;
  for (int i = 0; i < count; ++i) out.push_back(Value16(dtype, Word16(bytes, i)));
  return out;
}

}  // namespace

bool HasNorms(const LayerSpec& spec) {
  return spec.keys_are_coded() && spec.codec.scaling != Scaling::kNone;
}

PageHead ReadPageHead(const LayerSpec& spec, const std::byte* page, int head) {
  const PageLayout layout(spec);
  const CodecSpec& codec = spec.codec;
  const std::byte* record = page + 8 * head;
  const std::byte* region = page + layout.heads + layout.head_bytes * head;
  PageHead out;
  out.rotated = (ByteAt(record, 0) & 1) != 0;
  out.has_residual = (ByteAt(record, 0) & 2) != 0;
  out.norms.assign(kPageTokens, 1.0);
  if (HasNorms(spec)) {
    const int row = codec.scaling == Scaling::kJoint ? 0 : head;
    const std::byte* norms = page + layout.norms + 2 * kPageTokens * row;
    out.norms = ReadRaw(DType::kBF16, norms, kPageTokens);
  }
  if (out.has_residual) {
    out.residual_step = Value16(DType::kFP16, Word16(record + 4, 0)) *
                        std::ldexp(1.0, static_cast<int>(SignedByte(record, 3)));
    for (int t = 0; t < kPageTokens; ++t) {
      out.residuals.push_back(static_cast<int>(SignedByte(region + layout.residuals, t)));
    }
  }
  if (spec.keys_are_coded()) {
    for (int t = 0; t < kPageTokens; ++t) {
      for (int c = 0; c < spec.key_dim; ++c) {
        out.keys.codes.push_back(
            Code(region + layout.key_codes, kPageTokens, spec.key_dim, codec.key_bits, t, c));
      }
    }
    ReadParams(region + layout.key_params, kPageTokens / codec.key_group * spec.key_dim,
               static_cast<int>(SignedByte(record, 1)), &out.keys);
  } else {
    out.raw_keys = ReadRaw(spec.storage, region + layout.key_codes, kPageTokens * spec.key_dim);
  }
  if (!spec.values_are_coded()) {
    out.raw_values =
        ReadRaw(spec.storage, region + layout.value_codes, kPageTokens * spec.value_dim);
    return out;
  }
  for (int t = 0; t < kPageTokens; ++t) {
    for (int c = 0; c < spec.value_dim; ++c) {
      out.values.codes.push_back(
          Code(region + layout.value_codes, spec.value_dim, kPageTokens, codec.value_bits, c, t));
    }
    for (int group = 0; group < layout.value_groups; ++group) {
      ReadParams(region + layout.value_params + 4 * (group * kPageTokens + t), 1,
                 static_cast<int>(SignedByte(record, 2)), &out.values);
    }
  }
  return out;
}

void DecodePageHead(const LayerSpec& spec, const PageHead& head, const float* direction,
                    std::vector<double>* keys, std::vector<double>* values) {
  const int dim = spec.key_dim;
  *keys = head.raw_keys;
  if (spec.keys_are_coded()) {
    for (int t = 0; t < kPageTokens; ++t) {
      for (int c = 0; c < dim; ++c) {
        const int group = t / spec.codec.key_group * dim + c;
        keys->push_back(
            (head.keys.scales[group] * head.keys.codes[t * dim + c] + head.keys.zeros[group]) *
            head.norms[t]);
      }
    }
    if (head.rotated) RotateRows(*keys, dim, true);
  }
  if (head.has_residual && direction != nullptr) {
    for (int t = 0; t < kPageTokens; ++t) {
      for (int c = 0; c < dim; ++c) {
        (*keys)[t * dim + c] += head.residual_step * head.residuals[t] * direction[c];
      }
    }
  }
  *values = head.raw_values;
  if (!spec.values_are_coded()) return;
  const int width = spec.value_group_channels();
  const int groups = (spec.value_dim + width - 1) / width;
  for (int t = 0; t < kPageTokens; ++t) {
    for (int c = 0; c < spec.value_dim; ++c) {
      const int group = t * groups + c / width;
      values->push_back(head.values.scales[group] * head.values.codes[t * spec.value_dim + c] +
                        head.values.zeros[group]);
    }
  }
  if (spec.codec.value_rotation == Rotation::kHadamard) RotateRows(*values, spec.value_dim, true);
}

Tokens DecodePage(const LayerSpec& spec, const std::byte* page, const float* directions) {
  Tokens out;
  out.keys.resize(static_cast<std::size_t>(kPageTokens) * spec.kv_heads * spec.key_dim);
  out.values.resize(static_cast<std::size_t>(kPageTokens) * spec.kv_heads * spec.value_dim);
  for (int head = 0; head < spec.kv_heads; ++head) {
    std::vector<double> keys;
    std::vector<double> values;
    DecodePageHead(spec, ReadPageHead(spec, page, head),
                   directions == nullptr ? nullptr : directions + head * spec.key_dim, &keys,
                   &values);
    for (int t = 0; t < kPageTokens; ++t) {
      const std::ptrdiff_t row = t * spec.kv_heads + head;
      std::copy_n(keys.begin() + t * spec.key_dim, spec.key_dim,
                  out.keys.begin() + row * spec.key_dim);
      std::copy_n(values.begin() + t * spec.value_dim, spec.value_dim,
                  out.values.begin() + row * spec.value_dim);
    }
  }
  return out;
}

}  // namespace oscarkv::oracle
