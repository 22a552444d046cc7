// Append and Attend, decoded and checked as far as the request alone allows. What depends on the
// sessions is checked per item (check_items.h, and the store).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "oscarkv/v1/kv_cache.pb.h"
#include "server/session/session_store.h"

namespace oscarkv {

// Points into the request, which must outlive it.
struct DecodedBatch {
  int layer = 0;
  std::vector<BatchItem> items;       // with their rows, without outputs
  std::int64_t num_queries = 0;       // over all items
  Rows values;                        // of all items
  Rows queries;                       // of all items
  DType output_dtype = DType::kBF16;  // Attend only
};

// INVALID_ARGUMENT names the first field that is wrong.
absl::StatusOr<DecodedBatch> DecodeAppend(const v1::AppendRequest& request);
absl::StatusOr<DecodedBatch> DecodeAttend(const v1::AttendRequest& request);

}  // namespace oscarkv
