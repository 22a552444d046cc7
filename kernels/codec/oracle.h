// The codec and attention over again, slowly, in float64 and by the definitions: what every backend
// is measured against. Shares no code with the rest of the codec: Hadamard matrices are written
// out, pages are read and encoded bit by bit, the paper's order of operations is kept (rotation
// first, then token norms). Used by tests only.
//
// Thread-safe: free functions on values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/api/layer_spec.h"
#include "kernels/api/page_layout.h"

namespace oscarkv::oracle {

// H of order dim (kernels/codec/hadamard.h), row-major.
std::vector<double> HadamardMatrix(int dim);
// Each row of x[rows][dim] times H, or times its transpose.
void RotateRows(std::vector<double>& x, int dim, bool back);

// Rounded to nearest even; fp16 saturates at +-65504.
double RoundToFP16(double x);
double RoundToBF16(double x);
// The value of a 16-bit element.
double Value16(DType dtype, std::uint16_t bits);

// Tokens as attention sees them: keys [tokens][kv_heads][key_dim], values alike.
struct Tokens {
  std::vector<double> keys;
  std::vector<double> values;
};

// Appends `more` to `tokens`.
void Extend(Tokens& tokens, const Tokens& more);

// Groups quantized: code c of group g decodes to scale * c + zero.
struct Quantized {
  std::vector<int> codes;
  std::vector<double> scales;
  std::vector<double> zeros;
};

// What a page holds of one kv head. Sides of 16 bits have empty `keys` or `values`.
struct PageHead {
  bool rotated = false;
  bool has_residual = false;
  Quantized keys;              // codes [kPageTokens][key_dim], parameters [key_groups][key_dim]
  Quantized values;            // codes [kPageTokens][value_dim], parameters
                               // [kPageTokens][value_groups]
  std::vector<double> norms;   // [kPageTokens], 1 without scaling
  std::vector<int> residuals;  // [kPageTokens]
  double residual_step = 0;
  std::vector<double> raw_keys;  // 16 bits: [kPageTokens][key_dim]
  std::vector<double> raw_values;
};

// Whether pages hold token norms.
bool HasNorms(const LayerSpec& spec);

PageHead ReadPageHead(const LayerSpec& spec, const std::byte* page, int head);

// Encodes one kv head of `page` (kPageTokens tokens of all kv heads). `direction`: [key_dim], or
// null for no residual.
PageHead EncodePageHead(const LayerSpec& spec, const Tokens& page, int head, HeadPlan plan,
                        const float* direction);

// Undoes an encoding: keys [kPageTokens][key_dim], values [kPageTokens][value_dim].
// `direction` is read if the page has residuals.
void DecodePageHead(const LayerSpec& spec, const PageHead& head, const float* direction,
                    std::vector<double>* keys, std::vector<double>* values);

// All kv heads of a page's bytes, decoded. `directions`: [kv_heads][key_dim] or null.
Tokens DecodePage(const LayerSpec& spec, const std::byte* page, const float* directions);

struct Attention {
  std::vector<double> outputs;       // [queries][query_heads][value_dim]
  std::vector<double> log_sum_exps;  // [queries][query_heads]
  std::vector<double> logits;        // [queries][query_heads][tokens], -inf: of a token not seen
};

struct AttentionRequest {
  const LayerSpec* spec = nullptr;
  const Tokens* tokens = nullptr;
  std::vector<std::int64_t> positions;  // of each token
  std::vector<double> queries;          // [queries][query_heads][key_dim]
  std::int64_t query_begin = 0;
  bool causal = true;
  bool count_sink_logits = true;
};

Attention Attend(const AttentionRequest& request);

}  // namespace oscarkv::oracle
