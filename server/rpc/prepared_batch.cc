#include "server/rpc/prepared_batch.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "server/rpc/check_items.h"
#include "server/rpc/encode_reply.h"
#include "server/rpc/tensors.h"
#include "server/rpc/work_keys.h"

namespace oscarkv {
namespace {

// Room in a reply for an item's result, its error included (grpc_status.cc clips texts), and for
// what is there but once.
constexpr std::int64_t kResultBytes = 2048;
constexpr std::int64_t kReplyBytes = 4096;

// What an item costs whatever its tokens: its checks, its locks, its share of a call.
constexpr std::int64_t kItemCost = 256;  // KiB of tokens

// What sealing a token costs, in tokens attended to: with plans that the page's own queries choose,
// and with given ones. About; on two threads 1, 4 and 60 GB/s of tokens in 16 bits.
constexpr std::int64_t kAutoSealCost = 64;
constexpr std::int64_t kGivenSealCost = 16;

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

// See WorkFacts::cost. Of the length that the layer has: the one that the request claims may be
// any.
std::int64_t CostOf(const SessionStore& store, const BatchItem& item, WorkKind kind) {
  constexpr double kMost = 0x1p40;  // hours; and the sum over many items is far from an overflow
  const LayerSpec& spec = item.config->layers[*item.config->IndexOf(item.layer)];
  const LayerStats layer = store.StatsOf(item.session, item.layer).value_or(LayerStats());
  double tokens = item.num_tokens;
  if (item.num_tokens > 0) {
    const bool chooses = spec.codec.plan == PlanMode::kAuto;
    const std::int64_t due_tokens = layer.due_pages * kPageTokens;
    tokens += static_cast<double>(due_tokens * (chooses ? kAutoSealCost : kGivenSealCost));
  }
  if (kind == WorkKind::kAttend) {
    std::int64_t seen = layer.length + item.num_tokens;
    if (spec.sliding_window > 0) seen = std::min(seen, spec.sliding_window);
    tokens += static_cast<double>(item.num_queries) * static_cast<double>(seen);
  }
  const double kib = tokens * static_cast<double>(spec.logical_bytes_per_token()) / 1024;
  return kItemCost + static_cast<std::int64_t>(std::min(kib, kMost));
}

// The bytes of a tensor as floats: strings of more than a few bytes are aligned for any scalar.
float* FloatsIn(v1::Tensor& tensor) {
  return reinterpret_cast<float*>(tensor.mutable_raw()->data());
}

}  // namespace

PreparedBatch::PreparedBatch(const SessionStore& store, DecodedBatch decoded, WorkKind kind)
    : kind_(kind), decoded_(std::move(decoded)) {
  value_dim_ = CheckItems(store, decoded_);
  if (value_dim_ == 0) {
    // No item can be applied: the shape of the zeros is a guess from the request.
    value_dim_ = decoded_.values.dim != 0 ? decoded_.values.dim : decoded_.queries.dim;
  }
  for (BatchItem& item : decoded_.items) {
    if (!item.status.ok()) continue;
    passed_.push_back(&item);
    cost_ += CostOf(store, item, kind);
  }
}

absl::StatusOr<PreparedBatch> PreparedBatch::Prepare(const SessionStore& store,
                                                     std::int64_t max_message_bytes,
                                                     const v1::AppendRequest& request,
                                                     v1::AppendResponse& /*response*/) {
  absl::StatusOr<DecodedBatch> decoded = DecodeAppend(request);
  if (!decoded.ok()) return decoded.status();
  if (absl::Status s = CheckReplyFits(*decoded, 0, max_message_bytes); !s.ok()) return s;
  return PreparedBatch(store, *std::move(decoded), WorkKind::kAppend);
}

absl::StatusOr<PreparedBatch> PreparedBatch::Prepare(const SessionStore& store,
                                                     std::int64_t max_message_bytes,
                                                     const v1::AttendRequest& request,
                                                     v1::AttendResponse& response) {
  absl::StatusOr<DecodedBatch> decoded = DecodeAttend(request);
  if (!decoded.ok()) return decoded.status();
  PreparedBatch batch(store, *std::move(decoded), WorkKind::kAttend);
  const std::int64_t output_bytes = OutputBytes(batch.decoded_, batch.value_dim_);
  if (absl::Status s = CheckReplyFits(batch.decoded_, output_bytes, max_message_bytes); !s.ok()) {
    return s;
  }
  batch.PlaceOutputs(response);
  return batch;
}

// Items write into the response, but for outputs that are not wanted in fp32. Rows of items that
// fail stay as they are told.
void PreparedBatch::PlaceOutputs(v1::AttendResponse& response) {
  const std::int64_t queries = decoded_.num_queries;
  const int heads = decoded_.queries.heads;
  ShapeTensor({queries, heads, value_dim_}, decoded_.output_dtype, *response.mutable_output());
  ShapeTensor({queries, heads}, DType::kFP32, *response.mutable_log_sum_exp());
  float* log_sum_exps = FloatsIn(*response.mutable_log_sum_exp());
  std::fill_n(log_sum_exps, queries * heads, -std::numeric_limits<float>::infinity());
  float* outputs = nullptr;
  if (decoded_.output_dtype == DType::kFP32) {
    outputs = FloatsIn(*response.mutable_output());
  } else {
    outputs_.resize(static_cast<std::size_t>(queries * heads * value_dim_));
    outputs = outputs_.data();
  }
  for (BatchItem& item : decoded_.items) {
    item.outputs = outputs;
    item.log_sum_exps = log_sum_exps;
    outputs += std::int64_t{item.num_queries} * heads * value_dim_;
    log_sum_exps += std::int64_t{item.num_queries} * heads;
  }
}

WorkFacts PreparedBatch::Facts() const {
  WorkFacts facts;
  facts.kind = kind_;
  if (!passed_.empty()) facts.tenant = passed_.front()->config->tenant;
  facts.cost = cost_;
  facts.items = static_cast<std::int64_t>(passed_.size());
  facts.layers.reserve(passed_.size());
  for (const BatchItem* item : passed_) {
    facts.layers.push_back(KeyOfLayer(item->session, item->layer));
  }
  return facts;
}

void PreparedBatch::Encode(v1::AppendResponse& response) const {
  EncodeResults(decoded_.items, *response.mutable_results());
}

void PreparedBatch::Encode(v1::AttendResponse& response) const {
  EncodeResults(decoded_.items, *response.mutable_results());
  if (outputs_.empty()) return;
  RoundFloats(outputs_, decoded_.output_dtype, *response.mutable_output());
}

}  // namespace oscarkv
