// Input for pages, and pages sealed from it, for tests.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "kernels/api/backend.h"
#include "kernels/api/dtype.h"
#include "kernels/api/layer_spec.h"
#include "kernels/api/page_layout.h"
#include "kernels/api/profiles.h"
#include "kernels/cpu/encode_steps.h"
#include "kernels/cpu/page_encoder.h"
#include "tests/kernels/support/random_layer.h"
#include "tests/kernels/support/stored_rows.h"

namespace oscarkv {

using cpu::EncodeHead;
using cpu::HasNorms;
using cpu::HeadTokens;
using cpu::SumSquares;
using cpu::WritePageStart;
using testing::StoredRows;

struct alignas(kPageAlignment) CacheLine {
  std::byte bytes[kPageAlignment];
};

// Bytes of a page, aligned; full of ones at first, so that what is not written shows.
class PageBytes {
 public:
  explicit PageBytes(const LayerSpec& spec)
      : lines_(PageLayout(spec).bytes / kPageAlignment), size_(PageLayout(spec).bytes) {
    for (std::int64_t i = 0; i < size_; ++i) data()[i] = std::byte{0xff};
  }
  std::byte* data() { return lines_.data()->bytes; }
  const std::byte* data() const { return lines_.data()->bytes; }
  std::int64_t size() const { return size_; }

 private:
  std::vector<CacheLine> lines_;
  std::int64_t size_;
};

// One kv head of a page to be.
struct HeadData {
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<float> context;
  std::vector<float> queries;
  std::vector<float> direction;  // empty: none
};

// The same, as the encoder takes it. The head must outlive it.
class HeadInput {
 public:
  HeadInput(const LayerSpec& spec, const HeadData& head)
      : keys_(spec.storage, spec.key_dim, head.keys),
        values_(spec.storage, spec.value_dim, head.values),
        context_(spec.storage, spec.key_dim, head.context) {
    tokens_.keys = keys_.rows();
    tokens_.values = values_.rows();
    tokens_.context_keys = context_.rows();
    tokens_.context = static_cast<int>(head.context.size()) / spec.key_dim;
    tokens_.queries = head.queries.data();
    tokens_.num_queries = static_cast<int>(head.queries.size()) / spec.key_dim;
    tokens_.direction = head.direction.empty() ? nullptr : head.direction.data();
  }
  HeadInput(const HeadInput&) = delete;
  HeadInput& operator=(const HeadInput&) = delete;

  const HeadTokens& tokens() const { return tokens_; }

 private:
  StoredRows keys_;
  StoredRows values_;
  StoredRows context_;
  HeadTokens tokens_;
};

inline float RoundTo(DType storage, float x) { return FromBits16(storage, ToBits16(storage, x)); }

inline std::vector<float> RandomNumbers(std::mt19937& random, std::size_t count, float deviation,
                                        DType storage) {
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> x(count);
  for (float& value : x) value = RoundTo(storage, normal(random));
  return x;
}

// Keys with a bias per channel and a size per token, as models have them; queries that lean one
// way.
inline std::vector<HeadData> RandomHeads(const LayerSpec& spec, unsigned seed, int context,
                                         int num_queries) {
  std::mt19937 random(seed);
  std::vector<HeadData> heads(spec.kv_heads);
  const std::vector<float> sizes = RandomNumbers(random, kPageTokens + context, 0.3F, spec.storage);
  for (HeadData& head : heads) {
    const std::size_t dim = spec.key_dim;
    const std::vector<float> bias = RandomNumbers(random, dim, 2, spec.storage);
    head.direction = RandomNumbers(random, dim, 1, DType::kBF16);
    double squares = 0;
    for (const float x : head.direction) squares += static_cast<double>(x) * x;
    for (float& x : head.direction) x = static_cast<float>(x / std::sqrt(squares));
    head.keys = RandomNumbers(random, kPageTokens * dim, 1, spec.storage);
    head.context = RandomNumbers(random, context * dim, 1, spec.storage);
    const auto shape = [&](float& x, std::size_t t, std::size_t c) {
      x = RoundTo(spec.storage, (x + bias[c]) * std::exp2(sizes[t]));
    };
    for (std::size_t i = 0; i < head.keys.size(); ++i) shape(head.keys[i], i / dim, i % dim);
    for (std::size_t i = 0; i < head.context.size(); ++i) {
      shape(head.context[i], kPageTokens + i / dim, i % dim);
    }
    head.values = RandomNumbers(random, static_cast<std::size_t>(kPageTokens) * spec.value_dim, 1,
                                spec.storage);
    head.queries = RandomNumbers(random, num_queries * dim, 1, spec.storage);
    for (std::size_t i = 0; i < head.queries.size(); ++i) {
      const float lean = 3 * head.direction[i % dim];
      head.queries[i] = RoundTo(spec.storage, head.queries[i] + lean);
    }
  }
  return heads;
}

struct SealedPage {
  explicit SealedPage(const LayerSpec& spec) : bytes(spec), heads(spec.kv_heads) {}

  PageBytes bytes;
  std::vector<SealedHead> heads;
  float imbalance = 0;
};

// Writes every byte of a page.
inline SealedPage& SealOnto(const LayerSpec& spec, const std::vector<HeadData>& heads,
                            SealedPage& page) {
  std::deque<HeadInput> inputs;
  std::vector<double> sums(static_cast<std::size_t>(spec.kv_heads) * kPageTokens);
  for (int head = 0; head < spec.kv_heads; ++head) {
    const HeadTokens& tokens = inputs.emplace_back(spec, heads[head]).tokens();
    SumSquares(tokens.keys, kPageTokens, &sums[head * kPageTokens]);
  }
  page.imbalance = WritePageStart(spec, sums.data(), page.bytes.data());
  // Backwards, since the order must not matter.
  for (int head = spec.kv_heads - 1; head >= 0; --head) {
    page.heads[head] = EncodeHead(spec, head, inputs[head].tokens(), page.bytes.data());
  }
  return page;
}

inline SealedPage Seal(const LayerSpec& spec, const std::vector<HeadData>& heads) {
  SealedPage page(spec);
  return SealOnto(spec, heads, page);
}

inline LayerSpec SmallSpec(int kv_heads, int key_dim, int value_dim) {
  return testing::MakeSpec(kv_heads, kv_heads, key_dim, value_dim);
}

inline void GivePlan(LayerSpec& spec, HeadPlan plan) {
  spec.codec.plan = PlanMode::kGiven;
  spec.given_plan.assign(spec.kv_heads, plan);
}

inline void UseProfile(LayerSpec& spec, Profile profile) {
  const ProfileSettings settings = SettingsOf(profile);
  spec.codec = settings.codec;
  if (spec.codec.plan == PlanMode::kGiven) GivePlan(spec, settings.plan);
}

// |x - y| / |x|.
inline double RelativeDistance(const std::vector<float>& x, const std::vector<float>& y) {
  double error = 0;
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = static_cast<double>(x[i]) - y[i];
    error += d * d;
    squares += static_cast<double>(x[i]) * x[i];
  }
  return std::sqrt(error / squares);
}

}  // namespace oscarkv
