// Where everything of a new recording lies in its file: known before the first token is, so that
// tokens can be written as they come.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/recording/recording.h"

namespace oscarkv {

struct RecordingOrigin {
  std::string model;  // not empty
  std::string origin;
  std::string license;
};

struct RecordingLayout {
  struct Layer {
    std::uint64_t key = 0;  // where its tensor begins in the file
    std::uint64_t value = 0;
  };

  std::string start;          // the first bytes of the file: the header, and all sink logits
  std::vector<Layer> layers;  // in the order in which they were given
  std::uint64_t bytes = 0;    // of the whole file
};

// Of a recording without queries. REQUIRES: at least one layer; keys and values have as many
// tokens, at least one; of `query` the heads are set and there are no tokens; no `bytes` are used.
RecordingLayout LayOutRecording(const RecordingOrigin& origin,
                                const std::vector<RecordedLayer>& layers);

}  // namespace oscarkv
