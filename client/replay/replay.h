// Plays a recording through a service and compares its attention with exact attention.
//
// Each layer is appended and attended to as if it were decoded one token at a time: a query at
// position p is asked when exactly the tokens 0 to p are there, and every page that would be sealed
// by then is. Queries go along at sampled positions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/recording/recording.h"

namespace oscarkv {

struct ReplayOptions {
  v1::Profile profile = v1::PROFILE_UNSPECIFIED;  // the server's default
  int positions = 64;                             // of each layer, see ReplayPositions
  // Called often; true: stop, delete the session and return CANCELLED.
  std::function<bool()> cancelled = [] { return false; };
  // Called before each position, and at the end, with how many of how many are done.
  std::function<void(int, int)> on_progress = [](int, int) {};
};

struct LayerReport {
  int layer = 0;
  std::int64_t tokens = 0;
  std::int64_t sealed_tokens = 0;
  std::int64_t sealed_values = 0;  // elements of keys and values in sealed pages
  std::int64_t page_bytes = 0;
  double bits_per_value = 0;  // of sealed pages alone; 0: nothing is sealed
  std::int64_t logical_bytes = 0;
  std::int64_t resident_bytes = 0;  // of all: pages, sinks, window, query samples
  // Frobenius norm of (output - exact) over that of exact; all positions and query heads.
  double output_relative_error = 0;
  double lse_max_abs_error = 0;
  double attend_p50_seconds = 0;  // of a step: one token appended and attended to, over the wire
};

struct ReplayReport {
  std::string model;
  v1::Profile profile = v1::PROFILE_UNSPECIFIED;
  v1::DataType storage_dtype = v1::DATA_TYPE_UNSPECIFIED;
  std::vector<LayerReport> layers;
  double bits_per_value = 0;  // bits of all sealed pages over all sealed values
  std::int64_t logical_bytes = 0;
  std::int64_t resident_bytes = 0;
  double memory_ratio = 0;           // logical over resident bytes
  double output_relative_error = 0;  // root mean square over layers
  double attend_p50_seconds = 0;     // over all layers
  // Keys and values before the first position compared, appended a page's tokens a message, by the
  // time that took, sealing included.
  double append_bytes_per_second = 0;
};

// FAILED_PRECONDITION where a layer has no queries to ask, or lacks its first tokens.
absl::Status CheckReplayable(const Recording& recording);

// Keeps to a session of its own, which it deletes in any case. As CheckReplayable.
absl::StatusOr<ReplayReport> Replay(Client& client, const Recording& recording,
                                    const ReplayOptions& options);

// In which 16-bit type a session keeps this recording: fp16 if all keys and values are F16, else
// bf16, to which F32 is rounded.
v1::DataType StorageOf(const Recording& recording);

}  // namespace oscarkv
