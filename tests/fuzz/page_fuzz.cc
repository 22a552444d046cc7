// Any bytes of the right length are a page that can be read, and what is sealed from any finite
// tokens comes back finite.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <vector>

#include "kernels/api/dtype.h"
#include "kernels/api/layer_spec.h"
#include "kernels/api/page_layout.h"
#include "kernels/codec/page_view.h"
#include "kernels/cpu/encode_steps.h"
#include "kernels/cpu/page_decode.h"
#include "kernels/cpu/page_encoder.h"
#include "tests/kernels/support/stored_rows.h"

namespace oscarkv {
namespace {

using cpu::EncodeHead;
using cpu::HeadTokens;
using cpu::SumSquares;
using cpu::WritePageStart;
using testing::StoredRows;

struct alignas(kPageAlignment) CacheLine {
  std::byte bytes[kPageAlignment];
};

// Deals out the input, over and over; zeros if there is none.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::uint8_t Next() { return size_ == 0 ? 0 : data_[next_++ % size_]; }
  template <typename T, std::size_t n>
  T OneOf(const T (&choices)[n]) {
    return choices[Next() % n];
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t next_ = 0;
};

LayerSpec AnySpec(Bytes& bytes) {
  constexpr int kDims[] = {64, 80, 96, 112, 128, 192, 256};
  constexpr int kBits[] = {2, 4, 16};
  LayerSpec spec;
  spec.kv_heads = 1 + bytes.Next() % 2;
  spec.query_heads = spec.kv_heads;
  spec.key_dim = bytes.OneOf(kDims);
  spec.value_dim = bytes.OneOf(kDims);
  spec.storage = bytes.Next() % 2 == 0 ? DType::kBF16 : DType::kFP16;
  spec.scale = 0.125F;
  spec.codec.key_bits = bytes.OneOf(kBits);
  spec.codec.value_bits = bytes.OneOf(kBits);
  spec.codec.key_group = bytes.Next() % 2 == 0 ? kSmallGroup : kPageTokens;
  spec.codec.value_group = bytes.Next() % 2 == 0 ? kSmallGroup : 0;
  spec.codec.value_fit = static_cast<Fit>(bytes.Next() % 2);
  spec.codec.scaling = static_cast<Scaling>(bytes.Next() % 3);
  spec.codec.residual = bytes.Next() % 2 == 0;
  spec.codec.value_rotation = static_cast<Rotation>(bytes.Next() % 2);
  return spec;
}

// Any finite numbers of the storage type. bf16 stays below 2^120: nearer to its end what is decoded
// may overflow, since a fit reaches a little past the range of what it was given.
std::vector<float> AnyNumbers(Bytes& bytes, const LayerSpec& spec, std::size_t count) {
  std::vector<float> x(count);
  for (float& value : x) {
    const int bits = bytes.Next() | bytes.Next() << 8;
    value = FromBits16(spec.storage, static_cast<std::uint16_t>(bits));
    if (!(std::abs(value) < std::ldexp(1.0F, 120))) value = 1;
  }
  return x;
}

void Read(const LayerSpec& spec, const std::byte* page, bool finite) {
  std::vector<float> direction(spec.key_dim, 0.0F);
  direction[0] = 1;
  const PageView view(spec, page);
  for (int i = 0; i < spec.kv_heads; ++i) {
    const HeadView head = view.Head(i);
    std::vector<float> keys(static_cast<std::size_t>(kPageTokens) * spec.key_dim);
    std::vector<float> values(static_cast<std::size_t>(kPageTokens) * spec.value_dim);
    cpu::DecodeKeys(spec, head, direction.data(), 0, kPageTokens, keys.data());
    cpu::DecodeValues(spec, head, 0, kPageTokens, values.data());
    if (!finite) continue;
    for (const std::vector<float>* numbers : {&keys, &values}) {
      if (!std::all_of(numbers->begin(), numbers->end(),
                       [](float x) { return std::isfinite(x); })) {
        std::abort();
      }
    }
  }
}

void RoundTrip(const LayerSpec& spec, Bytes& bytes, std::byte* page) {
  std::vector<float> direction(spec.key_dim, 0.0F);
  direction[0] = 1;
  std::deque<StoredRows> keys;
  std::vector<double> sums(static_cast<std::size_t>(spec.kv_heads) * kPageTokens);
  const auto any_rows = [&](int dim) {
    return StoredRows(spec.storage, dim,
                      AnyNumbers(bytes, spec, static_cast<std::size_t>(kPageTokens) * dim));
  };
  for (int head = 0; head < spec.kv_heads; ++head) {
    keys.push_back(any_rows(spec.key_dim));
    SumSquares(keys[head].rows(), kPageTokens, &sums[head * kPageTokens]);
  }
  WritePageStart(spec, sums.data(), page);
  for (int head = 0; head < spec.kv_heads; ++head) {
    const StoredRows values = any_rows(spec.value_dim);
    const auto queries = AnyNumbers(bytes, spec, 2 * static_cast<std::size_t>(spec.key_dim));
    HeadTokens tokens;
    tokens.keys = keys[head].rows();
    tokens.values = values.rows();
    tokens.context_keys = keys[0].rows();
    tokens.context = 3;
    tokens.queries = queries.data();
    tokens.num_queries = 2;
    tokens.direction = direction.data();
    EncodeHead(spec, head, tokens, page);
  }
}

}  // namespace
}  // namespace oscarkv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace oscarkv;
  Bytes bytes(data, size);
  const LayerSpec spec = AnySpec(bytes);
  const PageLayout layout(spec);
  std::vector<CacheLine> lines(layout.bytes / kPageAlignment);
  std::byte* const page = lines.data()->bytes;
  for (std::int64_t i = 0; i < layout.bytes; ++i) page[i] = static_cast<std::byte>(bytes.Next());
  Read(spec, page, false);
  RoundTrip(spec, bytes, page);
  Read(spec, page, true);
  return 0;
}
