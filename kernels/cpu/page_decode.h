// Tokens of a page decoded to fp32 or to 16 bits, as attention sees them, on every instruction set
// to the same bits. Any bytes of the right length can be read without harm; nonsense decodes to
// nonsense.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/layer_spec.h"
#include "kernels/codec/page_view.h"

namespace oscarkv::cpu {

// keys[tokens][key_dim]: tokens [begin, begin + tokens) of a head. Codes become scale * code + zero
// and their rotation is undone; then they are multiplied by head.key_factor and by their norms (in
// this order, so that the rotation's sums cannot overflow), and the residual is added. `direction`:
// the head's residual direction; read if head.has_residual.
void DecodeKeys(const LayerSpec& spec, const HeadView& head, const float* direction, int begin,
                int tokens, float* keys);

// values[tokens][value_dim]: the same for values; the rotation is undone unless
// spec.codec.value_rotation is kNone.
void DecodeValues(const LayerSpec& spec, const HeadView& head, int begin, int tokens,
                  float* values);

// The same rounded to nearest even in spec.storage, token t at keys + t * stride; beyond the
// largest finite number to that: decoded numbers may lie beyond those that were stored. Sides that
// are not coded are copied.
void ReadKeys(const LayerSpec& spec, const HeadView& head, const float* direction, int begin,
              int tokens, std::ptrdiff_t stride, std::uint16_t* keys);
void ReadValues(const LayerSpec& spec, const HeadView& head, int begin, int tokens,
                std::ptrdiff_t stride, std::uint16_t* values);

}  // namespace oscarkv::cpu
