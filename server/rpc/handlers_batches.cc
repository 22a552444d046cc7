// Handlers: append and attend.
#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "server/rpc/check_items.h"
#include "server/rpc/decode_batch.h"
#include "server/rpc/encode_reply.h"
#include "server/rpc/handlers.h"
#include "server/rpc/tensors.h"

namespace oscarkv {
namespace {

// Room in a reply for an item's result, its error included (grpc_status.cc clips texts), and for
// what is there but once.
constexpr std::int64_t kResultBytes = 2048;
constexpr std::int64_t kReplyBytes = 4096;

// Lets the store see the items that passed the checks, side by side.
void RunPassed(std::span<BatchItem> items, absl::FunctionRef<void(std::span<BatchItem>)> run) {
  const auto passed = [](const BatchItem& item) { return item.status.ok(); };
  if (std::all_of(items.begin(), items.end(), passed)) return run(items);
  std::vector<BatchItem> kept;
  std::copy_if(items.begin(), items.end(), std::back_inserter(kept), passed);
  if (kept.empty()) return;
  run(kept);
  auto next = kept.begin();
  for (BatchItem& item : items) {
    if (passed(item)) item = std::move(*next++);
  }
}

// Attention of a batch: outputs in fp32, rows of failed items as they are told.
struct Outputs {
  int query_heads;
  int value_dim;
  std::vector<float> values;
  std::vector<float> log_sum_exps;

  Outputs(std::int64_t num_queries, int heads, int dim)
      : query_heads(heads),
        value_dim(dim),
        values(static_cast<std::size_t>(num_queries * heads * dim)),
        log_sum_exps(static_cast<std::size_t>(num_queries * heads),
                     -std::numeric_limits<float>::infinity()) {}

  void Assign(std::span<BatchItem> items) {
    std::int64_t row = 0;
    for (BatchItem& item : items) {
      item.outputs = values.data() + row * query_heads * value_dim;
      item.log_sum_exps = log_sum_exps.data() + row * query_heads;
      row += item.num_queries;
    }
  }
};

// What is applied must also be told, so a reply that may not fit is refused before.
absl::Status CheckReplyFits(const DecodedBatch& batch, std::int64_t output_bytes,
                            std::int64_t max_bytes) {
  const std::int64_t result_bytes =
      static_cast<std::int64_t>(batch.items.size()) * kResultBytes + kReplyBytes;
  const std::int64_t bytes = result_bytes + output_bytes;
  if (bytes <= max_bytes) return absl::OkStatus();
  return ReplyTooLarge(result_bytes > output_bytes ? "items" : "query.shape", bytes, max_bytes);
}

// Of outputs and log-sum-exps in a reply.
std::int64_t OutputBytes(const DecodedBatch& batch, int value_dim) {
  const std::int64_t head_bytes =
      value_dim * static_cast<std::int64_t>(SizeOf(batch.output_dtype)) + 4LL;
  return batch.num_queries * batch.queries.heads * head_bytes;
}

}  // namespace

absl::Status Handlers::Append(const v1::AppendRequest& request, v1::AppendResponse& response) {
  absl::StatusOr<DecodedBatch> batch = DecodeAppend(request);
  if (!batch.ok()) return batch.status();
  if (absl::Status s = CheckReplyFits(*batch, 0, facts_.max_message_bytes); !s.ok()) return s;
  CheckItems(*store_, *batch);
  RunPassed(batch->items, [&](std::span<BatchItem> items) { store_->Append(batch->layer, items); });
  EncodeResults(batch->items, *response.mutable_results());
  return absl::OkStatus();
}

absl::Status Handlers::Attend(const v1::AttendRequest& request, v1::AttendResponse& response) {
  absl::StatusOr<DecodedBatch> batch = DecodeAttend(request);
  if (!batch.ok()) return batch.status();
  int value_dim = CheckItems(*store_, *batch);
  if (value_dim == 0) {
    // No item can be applied: the shape of the zeros is a guess from the request.
    value_dim = batch->values.dim != 0 ? batch->values.dim : batch->queries.dim;
  }
  const std::int64_t output_bytes = OutputBytes(*batch, value_dim);
  if (absl::Status s = CheckReplyFits(*batch, output_bytes, facts_.max_message_bytes); !s.ok()) {
    return s;
  }
  Outputs outputs(batch->num_queries, batch->queries.heads, value_dim);
  outputs.Assign(batch->items);
  RunPassed(batch->items, [&](std::span<BatchItem> items) {
    store_->Attend(batch->layer, items, batch->options);
  });
  EncodeResults(batch->items, *response.mutable_results());
  EncodeFloats(outputs.values, {batch->num_queries, outputs.query_heads, value_dim},
               batch->output_dtype, *response.mutable_output());
  EncodeFloats(outputs.log_sum_exps, {batch->num_queries, outputs.query_heads}, DType::kFP32,
               *response.mutable_log_sum_exp());
  return absl::OkStatus();
}

}  // namespace oscarkv
