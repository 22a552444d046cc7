#include "server/rpc/prepared_batch.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "server/base/string_view.h"
#include "server/rpc/check_items.h"
#include "server/rpc/encode_reply.h"
#include "server/rpc/tensors.h"

namespace oscarkv {
namespace {

// Room in a reply for an item's result, its error included (grpc_status.cc clips texts), and for
// what is there but once.
constexpr std::int64_t kResultBytes = 2048;
constexpr std::int64_t kReplyBytes = 4096;

// What an item costs whatever its tokens: its checks, its locks, its share of a call.
constexpr std::int64_t kItemCost = 256;  // KiB of tokens

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

std::int64_t PublishedLength(const SessionStore& store, const BatchItem& item) {
  const absl::StatusOr<SessionInfo> info = store.Get(item.session);
  if (!info.ok()) return 0;
  const std::optional<std::size_t> index = info->config->IndexOf(item.layer);
  return index ? info->layers[*index].length : 0;
}

// See WorkFacts::cost. Who claims a wrong length is charged by it, and refused later.
std::int64_t CostOf(const SessionStore& store, const BatchItem& item, WorkKind kind) {
  constexpr double kMost = 0x1p50;  // far beyond all, and sums of it far from an overflow
  const std::optional<std::size_t> index = item.config->IndexOf(item.layer);
  double tokens = item.num_tokens;
  if (kind == WorkKind::kAttend) {
    const std::int64_t length =
        item.expected_length ? *item.expected_length : PublishedLength(store, item);
    tokens +=
        static_cast<double>(item.num_queries) * (static_cast<double>(length) + item.num_tokens);
  }
  const double bytes =
      tokens * static_cast<double>(item.config->layers[*index].logical_bytes_per_token());
  return kItemCost + static_cast<std::int64_t>(std::min(bytes / 1024, kMost));
}

LayerKey KeyOf(const BatchItem& item) {
  const std::size_t session = absl::Hash<absl::string_view>()(ToAbsl(item.session));
  return {.session = session, .layer = absl::HashOf(session, item.layer)};
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
  for (const BatchItem* item : passed_) facts.layers.push_back(KeyOf(*item));
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
