#include "tests/bench/bf16_kernels.h"

#include "tests/bench/bf16_dot.h"

namespace oscarkv::bench {

BF16Kernels DotProductKernels() {
#if defined(OSCARKV_BENCH_DOT)
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq")) {
    return {"AVX512_BF16", DecodeByDot, PrefillByDot};
  }
#endif
  return {"none", nullptr, nullptr};
}

BF16Kernels BestKernels() {
  const BF16Kernels dot = DotProductKernels();
  return dot.decode != nullptr ? dot : MultiplyAddKernels();
}

}  // namespace oscarkv::bench
