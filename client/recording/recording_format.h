// Names of the recording format (tests/data/README.md), for those who read and who write it.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/api/dtype.h"

namespace oscarkv {

inline constexpr char kRecordingFormat[] = "oscarkv-recording";
inline constexpr char kRecordingVersion[] = "1";

// Of the tensor "key", "value", "query" or "sink_logits" of a layer.
inline std::string TensorName(int layer, const char* what) {
  return absl::StrCat("layers.", layer, ".", what);
}

// As safetensors files name it.
constexpr const char* SafeTensorsName(DType dtype) {
  switch (dtype) {
    case DType::kFP16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kFP32:
      return "F32";
  }
  return "";
}

}  // namespace oscarkv
