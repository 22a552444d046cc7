// What is left of a page's keys once they are coded, where they are coded: over their norms,
// rotated if their plan says so, and scaled.
#pragma once

#include "kernels/api/page_layout.h"
#include "kernels/cpu/code_logits.h"

namespace oscarkv::cpu {

// Of each token, with e = x * factor less what its codes decode to.
struct TokenErrors {
  float along[kPageTokens];    // e . direction; 0 without one
  float errors[kPageTokens];   // |e|^2
  float squares[kPageTokens];  // |x * factor|^2
};

// Of keys x[kPageTokens][keys.dim], times `factor`. `direction`: [keys.dim], rotated as they are;
// may be null. The same bits on every instruction set. Thread-safe.
void MeasureErrors(const float* x, float factor, const KeyCodes& keys, const float* direction,
                   TokenErrors* errors);

}  // namespace oscarkv::cpu
