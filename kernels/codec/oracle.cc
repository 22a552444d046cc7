#include "kernels/codec/oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace oscarkv::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ------------------------------------------------------------------------------------- rotation

// 1 if a is a square modulo the prime q, -1 if not, 0 if q divides it.
int QuadraticCharacter(int a, int q) {
  a = ((a % q) + q) % q;
  if (a == 0) return 0;
  for (int x = 1; x < q; ++x) {
    if (x * x % q == a) return 1;
  }
  return -1;
}

using Signs = std::vector<std::vector<int>>;

// The conference matrix [[0, 1], [+-1, Q]] of order q + 1.
Signs Conference(int q, int corner) {
  Signs c(q + 1, std::vector<int>(q + 1, 0));
  for (int i = 0; i < q; ++i) {
    c[0][i + 1] = 1;
    c[i + 1][0] = corner;
    for (int j = 0; j < q; ++j) c[i + 1][j + 1] = QuadraticCharacter(i - j, q);
  }
  return c;
}

// Paley's constructions over the prime q: order q + 1 if q mod 4 is 3, order 2 (q + 1) if it is 1.
Signs Paley(int q) {
  if (q % 4 == 3) {
    Signs h = Conference(q, -1);
    for (int i = 0; i <= q; ++i) h[i][i] += 1;
    return h;
  }
  const Signs c = Conference(q, 1);
  const int on[2][2] = {{1, 1}, {1, -1}};
  const int diagonal[2][2] = {{1, -1}, {-1, -1}};
  Signs h(2 * (q + 1), std::vector<int>(2 * (q + 1)));
  for (int i = 0; i < 2 * (q + 1); ++i) {
    for (int j = 0; j < 2 * (q + 1); ++j) {
      h[i][j] = c[i / 2][j / 2] * on[i % 2][j % 2];
      if (i / 2 == j / 2) h[i][j] += diagonal[i % 2][j % 2];
    }
  }
  return h;
}

// The odd factor's matrix for a head_dim: of order 1, 12, 20 or 28.
Signs OddFactor(int dim) {
  switch (dim) {
    case 96:
    case 192:
      return Paley(11);
    case 80:
      return Paley(19);
    case 112:
      return Paley(13);
    default:
      return {{1}};
  }
}

