// Reads pages: where the parts of a head are, and tokens decoded to fp32.
//
// Any bytes of the right length can be read without harm; nonsense decodes to nonsense.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/layer_spec.h"
#include "kernels/api/page_layout.h"

namespace oscarkv {

// One kv head of a page. Pointers are null where the layer's codec has no such part.
struct HeadView {
  bool keys_rotated;
  bool has_residual;
  float key_factor;  // 2^key_exponent: scales and zeros are their fp16 fields times this
  float value_factor;
  float residual_step;  // c = residual_step * residuals[token]

  const std::byte* key_codes;      // 16 bits: the stored keys [kPageTokens][key_dim]
  const AffineFP16* key_params;    // [key_groups][key_dim]
  const std::int8_t* residuals;    // [kPageTokens]
  const std::byte* value_codes;    // 16 bits: the stored values [kPageTokens][value_dim]
  const AffineFP16* value_params;  // [value_groups][kPageTokens]
  const std::uint16_t* norms;      // bf16 [kPageTokens]; of the page under Scaling::kJoint
};

// Thread-safe. The page's bytes must outlive it.
class PageView {
 public:
  // `page`: layout().bytes bytes, 64-byte aligned. `layout`: that of `spec`.
  PageView(const LayerSpec& spec, const std::byte* page) : PageView(spec, PageLayout(spec), page) {}
  PageView(const LayerSpec& spec, const PageLayout& layout, const std::byte* page)
      : spec_(&spec), layout_(layout), page_(page) {}

  const PageLayout& layout() const { return layout_; }
  HeadView Head(int head) const;

 private:
  const LayerSpec* spec_;
  PageLayout layout_;
  const std::byte* page_;
};

// What decoding does to keys[tokens][dim] once they are scale * code + zero: undoes the rotation,
// then multiplies by `factor` and by norms[token] (bf16; null: no norms). The rotation comes first,
// so that its sums cannot overflow.
void RestoreKeys(bool rotated, float factor, const std::uint16_t* norms, int tokens, int dim,
                 float* keys);

// Tokens [begin, begin + tokens) of a head as attention sees them: keys with norm, rotation undone
// and residual, [tokens][key_dim]. `direction`: the head's residual direction; read if
// head.has_residual.
void DecodeKeys(const LayerSpec& spec, const HeadView& head, const float* direction, int begin,
                int tokens, float* keys);

// The same for values, rotation undone unless spec.codec.value_rotation is kNone:
// [tokens][value_dim].
void DecodeValues(const LayerSpec& spec, const HeadView& head, int begin, int tokens,
                  float* values);

}  // namespace oscarkv
