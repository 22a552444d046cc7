// The oracle's own encoding of pages.
#include <algorithm>
#include <cmath>

#include "kernels/codec/oracle.h"

namespace oscarkv::oracle {
namespace {

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

// One kv head's rows of [tokens][heads][dim].
std::vector<double> HeadRows(const std::vector<double>& x, int heads, int head, int dim) {
  std::vector<double> out;
  for (std::size_t begin = 0; begin < x.size(); begin += static_cast<std::size_t>(heads) * dim) {
    const auto row = x.begin() + static_cast<std::ptrdiff_t>(begin + head * dim);
    out.insert(out.end(), row, row + dim);
  }
  return out;
}

std::vector<double> Norms(const LayerSpec& spec, const Tokens& page, int head) {
  std::vector<double> norms(kPageTokens, 1.0);
  if (!HasNorms(spec)) return norms;
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

PageHead EncodePageHead(const LayerSpec& spec, const Tokens& page, int head, HeadPlan plan,
                        const float* direction) {
  const CodecSpec& codec = spec.codec;
  std::vector<double> keys = HeadRows(page.keys, spec.kv_heads, head, spec.key_dim);
  std::vector<double> values = HeadRows(page.values, spec.kv_heads, head, spec.value_dim);
  PageHead out;
  out.norms = Norms(spec, page, head);
  if (spec.values_are_coded()) {
    if (codec.value_rotation == Rotation::kHadamard) RotateRows(values, spec.value_dim, false);
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
  if (out.rotated) RotateRows(x, spec.key_dim, false);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] /= out.norms[i / spec.key_dim];
  out.keys = QuantizeKeys(x, spec.key_dim, codec.key_group, codec.key_bits, plan.fit);
  if (spec.has_residual() && direction != nullptr) EncodeResiduals(spec, keys, direction, &out);
  return out;
}

}  // namespace oscarkv::oracle