// Rows of a [rows][dim] matrix times H or its transpose.
void RotateAll(std::vector<double>& x, int dim, bool transposed) {
  const std::vector<double> h = HadamardMatrix(dim);
  std::vector<double> row(dim);
  for (std::size_t begin = 0; begin < x.size(); begin += dim) {
    std::fill(row.begin(), row.end(), 0.0);
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) {
        row[j] += x[begin + i] * (transposed ? h[j * dim + i] : h[i * dim + j]);
      }
    }
    std::copy(row.begin(), row.end(), x.begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

// ------------------------------------------------------------------------------------ affine fits

double Mean(const std::vector<double>& x) {
  double sum = 0;
  for (double v : x) sum += v;
  return sum / static_cast<double>(x.size());
}

// The mean product of deviations.
double Covariance(const std::vector<double>& x, const std::vector<double>& y) {
  const double x_mean = Mean(x);
  const double y_mean = Mean(y);
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += (x[i] - x_mean) * (y[i] - y_mean);
  return sum / static_cast<double>(x.size());
}

bool AllEqual(const std::vector<double>& x) {
  return std::all_of(x.begin(), x.end(), [&](double v) { return v == x[0]; });
}

struct Group {
  double scale = 0;
  double zero = 0;
  std::vector<double> codes;
};

std::vector<double> Assign(const std::vector<double>& x, double scale, double zero, int top) {
  std::vector<double> codes;
  for (double v : x) {
    codes.push_back(scale == 0 ? 0
                               : std::clamp(std::nearbyint((v - zero) / scale), 0.0, 1.0 * top));
  }
  return codes;
}

Group Degenerate(const std::vector<double>& x) {
  return {0, RoundToFP16(Mean(x)), std::vector<double>(x.size(), 0)};
}

Group FitMinMax(const std::vector<double>& x, int top) {
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const double scale = RoundToFP16((*high - *low) / top);
  if (scale == 0) return Degenerate(x);
  const double zero = RoundToFP16(*low);
  return {scale, zero, Assign(x, scale, zero, top)};
}

Group FitVariance(const std::vector<double>& x, int top) {
  if (AllEqual(x)) return Degenerate(x);
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const double centre = (*low + *high) / 2;
  const double half = (*high - *low) / 2 * (top == 3 ? 0.75 : 0.95);
  double scale = 2 * half / top;
  double zero = centre - half;
  for (int round = 0; round < 3; ++round) {
    const std::vector<double> codes = Assign(x, scale, zero, top);
    if (AllEqual(codes)) return Degenerate(x);
    const double code_variance = Covariance(codes, codes);
    if (round < 2) {
      scale = Covariance(codes, x) / code_variance;
      zero = Mean(x) - scale * Mean(codes);
      continue;
    }
    scale = std::sqrt(Covariance(x, x) / code_variance);
    zero = Mean(x) - scale * Mean(codes);
    if (RoundToFP16(scale) == 0) return Degenerate(x);
    return {RoundToFP16(scale), RoundToFP16(zero), codes};
  }
  return {};
}

Group FitGroup(const std::vector<double>& x, int bits, Fit fit) {
  const int top = (1 << bits) - 1;
  return fit == Fit::kMinMax ? FitMinMax(x, top) : FitVariance(x, top);
}

// The power of two that brings the largest magnitude into [2^8, 2^9) is 2^-exponent.
int Exponent(const std::vector<double>& x) {
  double largest = 0;
  for (double v : x) largest = std::max(largest, std::fabs(v));
  return largest == 0 ? 0 : std::clamp(std::ilogb(largest) - 8, -126, 127);
}

// x [kPageTokens][dim]; groups of group_tokens tokens per channel.
Quantized QuantizeKeys(const std::vector<double>& x, int dim, int group_tokens, int bits, Fit fit) {
  const double factor = std::ldexp(1.0, Exponent(x));
  Quantized out;
  out.codes.resize(x.size());
  for (int begin = 0; begin < kPageTokens; begin += group_tokens) {
    for (int c = 0; c < dim; ++c) {
      std::vector<double> group;
      for (int t = begin; t < begin + group_tokens; ++t) group.push_back(x[t * dim + c] / factor);
      const Group fitted = FitGroup(group, bits, fit);
      for (int t = 0; t < group_tokens; ++t) {
        out.codes[(begin + t) * dim + c] = static_cast<int>(fitted.codes[t]);
      }
      out.scales.push_back(fitted.scale * factor);
      out.zeros.push_back(fitted.zero * factor);
    }
  }
  return out;
}

// x [kPageTokens][dim]; groups of group_channels channels per token, the last may be narrower.
Quantized QuantizeValues(const std::vector<double>& x, int dim, int group_channels, int bits,
                         Fit fit) {
  const double factor = std::ldexp(1.0, Exponent(x));
  Quantized out;
  out.codes.resize(x.size());
  for (int t = 0; t < kPageTokens; ++t) {
    for (int begin = 0; begin < dim; begin += group_channels) {
      std::vector<double> group;
      for (int c = begin; c < std::min(dim, begin + group_channels); ++c) {
        group.push_back(x[t * dim + c] / factor);
      }
      const Group fitted = FitGroup(group, bits, fit);
      for (std::size_t i = 0; i < group.size(); ++i) {
        out.codes[t * dim + begin + i] = static_cast<int>(fitted.codes[i]);
      }
      out.scales.push_back(fitted.scale * factor);
      out.zeros.push_back(fitted.zero * factor);
    }
  }
  return out;
}

// ------------------------------------------------------------------------------------- page bytes

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

// One kv head's rows of [tokens][heads][dim].
std::vector<double> HeadRows(const std::vector<double>& x, int heads, int head, int dim) {
  std::vector<double> out;
  for (std::size_t begin = 0; begin < x.size(); begin += static_cast<std::size_t>(heads) * dim) {
    const auto row = x.begin() + static_cast<std::ptrdiff_t>(begin + head * dim);
    out.insert(out.end(), row, row + dim);
  }
  return out;
}

bool Normed(const LayerSpec& spec) {
  return spec.keys_are_coded() && spec.codec.scaling != Scaling::kNone;
}

std::vector<double> Norms(const LayerSpec& spec, const Tokens& page, int head) {
  std::vector<double> norms(kPageTokens, 1.0);
  if (!Normed(spec)) return norms;
  const bool joint = spec.codec.scaling == Scaling::kJoint;
  const std::vector<double> own = HeadRows(page.keys, spec.kv_heads, head, spec.key_dim);
  const std::vector<double>& x = joint ? page.keys : own;
  const std::size_t width = x.size() / kPageTokens;
  for (int t = 0; t < kPageTokens; ++t) {
    double sum = 0;
    for (std::size_t i = 0; i < width; ++i) sum += x[t * width + i] * x[t * width + i];
    // By way of fp32, as the kernels go: what lies next to a tie there is rounded to even.
    const auto rms = static_cast<float>(std::sqrt(sum / static_cast<double>(width)));
    const double norm = RoundToBF16(rms);
    norms[t] = norm == 0 ? 1 : norm;
  }
  return norms;
}

void EncodeResiduals(const LayerSpec& spec, const std::vector<double>& keys, const float* direction,
                     PageHead* head) {
  std::vector<double> decoded;
  std::vector<double> values;
  DecodePageHead(spec, *head, nullptr, &decoded, &values);
  std::vector<double> errors(kPageTokens, 0.0);
  double largest = 0;
  for (int t = 0; t < kPageTokens; ++t) {
    for (int c = 0; c < spec.key_dim; ++c) {
      const int i = t * spec.key_dim + c;
      errors[t] += direction[c] * (keys[i] - decoded[i]);
    }
    largest = std::max(largest, std::fabs(errors[t]));
  }
  head->has_residual = true;
  head->residuals.assign(kPageTokens, 0);
  if (largest == 0) return;
  const double step = largest / 127;
  const double factor = std::ldexp(1.0, std::clamp(std::ilogb(step), -126, 127));
  head->residual_step = RoundToFP16(step / factor) * factor;
  for (int t = 0; t < kPageTokens; ++t) {
    head->residuals[t] = static_cast<int>(
        std::clamp(std::nearbyint(errors[t] / head->residual_step), -127.0, 127.0));
  }
}

}  // namespace

