// BF16 attention by fp32 multiply-add, for processors without dpbf16: one body for all targets.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/bf16_multiply_add.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/bench/bf16_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace oscarkv::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kMaxLanes = 16;
using Floats = hn::CappedTag<float, kMaxLanes>;
using Vector = hn::Vec<Floats>;

// Bf16 is the upper half of fp32.
HWY_INLINE Vector LoadBF16(Floats d, const std::uint16_t* p) {
  const hn::Rebind<std::uint16_t, Floats> narrow;
  const hn::Rebind<std::uint32_t, Floats> wide;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(narrow, p))));
}

// 2^x for x <= 0, to about 2e-7; 0 below -126.
HWY_INLINE Vector Exp2(Floats d, Vector x) {
  const hn::RebindToSigned<Floats> integers;
  const Vector least = hn::Set(d, -126.0f);
  const auto tiny = hn::Lt(x, least);
  const Vector clamped = hn::Max(x, least);
  const Vector whole = hn::Round(clamped);
  const Vector y = hn::Sub(clamped, whole);
  Vector p = hn::Set(d, 1.5403530e-4f);
  p = hn::MulAdd(p, y, hn::Set(d, 1.3333558e-3f));
  p = hn::MulAdd(p, y, hn::Set(d, 9.6181291e-3f));
  p = hn::MulAdd(p, y, hn::Set(d, 5.5504109e-2f));
  p = hn::MulAdd(p, y, hn::Set(d, 2.4022651e-1f));
  p = hn::MulAdd(p, y, hn::Set(d, 6.9314718e-1f));
  p = hn::MulAdd(p, y, hn::Set(d, 1.0f));
  const auto exponent =
      hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(integers, whole), hn::Set(integers, 127)));
  return hn::IfThenZeroElse(tiny, hn::Mul(p, hn::BitCast(d, exponent)));
}

// One row's online softmax.
struct Row {
  float maximum = -std::numeric_limits<float>::infinity();
  float sum = 0;

  // logits[0..count) -> weights; outputs[0..dim) are brought to the new maximum.
  HWY_INLINE void Add(Floats d, float* logits, int count, float scale, float* outputs, int dim) {
    const int lanes = static_cast<int>(hn::Lanes(d));
    const Vector factor = hn::Set(d, scale);
    Vector most = hn::Set(d, maximum);
    for (int j = 0; j < count; j += lanes) {
      most = hn::Max(most, hn::Mul(hn::Load(d, logits + j), factor));
    }
    const float now = hn::GetLane(hn::MaxOfLanes(d, most));
    if (now > maximum) {
      const float shrink = std::exp2(maximum - now);
      maximum = now;
      sum *= shrink;
      for (int c = 0; c < dim; c += lanes) {
        hn::StoreU(hn::Mul(hn::LoadU(d, outputs + c), hn::Set(d, shrink)), d, outputs + c);
      }
    }
    Vector total = hn::Zero(d);
    for (int j = 0; j < count; j += lanes) {
      const Vector x = hn::Mul(hn::Load(d, logits + j), factor);
      const Vector p = Exp2(d, hn::Sub(x, hn::Set(d, maximum)));
      hn::Store(p, d, logits + j);
      total = hn::Add(total, p);
    }
    sum += hn::GetLane(hn::SumOfLanes(d, total));
  }
};

constexpr int kHeadsAtATime = 4;

// Into L2: a block ahead is too much for L1.
HWY_INLINE void PrefetchRow(const std::uint16_t* row, int elements) {
  for (int c = 0; c < elements; c += 32) __builtin_prefetch(row + c, 0, 2);
}

