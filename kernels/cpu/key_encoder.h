// Encodes the keys of one page and kv head: under one plan, or under the best of several.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/api/layer_spec.h"
#include "kernels/api/page_layout.h"
#include "kernels/codec/residual.h"
#include "kernels/cpu/code_logits.h"
#include "kernels/cpu/encode_steps.h"
#include "kernels/cpu/page_encoder.h"
#include "kernels/cpu/scratch.h"

namespace oscarkv::cpu {

// The keys of a page and head under one plan.
struct CodedKeys {
  HeadPlan plan;
  int exponent = 0;
  int group = kPageTokens;      // tokens that share params
  Scratch<AffineFP16> params;   // [key_groups][key_dim]
  Scratch<std::uint8_t> codes;  // [kPageTokens][key_dim]
  ResidualScale residual_scale;
  Scratch<std::int8_t> residuals;  // [kPageTokens], or empty if none are kept
  float error = 0;  // |k - k^| / |k| over all keys, residual included; 0 if k is zero

  KeyCodes Codes() const {
    return {.dim = static_cast<int>(codes.size()) / kPageTokens,
            .group = group,
            .params = params.data(),
            .codes = codes.data()};
  }
};

// Thread-compatible. The arguments must outlive it. Invariant: plain_ and rotated_, once set, are
// the keys over their norms, as they stand and rotated.
class KeyEncoder {
 public:
  // `norms`: bf16 [kPageTokens], or null. REQUIRES: spec.keys_are_coded().
  KeyEncoder(const LayerSpec& spec, const HeadTokens& tokens, const std::uint16_t* norms)
      : spec_(spec), tokens_(tokens), norms_(norms) {}

  CodedKeys Encode(HeadPlan plan);

  // Under kGiven the plan of `head`; under kAuto the first plan under which the attention of the
  // queries changes least (kernels/cpu/seal_choice.h), or rotated kVariance without queries.
  CodedKeys EncodeBest(int head);

 private:
  const Scaled& ScaledKeys(Rotation rotation);
  void Finish(const Scaled& scaled, CodedKeys& keys) const;

  const LayerSpec& spec_;
  const HeadTokens& tokens_;
  const std::uint16_t* norms_;
  std::optional<Scaled> plain_;
  std::optional<Scaled> rotated_;
};

}  // namespace oscarkv::cpu
