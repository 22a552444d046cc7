// Append and attend in three steps, so that requests that arrive together can share the second:
// a request is checked, its items are applied (SessionStore), and its response is made.
//
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "oscarkv/v1/kv_cache.pb.h"
#include "server/queue/work.h"
#include "server/rpc/decode_batch.h"
#include "server/session/session_store.h"

namespace oscarkv {

// A request whose items have been checked. Points into the request, and an attend into the
// response too: both must outlive it, and neither may be changed before Encode.
class PreparedBatch {
 public:
  // Errors are of the request as a whole; what is wrong with an item is told by Encode.
  // RESOURCE_EXHAUSTED, REPLY_TOO_LARGE: what is applied must also be told, so a reply that may not
  // fit is refused before.
  static absl::StatusOr<PreparedBatch> Prepare(const SessionStore& store,
                                               std::int64_t max_message_bytes,
                                               const v1::AppendRequest& request,
                                               v1::AppendResponse& response);
  static absl::StatusOr<PreparedBatch> Prepare(const SessionStore& store,
                                               std::int64_t max_message_bytes,
                                               const v1::AttendRequest& request,
                                               v1::AttendResponse& response);

  // Those that may be applied: all that have not failed so far.
  std::span<BatchItem* const> passed() const { return passed_; }

  // As of the items that passed. Valid as long as the batch.
  WorkFacts Facts() const;

  // Fills in the response. REQUIRES: the items that passed have been applied, or have failed.
  void Encode(v1::AppendResponse& response) const;
  void Encode(v1::AttendResponse& response) const;

 private:
  PreparedBatch(const SessionStore& store, DecodedBatch decoded, WorkKind kind);

  void PlaceOutputs(v1::AttendResponse& response);

  WorkKind kind_;
  DecodedBatch decoded_;
  int value_dim_ = 0;
  std::vector<BatchItem*> passed_;
  std::int64_t cost_ = 0;
  // Outputs in fp32, where the response does not have them so.
  std::vector<float> outputs_;
};

}  // namespace oscarkv
