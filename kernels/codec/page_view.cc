#include "kernels/codec/page_view.h"

#include <cstring>

#include "kernels/codec/residual.h"
#include "kernels/codec/scaled.h"

namespace oscarkv {

HeadView PageView::Head(int head) const {
  const std::byte* const region = page_ + layout_.heads + layout_.head_bytes * head;
  PageHeadHeader header;
  std::memcpy(&header, page_ + sizeof(header) * head, sizeof(header));
  HeadView view = {};
  if (spec_->keys_are_coded()) {
    view.keys_rotated = (header.flags & kKeysRotated) != 0;
    view.has_residual = spec_->has_residual() && (header.flags & kHasResidual) != 0;
    view.key_params = reinterpret_cast<const AffineFP16*>(region + layout_.key_params);
  }
  if (spec_->has_residual()) {
    view.residuals = reinterpret_cast<const std::int8_t*>(region + layout_.residuals);
  }
  if (spec_->values_are_coded()) {
    view.value_params = reinterpret_cast<const AffineFP16*>(region + layout_.value_params);
  }
  if (layout_.norm_rows > 0) {
    const int row = layout_.norm_rows == 1 ? 0 : head;
    view.norms = reinterpret_cast<const std::uint16_t*>(page_ + layout_.norms) + row * kPageTokens;
  }
  view.key_codes = region + layout_.key_codes;
  view.value_codes = region + layout_.value_codes;
  view.key_factor = PowerOfTwo(header.key_exponent);
  view.value_factor = PowerOfTwo(header.value_exponent);
  view.residual_step = ResidualScale{header.residual_step, header.residual_exponent}.Step();
  return view;
}

}  // namespace oscarkv
