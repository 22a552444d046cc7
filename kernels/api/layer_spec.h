// What is fixed for one layer of a session: its shape, its codec, its attention.
//
// Words: a *page* is kPageTokens consecutive tokens, quantized and immutable. The *window* is the
// newest tokens, in 16 bits; the *sinks* are the first few, in 16 bits.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/api/dtype.h"

namespace oscarkv {

inline constexpr int kPageTokens = 128;
inline constexpr int kWindowBlockTokens = 32;
inline constexpr int kSmallGroup = 32;  // tokens (keys) or channels (values) of a small group
inline constexpr int kMaxQueryHeadsPerKvHead = 16;

// Widths that a key or a value may have, ascending.
inline constexpr std::array kHeadDims = {64, 80, 96, 112, 128, 192, 256};

// How scale and zero of a group are found (kernels/cpu/affine_fit.h).
enum class Fit : std::uint8_t { kVariance, kMinMax };

// Hadamard rotation of a head's channels (kernels/codec/hadamard.h), or none.
enum class Rotation : std::uint8_t { kHadamard, kNone };

// Omni-token scaling (OScaR, section 3.3): which values share a token's norm.
enum class Scaling : std::uint8_t {
  kNone,     // no norms
  kJoint,    // one norm per token over all kv heads
  kPerHead,  // one norm per token and kv head, as tensor-parallel shards need it
};

// Who chooses rotation and fit of keys.
enum class PlanMode : std::uint8_t {
  kAuto,   // each page and kv head, by recent queries (kernels/cpu/seal_choice.h)
  kGiven,  // LayerSpec::given_plan
};

struct HeadPlan {
  Rotation rotation = Rotation::kHadamard;
  Fit fit = Fit::kVariance;

  friend bool operator==(const HeadPlan&, const HeadPlan&) = default;
};

struct CodecSpec {
  int key_bits = 2;    // 2, 4 or 16; 16: stored as sent, no norms, no rotation, no residual
  int value_bits = 2;  // 2, 4 or 16; 16: stored as sent
  int key_group = kPageTokens;  // tokens that share a channel's scale and zero: 32 or kPageTokens
  int value_group = 0;          // channels that share a token's scale and zero: 32, or 0 for all
  Fit value_fit = Fit::kVariance;
  Scaling scaling = Scaling::kJoint;
  PlanMode plan = PlanMode::kAuto;
  bool residual = true;  // keep the error of keys along one direction per kv head, in int8
  Rotation value_rotation = Rotation::kHadamard;  // kNone also for values that the worker rotated
  int window = 128;                               // tokens kept in 16 bits at least, >= 1
  int sinks = 4;                                  // first tokens kept in 16 bits, >= 0

  friend bool operator==(const CodecSpec&, const CodecSpec&) = default;
};

struct LayerSpec {
  int layer = 0;  // global layer id of the model
  int query_heads = 0;
  int kv_heads = 0;
  int key_dim = 0;               // one of kHeadDims
  int value_dim = 0;             // likewise
  DType storage = DType::kBF16;  // kBF16 or kFP16: sinks, window, 16-bit sides, query samples

  float scale = 0;                  // logit = scale * (q . k)
  float softcap = 0;                // > 0: logit = softcap * tanh(logit / softcap), after scale
  std::int64_t sliding_window = 0;  // > 0: position p sees positions (p - sliding_window, p]
  std::vector<float> sink_logits;   // learned sinks: [query_heads] or empty

  CodecSpec codec;
  std::vector<HeadPlan> given_plan;     // [kv_heads] under kGiven, else empty
  std::vector<float> given_directions;  // [kv_heads][key_dim] unit vectors, or empty

  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;

  int queries_per_kv_head() const { return query_heads / kv_heads; }
  bool keys_are_coded() const { return codec.key_bits < 16; }
  bool values_are_coded() const { return codec.value_bits < 16; }
  bool has_residual() const { return codec.residual && keys_are_coded(); }
  int value_group_channels() const {
    return codec.value_group == 0 ? value_dim : codec.value_group;
  }
  // A layer whose queries never look past the window is never sealed.
  bool seals() const { return sliding_window == 0 || sliding_window > codec.window; }
  // Queries at positions that are multiples of this are sampled for the choice of key plans.
  int query_sample_stride() const { return 8 * queries_per_kv_head(); }
  // Logical bytes of one token: keys and values of all kv heads at 16 bits.
  std::int64_t logical_bytes_per_token() const {
    return 2 * static_cast<std::int64_t>(kv_heads) * (key_dim + value_dim);
  }
};

}  // namespace oscarkv
