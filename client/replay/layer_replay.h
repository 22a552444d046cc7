// One layer of a replay; see client/replay/replay.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/recording/recording.h"
#include "client/replay/exact_attention.h"
#include "client/session_writer.h"

namespace oscarkv {

v1::DataType ToDataType(DType dtype);

// Thread-safety: none. REQUIRES: all references outlive it; the session's layer is empty, and
// nobody else appends to it.
class LayerReplay {
 public:
  LayerReplay(Client& client, const v1::Session& session, const RecordedLayer& layer,
              std::span<const std::int64_t> positions);

  // Appends all tokens and attends at each position on the way. Calls `before_step` before each
  // position; an error from it ends the run and is returned. REQUIRES: called once.
  absl::Status Run(absl::FunctionRef<absl::Status()> before_step);

  double output_relative_error() const;
  double lse_max_abs_error() const { return lse_max_abs_error_; }
  const std::vector<absl::Duration>& attend_times() const { return attend_times_; }
  std::int64_t context_bytes() const { return context_bytes_; }
  absl::Duration context_time() const { return context_time_; }

 private:
  // Appends the context before the first position, in messages of a page's tokens.
  absl::Status AppendContext();
  // Appends up to the i-th position, attends there and compares.
  absl::Status Step(std::size_t i);
  // Appends the tokens from length_ on, so that there are `length`.
  absl::Status AppendUpTo(std::int64_t length);
  // Appends token `position` and asks its query.
  absl::StatusOr<v1::AttendResponse> Attend(std::int64_t position);
  absl::Status Compare(const v1::AttendResponse& response, const ExactOutput& exact);

  Client& client_;
  const v1::Session& session_;
  SessionWriter writer_;
  const RecordedLayer& layer_;
  // Of layer_, or fp32 of the buffers where its own types are not what the session takes.
  std::vector<float> key_floats_;
  std::vector<float> value_floats_;
  RecordedTensor key_;
  RecordedTensor value_;
  const std::vector<std::int64_t> positions_;
  const std::vector<ExactOutput> exact_;  // of positions_

  std::int64_t length_ = 0;
  std::int64_t context_bytes_ = 0;
  absl::Duration context_time_;
  std::vector<absl::Duration> attend_times_;
  double squared_error_ = 0;
  double squared_norm_ = 0;
  double lse_max_abs_error_ = 0;
};

}  // namespace oscarkv
