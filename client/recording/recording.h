// Recordings: keys, values and, where they were recorded, queries that a real model computed, and
// what is needed to compute its attention again. tests/data/README.md describes the format.
//
// Thread-safety: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/recording/safetensors.h"
#include "kernels/api/dtype.h"

namespace oscarkv {

// A tensor [tokens, heads, dim] of a recording; its bytes belong to the recording.
struct RecordedTensor {
  DType dtype = DType::kFP32;
  std::int64_t tokens = 0;
  int heads = 0;
  int dim = 0;
  std::span<const std::byte> bytes;  // packed, any alignment

  std::size_t row_bytes() const { return SizeOf(dtype) * heads * dim; }  // of one token
};

struct RecordedLayer {
  int layer = 0;
  std::int64_t begin = 0;                      // position of the first token; > 0: no earlier ones
  double scale = 0;                            // logit = scale * (q . k)
  std::optional<std::int64_t> sliding_window;  // a query at p sees (p - sliding_window, p]
  std::optional<double> softcap;
  std::vector<float> sink_logits;  // [query_heads], or empty
  RecordedTensor key;              // after RoPE
  RecordedTensor value;
  RecordedTensor query;  // after RoPE; no tokens where the recording has no queries

  std::int64_t tokens() const { return key.tokens; }
  bool has_queries() const { return query.tokens > 0; }
};

class Recording {
 public:
  // DATA_LOSS if the file is not a recording, with what is wrong; UNIMPLEMENTED if it is of a later
  // version; NOT_FOUND and the like if it cannot be opened.
  static absl::StatusOr<Recording> Open(const std::string& path);

  const std::string& model() const { return model_; }
  const std::string& origin() const { return origin_; }
  const std::string& license() const { return license_; }
  // At least one, in the order of their ids.
  const std::vector<RecordedLayer>& layers() const { return layers_; }

 private:
  explicit Recording(SafeTensorsFile file) : file_(std::move(file)) {}
  absl::Status Parse();

  SafeTensorsFile file_;
  std::string model_;
  std::string origin_;
  std::string license_;
  std::vector<RecordedLayer> layers_;
};

}  // namespace oscarkv
