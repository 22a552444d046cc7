// Rotation by Hadamard matrices (kernels/codec/hadamard.h) at the speed of the processor: the
// additions in the order given there, so that the bits are the same on every instruction set.
#pragma once

namespace oscarkv::cpu {

// Each row of x[rows][dim] times H, or times its transpose, in place. REQUIRES: IsHeadDim(dim).
void RotateRows(float* x, int rows, int dim);
void RotateRowsBack(float* x, int rows, int dim);

}  // namespace oscarkv::cpu
