#include "kernels/cpu/page_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/api/page_layout.h"
#include "kernels/codec/token_norm.h"
#include "kernels/cpu/affine_fit.h"
#include "kernels/cpu/encode_steps.h"
#include "kernels/cpu/key_encoder.h"
#include "kernels/cpu/scratch.h"

namespace oscarkv::cpu {
namespace {

// A side that is not coded: as it was sent.
void CopyRows(const TokenRows& rows, std::byte* out) {
  const std::size_t bytes = sizeof(std::uint16_t) * kWindowBlockTokens * rows.dim;
  for (int t = 0; t < kPageTokens; t += kWindowBlockTokens, out += bytes) {
    std::memcpy(out, rows.Row(t), bytes);
  }
}

void EncodeKeys(const LayerSpec& spec, int head, const HeadTokens& tokens,
                const std::uint16_t* norms, const PageLayout& layout, PageHeadHeader& header,
                std::byte* region, SealedHead& sealed) {
  if (!spec.keys_are_coded()) {
    CopyRows(tokens.keys, region + layout.key_codes);
    sealed.rotation = Rotation::kNone;
    return;
  }
  const CodedKeys keys = KeyEncoder(spec, tokens, norms).EncodeBest(head);
  PackCodes(keys.codes.data(), kPageTokens, spec.key_dim, spec.codec.key_bits,
            region + layout.key_codes);
  std::memcpy(region + layout.key_params, keys.params.data(),
              keys.params.size() * sizeof(AffineFP16));
  header.key_exponent = static_cast<std::int8_t>(keys.exponent);
  if (keys.plan.rotation == Rotation::kHadamard) header.flags |= kKeysRotated;
  if (!keys.residuals.empty()) {
    std::memcpy(region + layout.residuals, keys.residuals.data(), keys.residuals.size());
    header.flags |= kHasResidual;
    header.residual_step = keys.residual_scale.step;
    header.residual_exponent = keys.residual_scale.exponent;
  }
  sealed.rotation = keys.plan.rotation;
  sealed.fit = keys.plan.fit;
  sealed.key_error = keys.error;
}

void EncodeValues(const LayerSpec& spec, const HeadTokens& tokens, const PageLayout& layout,
                  PageHeadHeader& header, std::byte* region, SealedHead& sealed) {
  const int dim = spec.value_dim;
  if (!spec.values_are_coded()) {
    CopyRows(tokens.values, region + layout.value_codes);
    return;
  }
  const Scaled scaled =
      ScaleRows(tokens.values, nullptr, spec.codec.value_rotation == Rotation::kHadamard);
  Scratch<float> x(scaled.x.size());  // [dim][kPageTokens]
  TransposeRows(scaled.x.data(), kPageTokens, dim, x.data());
  Scratch<std::uint8_t> codes(x.size());
  FitSums sums;
  auto* const params = reinterpret_cast<AffineFP16*>(region + layout.value_params);
  const int group = spec.value_group_channels();
  for (int begin = 0; begin < dim; begin += group) {
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(begin) * kPageTokens;
    const int channels = std::min(group, dim - begin);
    AffineFP16* const of_group = params + begin / group * kPageTokens;
    const FitSums of_channels =
        FitGroups(&x[row], scaled.factor, channels, kPageTokens, spec.codec.value_bits,
                  spec.codec.value_fit, of_group, &codes[row]);
    sums.squares += of_channels.squares;
    sums.errors += of_channels.errors;
  }
  PackCodes(codes.data(), dim, kPageTokens, spec.codec.value_bits, region + layout.value_codes);
  header.value_exponent = static_cast<std::int8_t>(scaled.exponent);
  // Rotation and powers of two change both norms alike.
  sealed.value_error =
      sums.squares > 0 ? static_cast<float>(std::sqrt(sums.errors / sums.squares)) : 0.0F;
}

}  // namespace

bool HasNorms(const LayerSpec& spec) {
  return spec.keys_are_coded() && spec.codec.scaling != Scaling::kNone;
}

float WritePageStart(const LayerSpec& spec, const double* square_sums, std::byte* page) {
  const PageLayout layout(spec);
  std::memset(page, 0, static_cast<std::size_t>(layout.heads));
  const int heads_per_row = layout.norm_rows == 0 ? 0 : spec.kv_heads / layout.norm_rows;
  auto* const norms = reinterpret_cast<std::uint16_t*>(page + layout.norms);
  float imbalance = 1;
  for (int row = 0; row < layout.norm_rows; ++row) {
    std::uint16_t* const of_row = norms + row * kPageTokens;
    for (int t = 0; t < kPageTokens; ++t) {
      double sum = 0;
      for (int head = row * heads_per_row; head < (row + 1) * heads_per_row; ++head) {
        sum += square_sums[head * kPageTokens + t];
      }
      of_row[t] = TokenNorm(sum, static_cast<std::int64_t>(heads_per_row) * spec.key_dim);
    }
    imbalance = std::max(imbalance, NormImbalance(of_row, kPageTokens));
  }
  return imbalance;
}

SealedHead EncodeHead(const LayerSpec& spec, int head, const HeadTokens& tokens, std::byte* page) {
  const PageLayout layout(spec);
  std::byte* const region = page + layout.heads + layout.head_bytes * head;
  std::memset(region, 0, static_cast<std::size_t>(layout.head_bytes));
  const std::uint16_t* norms = nullptr;
  if (layout.norm_rows > 0) {
    norms = reinterpret_cast<const std::uint16_t*>(page + layout.norms) +
            (layout.norm_rows == 1 ? 0 : head * kPageTokens);
  }
  PageHeadHeader header = {};
  SealedHead sealed;
  EncodeKeys(spec, head, tokens, norms, layout, header, region, sealed);
  EncodeValues(spec, tokens, layout, header, region, sealed);
  std::memcpy(page + sizeof(header) * head, &header, sizeof(header));
  return sealed;
}

}  // namespace oscarkv::cpu