// Logits of `heads` query heads, fp32 [heads][dim], over a block of keys.
HWY_INLINE void DecodeLogits(Floats d, const std::uint16_t* keys, int dim, const float* queries,
                             int heads, float* logits) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int t = 0; t < kDecodeBlock; t += 2) {
    const std::uint16_t* const key = keys + t * dim;
    Vector first[kHeadsAtATime], second[kHeadsAtATime];
    for (int h = 0; h < kHeadsAtATime; ++h) first[h] = second[h] = hn::Zero(d);
    for (int c = 0; c < dim; c += lanes) {
      const Vector k0 = LoadBF16(d, key + c);
      const Vector k1 = LoadBF16(d, key + dim + c);
      for (int h = 0; h < kHeadsAtATime; ++h) {
        if (h == heads) break;
        const Vector q = hn::Load(d, queries + h * dim + c);
        first[h] = hn::MulAdd(q, k0, first[h]);
        second[h] = hn::MulAdd(q, k1, second[h]);
      }
    }
    for (int h = 0; h < heads; ++h) {
      logits[h * kDecodeBlock + t] = hn::GetLane(hn::SumOfLanes(d, first[h]));
      logits[h * kDecodeBlock + t + 1] = hn::GetLane(hn::SumOfLanes(d, second[h]));
    }
    PrefetchRow(key + kDecodeBlock * dim, 2 * dim);
  }
}

HWY_INLINE void DecodeOutputs(Floats d, const std::uint16_t* values, int dim, const float* weights,
                              int heads, float* outputs) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int c = 0; c < dim; c += 2 * lanes) {
    Vector low[kHeadsAtATime], high[kHeadsAtATime];
    for (int h = 0; h < kHeadsAtATime; ++h) low[h] = high[h] = hn::Zero(d);
    for (int t = 0; t < kDecodeBlock; ++t) {
      if (c == 0) PrefetchRow(values + (kDecodeBlock + t) * dim, dim);
      const Vector v0 = LoadBF16(d, values + t * dim + c);
      const Vector v1 = LoadBF16(d, values + t * dim + c + lanes);
      for (int h = 0; h < kHeadsAtATime; ++h) {
        if (h == heads) break;
        const Vector p = hn::Set(d, weights[h * kDecodeBlock + t]);
        low[h] = hn::MulAdd(p, v0, low[h]);
        high[h] = hn::MulAdd(p, v1, high[h]);
      }
    }
    for (int h = 0; h < heads; ++h) {
      float* const out = outputs + h * dim + c;
      hn::StoreU(hn::Add(hn::LoadU(d, out), low[h]), d, out);
      hn::StoreU(hn::Add(hn::LoadU(d, out + lanes), high[h]), d, out + lanes);
    }
  }
}

void Decode(const DecodeUnit& unit) {
  const Floats d;
  const int dim = unit.head_dim;
  alignas(64) float queries[16 * 256];
  alignas(64) float logits[kHeadsAtATime * kDecodeBlock];
  Row rows[16];
  for (int i = 0; i < unit.group * dim; i += static_cast<int>(hn::Lanes(d))) {
    hn::Store(LoadBF16(d, unit.queries + i), d, queries + i);
  }
  std::fill(unit.outputs, unit.outputs + unit.group * dim, 0.0f);
  for (std::int64_t begin = 0; begin < unit.tokens; begin += kDecodeBlock) {
    for (int head = 0; head < unit.group; head += kHeadsAtATime) {
      const int heads = std::min(kHeadsAtATime, unit.group - head);
      float* const outputs = unit.outputs + head * dim;
      DecodeLogits(d, unit.keys + begin * dim, dim, queries + head * dim, heads, logits);
      for (int h = 0; h < heads; ++h) {
        rows[head + h].Add(d, logits + h * kDecodeBlock, kDecodeBlock, unit.scale,
                           outputs + h * dim, dim);
      }
      DecodeOutputs(d, unit.values + begin * dim, dim, logits, heads, outputs);
    }
  }
  for (int g = 0; g < unit.group; ++g) {
    unit.maxima[g] = rows[g].maximum;
    unit.sums[g] = rows[g].sum;
  }
}

