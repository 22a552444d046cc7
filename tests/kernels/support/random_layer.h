// Layers and tensors at random, the same for the same seed.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "kernels/api/layer_spec.h"

namespace oscarkv::testing {

inline constexpr int kHeadDims[] = {64, 80, 96, 112, 128, 192, 256};

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  // Uniform in [low, high].
  std::int64_t Int(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  bool Chance(double p) { return std::bernoulli_distribution(p)(engine_); }
  float Normal() { return normal_(engine_); }
  template <typename T>
  T Pick(std::initializer_list<T> of) {
    return of.begin()[Int(0, static_cast<std::int64_t>(of.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
  std::normal_distribution<float> normal_;
};

// A DENSE layer with scale 1 / sqrt(key_dim).
LayerSpec MakeSpec(int query_heads, int kv_heads, int key_dim, int value_dim);

// Any shape, any profile with some fields set otherwise, now and then a soft cap, a sliding window
// and learned sinks.
LayerSpec RandomSpec(Random& random);

// Rows of a layer. Keys have channels with large biases and tokens of very different norms, as real
// keys do.
struct Rows {
  std::vector<float> keys;    // [tokens][kv_heads][key_dim]
  std::vector<float> values;  // [tokens][kv_heads][value_dim]
};
Rows RandomRows(const LayerSpec& spec, int tokens, Random& random);

// [count][query_heads][key_dim]
std::vector<float> RandomQueries(const LayerSpec& spec, int count, Random& random);

std::vector<std::uint16_t> Round16(DType storage, std::span<const float> x);
std::vector<double> Widen(std::span<const float> x);

}  // namespace oscarkv::testing
