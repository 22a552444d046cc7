#include "kernels/codec/oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace oscarkv::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

void RotateRows(std::vector<double>& x, int dim, bool back) {
  const std::vector<double> h = HadamardMatrix(dim);
  std::vector<double> row(dim);
  for (std::size_t begin = 0; begin < x.size(); begin += dim) {
    std::fill(row.begin(), row.end(), 0.0);
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) {
        row[j] += x[begin + i] * (back ? h[j * dim + i] : h[i * dim + j]);
      }
    }
    std::copy(row.begin(), row.end(), x.begin() + static_cast<std::ptrdiff_t>(begin));
  }
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

Attention Attend(const AttentionRequest& request) {
  const LayerSpec& spec = *request.spec;
  const std::int64_t rows = static_cast<std::int64_t>(request.queries.size()) / spec.key_dim;
  Attention out;
  out.outputs.assign(static_cast<std::size_t>(rows) * spec.value_dim, 0.0);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t head = row % spec.query_heads;
    const std::int64_t position = request.query_begin + row / spec.query_heads;
    const std::int64_t kv_head = head / spec.queries_per_kv_head();
    std::vector<double> logits(request.positions.size(), -kInfinity);
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
      logits[t] = logit;
      largest = std::max(largest, logit);
    }
    const bool sink = request.count_sink_logits && !spec.sink_logits.empty();
    if (sink) largest = std::max(largest, static_cast<double>(spec.sink_logits[head]));
    double sum = sink ? std::exp(spec.sink_logits[head] - largest) : 0;
    for (const double logit : logits) {
      if (logit > -kInfinity) sum += std::exp(logit - largest);
    }
    out.log_sum_exps.push_back(sum > 0 ? largest + std::log(sum) : -kInfinity);
    for (std::size_t t = 0; t < logits.size(); ++t) {
      if (logits[t] == -kInfinity) continue;
      const double p = std::exp(logits[t] - largest) / sum;
      for (int c = 0; c < spec.value_dim; ++c) {
        out.outputs[row * spec.value_dim + c] +=
            p * request.tokens->values[(t * spec.kv_heads + kv_head) * spec.value_dim + c];
      }
    }
    out.logits.insert(out.logits.end(), logits.begin(), logits.end());
  }
  return out;
}

}  // namespace oscarkv::oracle