// out[r][j] += sum over i < depth of a[r][i] * b[i][j], for kPrefillRows rows and `width` columns.
HWY_INLINE void MultiplyRows(Floats d, const float* a, int a_stride, const float* b, int depth,
                             int width, float* out, int out_stride) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int j = 0; j < width; j += 2 * lanes) {
    Vector low[kPrefillRows], high[kPrefillRows];
    for (int r = 0; r < kPrefillRows; ++r) {
      low[r] = hn::Load(d, out + r * out_stride + j);
      high[r] = hn::Load(d, out + r * out_stride + j + lanes);
    }
    for (int i = 0; i < depth; ++i) {
      const Vector b0 = hn::Load(d, b + i * width + j);
      const Vector b1 = hn::Load(d, b + i * width + j + lanes);
      for (int r = 0; r < kPrefillRows; ++r) {
        const Vector x = hn::Set(d, a[r * a_stride + i]);
        low[r] = hn::MulAdd(x, b0, low[r]);
        high[r] = hn::MulAdd(x, b1, high[r]);
      }
    }
    for (int r = 0; r < kPrefillRows; ++r) {
      hn::Store(low[r], d, out + r * out_stride + j);
      hn::Store(high[r], d, out + r * out_stride + j + lanes);
    }
  }
}

void Prefill(const PrefillUnit& unit) {
  const Floats d;
  const int dim = unit.head_dim;
  const int lanes = static_cast<int>(hn::Lanes(d));
  alignas(64) static thread_local float keys[256 * kPrefillBlock];  // [channel][token]
  alignas(64) static thread_local float values[kPrefillBlock * 256];
  alignas(64) static thread_local float outputs[kPrefillMaxRows * 256];
  alignas(64) float queries[kPrefillRows * 256];
  alignas(64) float logits[kPrefillRows * kPrefillBlock];
  std::vector<Row> rows(unit.rows);
  std::fill(outputs, outputs + unit.rows * dim, 0.0f);
  for (std::int64_t begin = 0; begin < unit.tokens; begin += kPrefillBlock) {
    for (int t = 0; t < kPrefillBlock; ++t) {
      alignas(64) float key[256];
      for (int c = 0; c < dim; c += lanes) {
        hn::Store(LoadBF16(d, unit.keys + (begin + t) * dim + c), d, key + c);
        hn::Store(LoadBF16(d, unit.values + (begin + t) * dim + c), d, values + t * dim + c);
      }
      for (int c = 0; c < dim; ++c) keys[c * kPrefillBlock + t] = key[c];
    }
    for (int row = 0; row < unit.rows; row += kPrefillRows) {
      for (int i = 0; i < kPrefillRows * dim; i += lanes) {
        hn::Store(LoadBF16(d, unit.queries + row * dim + i), d, queries + i);
      }
      std::fill(logits, logits + kPrefillRows * kPrefillBlock, 0.0f);
      MultiplyRows(d, queries, dim, keys, dim, kPrefillBlock, logits, kPrefillBlock);
      for (int r = 0; r < kPrefillRows; ++r) {
        float* const x = logits + r * kPrefillBlock;
        for (std::int64_t t = std::max<std::int64_t>(0, unit.positions[row + r] + 1 - begin);
             t < kPrefillBlock; ++t) {
          x[t] = -std::numeric_limits<float>::infinity();
        }
        rows[row + r].Add(d, x, kPrefillBlock, unit.scale, outputs + (row + r) * dim, dim);
      }
      MultiplyRows(d, logits, kPrefillBlock, values, kPrefillBlock, dim, outputs + row * dim, dim);
    }
  }
  for (int row = 0; row < unit.rows; ++row) {
    for (int c = 0; c < dim; ++c) {
      unit.outputs[row * dim + c] = outputs[row * dim + c] / rows[row].sum;
    }
  }
}

const char* Name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace oscarkv::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscarkv::bench {

HWY_EXPORT(Decode);
HWY_EXPORT(Prefill);
HWY_EXPORT(Name);

BF16Kernels MultiplyAddKernels() {
  return {HWY_DYNAMIC_DISPATCH(Name)(),
          [](const DecodeUnit& unit) {
            HWY_DYNAMIC_DISPATCH(Decode)
            (unit);
          },
          [](const PrefillUnit& unit) {
            HWY_DYNAMIC_DISPATCH(Prefill)
            (unit);
          }};
}

}  // namespace oscarkv::bench
#endif  // HWY_ONCE
