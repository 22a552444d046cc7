// Reading of safetensors files (https://github.com/huggingface/safetensors, "Format"):
//
//     +-----------------+--------------------------------------------+----------------------+
//     | u64 n, little-  | n bytes of JSON: {"name": {"dtype": "F16", | the tensors' bytes,  |
//     | endian          |  "shape": [2, 3], "data_offsets": [0, 12]},| little-endian and    |
//     |                 |  ..., "__metadata__": {"key": "text"}}     | row-major            |
//     +-----------------+--------------------------------------------+----------------------+
//
// Offsets count from the end of the JSON. Tensors cover the data without gaps or overlaps.
//
// A file that breaks a rule is refused with DATA_LOSS and the rule; no content makes this code
// crash or read out of bounds. Exception: whoever shortens a file while it is mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace oscarkv {

struct SafeTensor {
  std::string dtype;  // as in the file: "F16", "BF16", "F32", ...
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // exactly those of shape and dtype; any alignment
};

// A file mapped into memory. Thread-safety: immutable.
class SafeTensorsFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED and the like if the file cannot be opened.
  static absl::StatusOr<SafeTensorsFile> Open(const std::string& path);

  // By name; their bytes are valid as long as this object, or one moved from it, exists.
  const std::map<std::string, SafeTensor, std::less<>>& tensors() const { return tensors_; }
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }

 private:
  class Mapping;

  SafeTensorsFile() = default;
  absl::Status Parse(std::span<const std::byte> file);

  std::shared_ptr<const Mapping> mapping_;
  std::map<std::string, SafeTensor, std::less<>> tensors_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

}  // namespace oscarkv
