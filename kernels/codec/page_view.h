// Reads pages: where the parts of a head are.
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

}  // namespace oscarkv
