#include "tests/bench/bf16_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace oscarkv::bench {
namespace {

constexpr float kLog2E = 1.44269504f;
// Units of work for each thread: enough that no thread waits long for the last one.
constexpr int kUnitsPerThread = 8;
// Less is not worth a unit: 512 tokens of keys and values of width 128 are read in about 5 us.
constexpr std::int64_t kLeastPart = 512;
// Queries that share a packed block of keys and values.
constexpr int kPrefillTile = kPrefillMaxRows;
static_assert(kPrefillTile % kPrefillRows == 0);

}  // namespace

const char* WhyUnsupported(const AttentionShape& shape) {
  const int group = shape.kv_heads > 0 ? shape.group() : 0;
  if (group != 1 && group != 2 && group != 4 && group != 8 && group != 16) {
    return "query heads per kv head must be 1, 2, 4, 8 or 16";
  }
  if (shape.query_heads % shape.kv_heads != 0) return "kv heads must divide query heads";
  if (shape.head_dim != 64 && shape.head_dim != 128 && shape.head_dim != 256) {
    return "head_dim must be 64, 128 or 256";
  }
  if (shape.context <= 0 || shape.context % kPrefillBlock != 0) {
    return "context must be a multiple of 128";
  }
  if (shape.queries < 1 || shape.queries > shape.context) {
    return "queries must be from 1 to context";
  }
  return "";
}

BF16Attention::BF16Attention(cpu::Executor& executor, const AttentionShape& shape, float scale,
                             const BF16Kernels& kernels)
    : executor_(executor), shape_(shape), scale_(scale * kLog2E), kernels_(kernels) {
  if (shape_.queries > 1) return;
  const std::int64_t heads = std::int64_t{1} * shape_.batch * shape_.kv_heads;
  const std::int64_t units = std::int64_t{kUnitsPerThread} * executor_.threads();
  const std::int64_t wanted = std::max(shape_.context * heads / units, kLeastPart);
  part_tokens_ =
      (std::min(wanted, shape_.context) + kDecodeBlock - 1) / kDecodeBlock * kDecodeBlock;
  parts_ = (shape_.context + part_tokens_ - 1) / part_tokens_;
  const std::int64_t rows = heads * parts_ * shape_.group();
  part_outputs_.resize(rows * shape_.head_dim);
  part_maxima_.resize(rows);
  part_sums_.resize(rows);
}

void BF16Attention::Run(const std::uint16_t* keys, const std::uint16_t* values,
                        const std::uint16_t* queries, float* outputs) {
  if (shape_.queries == 1) {
    Decode(keys, values, queries, outputs);
  } else {
    Prefill(keys, values, queries, outputs);
  }
}

void BF16Attention::Decode(const std::uint16_t* keys, const std::uint16_t* values,
                           const std::uint16_t* queries, float* outputs) {
  const int group = shape_.group();
  const std::int64_t heads = std::int64_t{1} * shape_.batch * shape_.kv_heads;
  executor_.ParallelFor(heads * parts_, [&](std::int64_t i) {
    const std::int64_t head = i / parts_;
    const std::int64_t begin = i % parts_ * part_tokens_;
    const std::int64_t first = (head * shape_.context + begin) * shape_.head_dim;
    DecodeUnit unit;
    unit.keys = keys + first;
    unit.values = values + first;
    unit.tokens = std::min(part_tokens_, shape_.context - begin);
    unit.queries = queries + head * group * shape_.head_dim;
    unit.group = group;
    unit.head_dim = shape_.head_dim;
    unit.scale = scale_;
    unit.outputs = part_outputs_.data() + i * group * shape_.head_dim;
    unit.maxima = part_maxima_.data() + i * group;
    unit.sums = part_sums_.data() + i * group;
    kernels_.decode(unit);
  });
  for (std::int64_t head = 0; head < heads; ++head) MergeParts(head, outputs);
}

