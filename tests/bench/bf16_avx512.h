// Pieces that the dpbf16 kernels share. Only for files that are built for AVX512_BF16.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace oscarkv::bench {
namespace {

// Into L2: a block ahead is too much for L1, and loads would wait for its few fill buffers (on Zen
// 4 prefetching into L1 takes three times as long).
inline void Prefetch(const std::uint16_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

inline __m512 Dot(__m512 acc, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
}

// The bf16 values p[0], p[1], sixteen times.
inline __m512i BroadcastPair(const std::uint16_t* p) {
  int pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return _mm512_set1_epi32(pair);
}

inline __m512i ToBF16Vector(__m512 low, __m512 high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// 2^x to about 2e-7 (Taylor series of degree 6 in x log(2), |x| <= 1/2); 0 for -inf.
inline __m512 Exp2(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 y =
      _mm512_maskz_sub_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-1000.f), _CMP_GT_OQ), x, whole);
  __m512 p = _mm512_set1_ps(1.5403530e-4f);
  p = _mm512_fmadd_ps(p, y, _mm512_set1_ps(1.3333558e-3f));
  p = _mm512_fmadd_ps(p, y, _mm512_set1_ps(9.6181291e-3f));
  p = _mm512_fmadd_ps(p, y, _mm512_set1_ps(5.5504109e-2f));
  p = _mm512_fmadd_ps(p, y, _mm512_set1_ps(2.4022651e-1f));
  p = _mm512_fmadd_ps(p, y, _mm512_set1_ps(6.9314718e-1f));
  p = _mm512_fmadd_ps(p, y, _mm512_set1_ps(1.f));
  return _mm512_scalef_ps(p, whole);
}

// 32 channels as two vectors of unpacked pairs hold them -> in order.
inline void StoreInOrder(const float* unpacked, float* out) {
  const __m512 low = _mm512_load_ps(unpacked);
  const __m512 high = _mm512_load_ps(unpacked + 16);
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second =
      _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  _mm512_storeu_ps(out, _mm512_permutex2var_ps(low, first, high));
  _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(low, second, high));
}

}  // namespace
}  // namespace oscarkv::bench
