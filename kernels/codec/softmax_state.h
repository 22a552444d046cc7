// The algebra of partial attention: sealed pages, 16-bit tokens, work units and shards of a context
// all combine through SoftmaxState. For the host and for CUDA devices; floats only.
#pragma once

#include <cmath>
#include <limits>

#if defined(__CUDACC__)
#define OSCARKV_HOST_DEVICE __host__ __device__
#else
#define OSCARKV_HOST_DEVICE
#endif

namespace oscarkv {

// Softmax over some tokens, unnormalized: `sum` = sum_t exp(logit_t - max), and `out` (kept by the
// caller, because devices spread it over threads) = sum_t exp(logit_t - max) * value_t.
// Invariant: max == -inf iff no token has been counted; then sum == 0 and out == 0.
struct SoftmaxState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;

  OSCARKV_HOST_DEVICE bool empty() const { return !(max > LowestMax()); }

  // Makes `max` at least `logit`. Returns the factor by which the caller multiplies `out`.
  OSCARKV_HOST_DEVICE float Raise(float logit) {
    if (!(logit > max)) return 1;
    const float factor = max > LowestMax() ? std::exp(max - logit) : 0;
    max = logit;
    sum *= factor;
    return factor;
  }

  // Natural log of sum_t exp(logit_t); -inf if empty.
  OSCARKV_HOST_DEVICE float LogSumExp() const { return empty() ? max : max + std::log(sum); }

  OSCARKV_HOST_DEVICE static constexpr float LowestMax() {
    return -std::numeric_limits<float>::infinity();
  }
};

// Factors for the two `out`s of a merge: out = into * out_into + from * out_from.
struct MergeFactors {
  float into;
  float from;
};

// Counts the tokens of `from` in `into` too. Either may be empty.
OSCARKV_HOST_DEVICE inline MergeFactors Merge(SoftmaxState& into, const SoftmaxState& from) {
  if (from.empty()) return {1, 0};
  const float kept = into.Raise(from.max);
  const float added = std::exp(from.max - into.max);
  into.sum += added * from.sum;
  return {kept, added};
}

// The same with `out`s of `width` floats.
OSCARKV_HOST_DEVICE inline void Merge(SoftmaxState& into, float* into_out, const SoftmaxState& from,
                                      const float* from_out, int width) {
  if (from.empty()) return;
  const MergeFactors factors = Merge(into, from);
  for (int i = 0; i < width; ++i) {
    into_out[i] = factors.into * into_out[i] + factors.from * from_out[i];
  }
}

}  // namespace oscarkv