void BF16Attention::MergeParts(std::int64_t head, float* outputs) const {
  const int group = shape_.group();
  const int dim = shape_.head_dim;
  for (int g = 0; g < group; ++g) {
    float* const out = outputs + (head * group + g) * dim;
    const std::int64_t row = head * parts_ * group + g;
    float maximum = -std::numeric_limits<float>::infinity();
    for (std::int64_t p = 0; p < parts_; ++p) {
      maximum = std::max(maximum, part_maxima_[row + p * group]);
    }
    float sum = 0;
    std::fill(out, out + dim, 0.0f);
    for (std::int64_t p = 0; p < parts_; ++p) {
      const float factor = std::exp2(part_maxima_[row + p * group] - maximum);
      const float* const part = part_outputs_.data() + (row + p * group) * dim;
      sum += factor * part_sums_[row + p * group];
      for (int c = 0; c < dim; ++c) out[c] += factor * part[c];
    }
    for (int c = 0; c < dim; ++c) out[c] /= sum;
  }
}

void BF16Attention::Prefill(const std::uint16_t* keys, const std::uint16_t* values,
                            const std::uint16_t* queries, float* outputs) {
  const std::int64_t rows = std::int64_t{1} * shape_.queries * shape_.group();
  const std::int64_t tiles = (rows + kPrefillTile - 1) / kPrefillTile;
  executor_.ParallelFor(shape_.batch * shape_.kv_heads * tiles,
                        [&](std::int64_t i) { PrefillTile(i, keys, values, queries, outputs); });
}

// Rows of a kv head: its query heads at the first query token, then at the second, and so on. The
// last tile is filled up with rows that see one token.
void BF16Attention::PrefillTile(std::int64_t index, const std::uint16_t* keys,
                                const std::uint16_t* values, const std::uint16_t* queries,
                                float* outputs) const {
  const int group = shape_.group();
  const int dim = shape_.head_dim;
  const std::int64_t rows = std::int64_t{1} * shape_.queries * group;
  const std::int64_t tiles = (rows + kPrefillTile - 1) / kPrefillTile;
  const std::int64_t session = index / tiles / shape_.kv_heads;
  const std::int64_t kv_head = index / tiles % shape_.kv_heads;
  const std::int64_t first = index % tiles * kPrefillTile;
  const std::int64_t count = std::min<std::int64_t>(kPrefillTile, rows - first);
  const auto at = [&](std::int64_t row) {
    const std::int64_t token = session * shape_.queries + (first + row) / group;
    return (token * shape_.query_heads + kv_head * group + (first + row) % group) * dim;
  };

  alignas(64) std::uint16_t tile_queries[kPrefillTile * 256] = {};
  std::int64_t positions[kPrefillTile] = {};
  std::vector<float> tile_outputs(std::size_t{kPrefillTile} * dim);
  for (std::int64_t row = 0; row < count; ++row) {
    std::memcpy(tile_queries + row * dim, queries + at(row), 2 * dim);
    positions[row] = shape_.context - shape_.queries + (first + row) / group;
  }
  PrefillUnit unit;
  unit.keys = keys + (session * shape_.kv_heads + kv_head) * shape_.context * dim;
  unit.values = values + (session * shape_.kv_heads + kv_head) * shape_.context * dim;
  unit.tokens = (positions[count - 1] + kPrefillBlock) / kPrefillBlock * kPrefillBlock;
  unit.queries = tile_queries;
  unit.positions = positions;
  unit.rows = static_cast<int>((count + kPrefillRows - 1) / kPrefillRows * kPrefillRows);
  unit.head_dim = dim;
  unit.scale = scale_;
  unit.outputs = tile_outputs.data();
  kernels_.prefill(unit);
  for (std::int64_t row = 0; row < count; ++row) {
    std::memcpy(outputs + at(row), tile_outputs.data() + row * dim, sizeof(float) * dim);
  }
}

}  // namespace oscarkv::bench
