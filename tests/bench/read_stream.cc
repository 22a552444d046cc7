#include "tests/bench/read_stream.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace oscarkv::bench {
namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kAhead = 4096;  // bytes between a prefetch and its load
constexpr std::int64_t kUnitsPerThread = 8;
constexpr std::int64_t kLeastUnit = 64 << 10;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) std::uint64_t SumAVX512(const std::byte* data,
                                                           std::int64_t bytes) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  std::int64_t i = 0;
  for (; i + 4 * kLine <= bytes; i += 4 * kLine) {
    const std::byte* const p = data + i;
    for (int j = 0; j < 4; ++j) {
      _mm_prefetch(reinterpret_cast<const char*>(p + kAhead + j * kLine), _MM_HINT_T1);
    }
    a = _mm512_add_epi64(a, _mm512_load_si512(p));
    b = _mm512_add_epi64(b, _mm512_load_si512(p + kLine));
    c = _mm512_add_epi64(c, _mm512_load_si512(p + 2 * kLine));
    d = _mm512_add_epi64(d, _mm512_load_si512(p + 3 * kLine));
  }
  for (; i < bytes; i += kLine) a = _mm512_add_epi64(a, _mm512_load_si512(data + i));
  a = _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d));
  return static_cast<std::uint64_t>(_mm512_reduce_add_epi64(a));
}
#endif

std::uint64_t SumPortable(const std::byte* data, std::int64_t bytes) {
  std::uint64_t sums[kLine / 8] = {};
  for (std::int64_t i = 0; i < bytes; i += kLine) {
    __builtin_prefetch(data + i + kAhead, 0, 2);
    std::uint64_t line[kLine / 8];
    std::memcpy(line, data + i, kLine);
    for (int j = 0; j < kLine / 8; ++j) sums[j] += line[j];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t s : sums) sum += s;
  return sum;
}

std::uint64_t Sum(const std::byte* data, std::int64_t bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return SumAVX512(data, bytes);
#endif
  return SumPortable(data, bytes);
}

}  // namespace

std::uint64_t ReadAll(cpu::Executor& executor, const std::byte* data, std::int64_t bytes) {
  const std::int64_t wanted = std::max(bytes / (kUnitsPerThread * executor.threads()), kLeastUnit);
  const std::int64_t unit = (wanted + kLine - 1) / kLine * kLine;
  std::atomic<std::uint64_t> sum = 0;
  executor.ParallelFor((bytes + unit - 1) / unit, [&](std::int64_t i) {
    sum += Sum(data + i * unit, std::min(unit, bytes - i * unit));
  });
  return sum;
}

}  // namespace oscarkv::bench
