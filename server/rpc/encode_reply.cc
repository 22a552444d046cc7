#include "server/rpc/encode_reply.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/base/error.h"
#include "server/rpc/codec_messages.h"
#include "server/rpc/fields.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/tensors.h"

namespace oscarkv {
namespace {

void EncodeTime(absl::Time time, google::protobuf::Timestamp& encoded) {
  const std::int64_t nanoseconds = absl::ToUnixNanos(time);
  encoded.set_seconds(nanoseconds / 1'000'000'000);
  encoded.set_nanos(static_cast<int>(nanoseconds % 1'000'000'000));
}

void EncodeRetention(const Retention& retention, v1::Retention& encoded) {
  encoded.set_priority(retention.priority);
  encoded.set_pinned(retention.pinned);
  if (retention.ttl == absl::InfiniteDuration()) return;
  const std::int64_t nanoseconds = absl::ToInt64Nanoseconds(retention.ttl);
  encoded.mutable_ttl()->set_seconds(nanoseconds / 1'000'000'000);
  encoded.mutable_ttl()->set_nanos(static_cast<int>(nanoseconds % 1'000'000'000));
}

void EncodeLayer(const LayerSpec& spec, bool values_folded, v1::LayerSpec& layer) {
  layer.set_layer(spec.layer);
  layer.set_query_heads(spec.query_heads);
  layer.set_kv_heads(spec.kv_heads);
  layer.set_key_dim(spec.key_dim);
  layer.set_value_dim(spec.value_dim);
  layer.set_scale(spec.scale);
  layer.set_softcap(spec.softcap);
  layer.set_sliding_window(spec.sliding_window);
  layer.mutable_sink_logits()->Assign(spec.sink_logits.begin(), spec.sink_logits.end());
  *layer.mutable_codec() = EncodeCodec(spec, values_folded);
  for (int head = 0; head < static_cast<int>(spec.given_plan.size()); ++head) {
    *layer.add_key_plans() = EncodeKeyPlan(spec, head);
  }
}

void EncodeLayerState(const LayerStats& stats, const LayerSpec& spec, v1::LayerState& state) {
  state.set_layer(stats.layer);
  state.set_length(stats.length);
  state.set_sealed_tokens(stats.sealed_tokens);
  state.set_pages_sealed_without_queries(stats.pages_sealed_without_queries);
  state.set_logical_bytes(stats.logical_bytes);
  const std::int64_t window_bytes = stats.window_bytes + stats.prepared_bytes;
  state.set_resident_bytes(stats.page_bytes + window_bytes);
  state.set_page_bytes(stats.page_bytes);
  state.set_window_bytes(window_bytes);
  state.set_bits_per_value(stats.bits_per_value);
  state.set_query_sample_stride(spec.query_sample_stride());
  state.set_kept_from(stats.kept_from);
}

// The status of element `index` of a repeated field.
google::rpc::Status EncodeStatusOf(const absl::Status& status, std::string_view field,
                                   std::int64_t index) {
  if (status.ok()) return EncodeStatus(status);
  return EncodeStatus(WithFieldPrefix(status, absl::StrCat(Indexed(field, index), ".")));
}

}  // namespace

void EncodeSession(const SessionInfo& info, SessionParts parts, v1::Session& session) {
  const SessionConfig& config = *info.config;
  session.set_id(config.id);
  session.set_generation(info.generation);
  session.set_tenant(config.tenant);
  session.set_group(config.group);
  session.set_model(config.model);
  session.set_model_revision(config.model_revision);
  session.set_rope_digest(config.rope_digest);
  session.set_storage_dtype(EncodeDType(config.storage));
  session.set_position_base(config.position_base);
  EncodeTime(info.create_time, *session.mutable_create_time());
  session.set_committed_length(info.committed_length);
  session.set_logical_bytes(info.logical_bytes);
  session.set_resident_bytes(info.resident_bytes);
  session.set_durable_length(info.durable_length);
  session.set_evicted(info.evicted);
  EncodeRetention(info.retention, *session.mutable_retention());
  session.set_min_truncate_length(info.min_truncate_length);
  session.set_rollback_tokens(config.rollback_tokens);
  session.set_reused_length(info.reused_length);
  if (parts == SessionParts::kWithoutLayers) return;
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    EncodeLayer(config.layers[i], config.value_folded[i], *session.add_layers());
    EncodeLayerState(info.layers[i], config.layers[i], *session.add_layer_states());
  }
}

void EncodeResults(std::span<const BatchItem> items,
                   google::protobuf::RepeatedPtrField<v1::ItemResult>& results) {
  results.Reserve(static_cast<int>(items.size()));
  std::int64_t index = 0;
  for (const BatchItem& item : items) {
    v1::ItemResult& result = *results.Add();
    *result.mutable_status() = EncodeStatusOf(item.status, "items", index++);
    result.set_generation(item.generation_after);
    result.set_length(item.length_after);
    result.set_repeated(item.repeated);
  }
}

void EncodeForks(std::span<const ForkItem> items, v1::ForkSessionResponse& response) {
  std::int64_t index = 0;
  for (const ForkItem& item : items) {
    v1::ForkResult& result = *response.add_results();
    *result.mutable_status() = EncodeStatusOf(item.status, "forks", index++);
    if (item.status.ok()) {
      EncodeSession(item.info, SessionParts::kWithoutLayers, *result.mutable_session());
    }
  }
}

absl::Status ReplyTooLarge(std::string_view field, std::int64_t bytes, std::int64_t limit) {
  ErrorDetails details = {.reason = "REPLY_TOO_LARGE",
                          .metadata = {{"limit", absl::StrCat(limit)}}};
  if (!field.empty()) details.metadata.emplace_back("field", field);
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("the reply has up to ", bytes, " bytes; the limit is ", limit),
                   details);
}

}  // namespace oscarkv
