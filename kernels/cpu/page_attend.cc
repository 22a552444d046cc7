#include "kernels/cpu/page_attend.h"

#include <algorithm>
#include <cmath>

#include "kernels/codec/page_decoder.h"
#include "kernels/cpu/code_dots.h"
#include "kernels/cpu/int8_step.h"
#include "kernels/cpu/token_attend.h"

namespace oscarkv::cpu {
namespace {

// One page, kv head and query tile. Everything is sized for the widest head.
class PageAttend {
 public:
  PageAttend(const LayerMemory& layer, QueryTile& queries) : spec_(*layer.spec), queries_(queries) {
    if (!spec_.has_residual() || layer.directions == nullptr) return;
    const float* direction =
        layer.directions + static_cast<std::int64_t>(queries.kv_head()) * spec_.key_dim;
    for (int row = 0; row < queries.rows(); ++row) {
      query_residual_[row] = Dot(queries.plain() + row * spec_.key_dim, direction, spec_.key_dim);
    }
  }

  void Attend(const PageMemory& page, TileState& state) {
    const HeadView head = PageView(spec_, page.bytes).Head(queries_.kv_head());
    if (spec_.keys_are_coded()) {
      LogitsOfCodes(head);
    } else {
      DenseLogits(spec_, queries_, head.key_codes, kPageTokens, &logits_[0][0]);
    }
    for (int row = 0; row < queries_.rows(); ++row) {
      ApplySoftcap(spec_.softcap, kPageTokens, logits_[row]);
      state.CountLogits(row, queries_.Visible(row, page.begin, page.tokens), kPageTokens,
                        logits_[row]);
    }
    if (spec_.values_are_coded()) {
      AddCodedValues(head, state);
    } else {
      AddDenseValues(spec_, head.value_codes, kPageTokens, &logits_[0][0], state);
    }
  }

 private:
  void LogitsOfCodes(const HeadView& head);
  void AddCodedValues(const HeadView& head, TileState& state);
  // Quantizes weights_[row], one int8 step a row: weights_q_, steps_, biases_ (with the code's
  // middle times what rounding took away).
  void QuantizeWeights(int row, int count, int bits, float bias);

  const LayerSpec& spec_;
  QueryTile& queries_;
  float query_residual_[kTileRows] = {};

  alignas(64) float logits_[kTileRows][kPageTokens];  // then the softmax weights
  alignas(64) std::int8_t weights_q_[kTileRows][kMaxHeadDim];
  alignas(64) std::int32_t dots_[kTileRows][kMaxHeadDim];
  alignas(64) float scales_[kMaxHeadDim];
  alignas(64) float zeros_[kMaxHeadDim];
  alignas(64) float weights_[kMaxHeadDim];
  float steps_[kTileRows];
  float biases_[kTileRows];
};

// Splits params[count] into fp32 scales and zeros.
void ReadParams(const AffineFP16* params, int count, float factor, float* scales, float* zeros) {
  float interleaved[2 * kMaxHeadDim];
  ToFloats(DType::kFP16, params, 2 * static_cast<std::size_t>(count), interleaved);
  for (int i = 0; i < count; ++i) {
    scales[i] = interleaved[2 * i] * factor;
    zeros[i] = interleaved[2 * i + 1] * factor;
  }
}

void PageAttend::QuantizeWeights(int row, int count, int bits, float bias) {
  float rest = 0;
  steps_[row] = QuantizeToInt8(weights_, count, weights_q_[row], &rest);
  const float middle = static_cast<float>((1 << bits) - 1) / 2;
  biases_[row] = bias + middle * rest;
}

void PageAttend::LogitsOfCodes(const HeadView& head) {
  const int dim = spec_.key_dim;
  const int bits = spec_.codec.key_bits;
  const float* queries = head.keys_rotated ? queries_.rotated() : queries_.plain();
  const CodeMatrix codes{head.key_codes, bits, kPageTokens / kTileSide, dim / kTileSide};
  const int group_tiles = spec_.codec.key_group / kTileSide;
  for (int first = 0; first < codes.row_tiles; first += group_tiles) {
    ReadParams(head.key_params + first / group_tiles * dim, dim, head.key_factor, scales_, zeros_);
    for (int row = 0; row < queries_.rows(); ++row) {
      const float* q = queries + row * dim;
      for (int c = 0; c < dim; ++c) weights_[c] = q[c] * scales_[c];
      QuantizeWeights(row, dim, bits, Dot(q, zeros_, dim));
    }
    CodeDots(codes, first, group_tiles, &weights_q_[0][0], kMaxHeadDim, queries_.rows(),
             &dots_[0][0], kMaxHeadDim);
    for (int row = 0; row < queries_.rows(); ++row) {
      for (int t = first * kTileSide; t < (first + group_tiles) * kTileSide; ++t) {
        logits_[row][t] = static_cast<float>(dots_[row][t]) * steps_[row] + biases_[row];
      }
    }
  }
  float norms[kPageTokens];
  if (head.norms != nullptr) ToFloats(DType::kBF16, head.norms, kPageTokens, norms);
  for (int row = 0; row < queries_.rows(); ++row) {
    if (head.norms != nullptr) {
      for (int t = 0; t < kPageTokens; ++t) logits_[row][t] *= norms[t];
    }
    if (head.has_residual) {
      const float factor = query_residual_[row] * head.residual_step;
      for (int t = 0; t < kPageTokens; ++t) {
        logits_[row][t] += factor * static_cast<float>(head.residuals[t]);
      }
    }
  }
}

void PageAttend::AddCodedValues(const HeadView& head, TileState& state) {
  const int dim = spec_.value_dim;
  const int bits = spec_.codec.value_bits;
  const CodeMatrix codes{head.value_codes, bits, dim / kTileSide, kPageTokens / kTileSide};
  const int group_tiles = spec_.value_group_channels() / kTileSide;
  for (int first = 0, group = 0; first < codes.row_tiles; first += group_tiles, ++group) {
    const int tiles = std::min(group_tiles, codes.row_tiles - first);
    ReadParams(head.value_params + group * kPageTokens, kPageTokens, head.value_factor, scales_,
               zeros_);
    for (int row = 0; row < queries_.rows(); ++row) {
      for (int t = 0; t < kPageTokens; ++t) weights_[t] = logits_[row][t] * scales_[t];
      QuantizeWeights(row, kPageTokens, bits, Dot(logits_[row], zeros_, kPageTokens));
    }
    CodeDots(codes, first, tiles, &weights_q_[0][0], kMaxHeadDim, queries_.rows(), &dots_[0][0],
             kMaxHeadDim);
    for (int row = 0; row < queries_.rows(); ++row) {
      float* out = state.out(row);
      for (int c = first * kTileSide; c < (first + tiles) * kTileSide; ++c) {
        out[c] += static_cast<float>(dots_[row][c]) * steps_[row] + biases_[row];
      }
    }
  }
}

}  // namespace

void AttendPages(const LayerMemory& layer, int first, int last, QueryTile& queries,
                 TileState& state) {
  PageAttend attend(layer, queries);
  for (int i = first; i < last; ++i) {
    const PageMemory& page = layer.pages[i];
    if (queries.SeesAny(page.begin, page.begin + page.tokens)) attend.Attend(page, state);
  }
}

}  // namespace oscarkv::cpu