std::vector<double> HadamardMatrix(int dim) {
  const Signs odd = OddFactor(dim);
  const int width = dim / static_cast<int>(odd.size());
  std::vector<double> h(static_cast<std::size_t>(dim) * dim);
  for (int i = 0; i < dim; ++i) {
    for (int j = 0; j < dim; ++j) {
      const auto common = static_cast<unsigned>((i % width) & (j % width));
      const int sylvester = std::popcount(common) % 2 == 0 ? 1 : -1;
      h[i * dim + j] = odd[i / width][j / width] * sylvester / std::sqrt(dim);
    }
  }
  return h;
}

double RoundToFP16(double x) {
  if (x == 0) return 0;
  const double quantum = std::ldexp(1.0, std::max(std::ilogb(x), -14) - 10);
  return std::clamp(std::nearbyint(x / quantum) * quantum, -65504.0, 65504.0);
}

double RoundToBF16(double x) {
  if (x == 0) return 0;
  const double quantum = std::ldexp(1.0, std::max(std::ilogb(x), -126) - 7);
  return std::nearbyint(x / quantum) * quantum;
}

double Value16(DType dtype, std::uint16_t bits) {
  const int mantissa_bits = dtype == DType::kBF16 ? 7 : 10;
  const int exponent_bits = 15 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

void Extend(Tokens& tokens, const Tokens& more) {
  tokens.keys.insert(tokens.keys.end(), more.keys.begin(), more.keys.end());
  tokens.values.insert(tokens.values.end(), more.values.begin(), more.values.end());
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
  if (Normed(spec)) {
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

PageHead EncodePageHead(const LayerSpec& spec, const Tokens& page, int head, HeadPlan plan,
                        const float* direction) {
  const CodecSpec& codec = spec.codec;
  std::vector<double> keys = HeadRows(page.keys, spec.kv_heads, head, spec.key_dim);
  std::vector<double> values = HeadRows(page.values, spec.kv_heads, head, spec.value_dim);
  PageHead out;
  out.norms = Norms(spec, page, head);
  if (spec.values_are_coded()) {
    if (codec.value_rotation == Rotation::kHadamard) RotateAll(values, spec.value_dim, false);
    out.values = QuantizeValues(values, spec.value_dim, spec.value_group_channels(),
                                codec.value_bits, codec.value_fit);
  } else {
    out.raw_values = values;
  }
  if (!spec.keys_are_coded()) {
    out.raw_keys = keys;
    return out;
  }
  out.rotated = plan.rotation == Rotation::kHadamard;
  std::vector<double> x = keys;
  if (out.rotated) RotateAll(x, spec.key_dim, false);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] /= out.norms[i / spec.key_dim];
  out.keys = QuantizeKeys(x, spec.key_dim, codec.key_group, codec.key_bits, plan.fit);
  if (spec.has_residual() && direction != nullptr) EncodeResiduals(spec, keys, direction, &out);
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
    if (head.rotated) RotateAll(*keys, dim, true);
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
  if (spec.codec.value_rotation == Rotation::kHadamard) RotateAll(*values, spec.value_dim, true);
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

Attention Attend(const AttentionRequest& request) {
  const LayerSpec& spec = *request.spec;
  const std::int64_t rows = static_cast<std::int64_t>(request.queries.size()) / spec.key_dim;
  Attention out;
  out.outputs.assign(static_cast<std::size_t>(rows) * spec.value_dim, 0.0);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t head = row % spec.query_heads;
    const std::int64_t position = request.query_begin + row / spec.query_heads;
    const std::int64_t kv_head = head / spec.queries_per_kv_head();
    std::vector<std::pair<std::size_t, double>> logits;  // token, logit
    double largest = -kInfinity;
    for (std::size_t t = 0; t < request.positions.size(); ++t) {
      const std::int64_t at = request.positions[t];
      if (request.causal && at > position) continue;
      if (spec.sliding_window > 0 && at <= position - spec.sliding_window) continue;
      double logit = 0;
      for (int c = 0; c < spec.key_dim; ++c) {
        logit += request.queries[row * spec.key_dim + c] *
                 request.tokens->keys[(t * spec.kv_heads + kv_head) * spec.key_dim + c];
      }
      logit *= static_cast<double>(spec.scale);
      if (spec.softcap > 0) logit = spec.softcap * std::tanh(logit / spec.softcap);
      logits.emplace_back(t, logit);
      largest = std::max(largest, logit);
    }
    const bool sink = request.count_sink_logits && !spec.sink_logits.empty();
    if (sink) largest = std::max(largest, static_cast<double>(spec.sink_logits[head]));
    double sum = sink ? std::exp(spec.sink_logits[head] - largest) : 0;
    for (const auto& [t, logit] : logits) sum += std::exp(logit - largest);
    out.log_sum_exps.push_back(sum > 0 ? largest + std::log(sum) : -kInfinity);
    for (const auto& [t, logit] : logits) {
      const double p = std::exp(logit - largest) / sum;
      for (int c = 0; c < spec.value_dim; ++c) {
        out.outputs[row * spec.value_dim + c] +=
            p * request.tokens->values[(t * spec.kv_heads + kv_head) * spec.value_dim + c];
      }
    }
  }
  return out;
}

}  // namespace oscarkv::oracle
