#include "kernels/cpu/rotate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rotate.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/rotate-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::cpu::HWY_NAMESPACE {

void RotateRowsOfTarget(float* x, int rows, int dim, bool back) {
  RotateRowsOf(x, rows, dim, back);
}

}  // namespace oscarkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::cpu {

HWY_EXPORT(RotateRowsOfTarget);

void RotateRows(float* x, int rows, int dim) {
  HWY_DYNAMIC_DISPATCH(RotateRowsOfTarget)(x, rows, dim, /*back=*/false);
}

void RotateRowsBack(float* x, int rows, int dim) {
  HWY_DYNAMIC_DISPATCH(RotateRowsOfTarget)(x, rows, dim, /*back=*/true);
}

}  // namespace oscarkv::cpu
#endif  // HWY_ONCE
