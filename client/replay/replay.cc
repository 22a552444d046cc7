#include "client/replay/replay.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "client/replay/layer_replay.h"
#include "client/replay/positions.h"

namespace oscarkv {
namespace {

v1::CreateSessionRequest MakeCreateRequest(const Recording& recording, v1::Profile profile) {
  v1::CreateSessionRequest request;
  request.set_session(absl::StrCat("replay-", NewRequestId()));
  request.set_model(recording.model().substr(0, 256));
  request.set_storage_dtype(StorageOf(recording));
  request.mutable_codec()->set_profile(profile);
  for (const RecordedLayer& layer : recording.layers()) {
    v1::LayerSpec& spec = *request.add_layers();
    spec.set_layer(layer.layer);
    spec.set_query_heads(layer.query.heads);
    spec.set_kv_heads(layer.key.heads);
    spec.set_key_dim(layer.key.dim);
    spec.set_value_dim(layer.value.dim);
    spec.set_scale(static_cast<float>(layer.scale));
    spec.set_softcap(static_cast<float>(layer.softcap.value_or(0)));
    spec.set_sliding_window(layer.sliding_window.value_or(0));
    spec.mutable_sink_logits()->Assign(layer.sink_logits.begin(), layer.sink_logits.end());
  }
  return request;
}

double Median(std::vector<absl::Duration> times) {
  if (times.empty()) return 0;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return absl::ToDoubleSeconds(*middle);
}

using LayerReplays = std::vector<std::unique_ptr<LayerReplay>>;

absl::StatusOr<LayerReplays> RunLayers(Client& client, const Recording& recording,
                                       const v1::Session& session, const ReplayOptions& options) {
  std::vector<std::vector<std::int64_t>> positions;
  int total = 0;
  for (const RecordedLayer& layer : recording.layers()) {
    positions.push_back(ReplayPositions(layer.tokens(), options.positions));
    total += static_cast<int>(positions.back().size());
  }
  int done = 0;
  const auto before_step = [&]() -> absl::Status {
    if (options.cancelled()) return absl::CancelledError("interrupted");
    options.on_progress(done++, total);
    return absl::OkStatus();
  };
  LayerReplays replays;
  for (std::size_t l = 0; l < positions.size(); ++l) {
    replays.push_back(
        std::make_unique<LayerReplay>(client, session, recording.layers()[l], positions[l]));
    if (absl::Status status = replays.back()->Run(before_step); !status.ok()) return status;
  }
  options.on_progress(total, total);
  return replays;
}

LayerReport MakeLayerReport(const RecordedLayer& layer, const v1::LayerState& state,
                            const LayerReplay& replay) {
  LayerReport report;
  report.layer = layer.layer;
  report.tokens = state.length();
  report.sealed_tokens = state.sealed_tokens();
  report.sealed_values =
      state.sealed_tokens() * layer.key.heads * (layer.key.dim + layer.value.dim);
  report.page_bytes = state.page_bytes();
  report.bits_per_value = state.bits_per_value();
  report.logical_bytes = state.logical_bytes();
  report.resident_bytes = state.resident_bytes();
  report.output_relative_error = replay.output_relative_error();
  report.lse_max_abs_error = replay.lse_max_abs_error();
  report.attend_p50_seconds = Median(replay.attend_times());
  return report;
}

void Summarize(const LayerReplays& replays, ReplayReport& report) {
  std::int64_t page_bytes = 0;
  std::int64_t sealed_values = 0;
  double squared_error = 0;
  for (const LayerReport& layer : report.layers) {
    page_bytes += layer.page_bytes;
    sealed_values += layer.sealed_values;
    squared_error += std::pow(layer.output_relative_error, 2);
    report.logical_bytes += layer.logical_bytes;
    report.resident_bytes += layer.resident_bytes;
  }
  if (sealed_values > 0) {
    report.bits_per_value =
        8.0 * static_cast<double>(page_bytes) / static_cast<double>(sealed_values);
  }
  if (report.resident_bytes > 0) {
    report.memory_ratio =
        static_cast<double>(report.logical_bytes) / static_cast<double>(report.resident_bytes);
  }
  report.output_relative_error =
      std::sqrt(squared_error / static_cast<double>(report.layers.size()));

  std::vector<absl::Duration> attend_times;
  double context_bytes = 0;
  absl::Duration context_time;
  for (const auto& replay : replays) {
    attend_times.insert(attend_times.end(), replay->attend_times().begin(),
                        replay->attend_times().end());
    context_bytes += static_cast<double>(replay->context_bytes());
    context_time += replay->context_time();
  }
  report.attend_p50_seconds = Median(std::move(attend_times));
  if (context_time > absl::ZeroDuration()) {
    report.append_bytes_per_second = context_bytes / absl::ToDoubleSeconds(context_time);
  }
}

}  // namespace

v1::DataType StorageOf(const Recording& recording) {
  const bool all_fp16 = std::all_of(
      recording.layers().begin(), recording.layers().end(), [](const RecordedLayer& layer) {
        return layer.key.dtype == DType::kFP16 && layer.value.dtype == DType::kFP16;
      });
  return all_fp16 ? v1::DATA_TYPE_FP16 : v1::DATA_TYPE_BF16;
}

absl::Status CheckReplayable(const Recording& recording) {
  for (const RecordedLayer& layer : recording.layers()) {
    if (!layer.has_queries()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "layer ", layer.layer, " has no queries, and a replay asks the recorded ones"));
    }
    if (layer.begin > 0) {
      return absl::FailedPreconditionError(absl::StrCat("layer ", layer.layer, " begins at token ",
                                                        layer.begin, ", and a replay begins at 0"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ReplayReport> Replay(Client& client, const Recording& recording,
                                    const ReplayOptions& options) {
  if (absl::Status status = CheckReplayable(recording); !status.ok()) return status;
  ReplayReport report;
  report.model = recording.model();
  report.profile = options.profile == v1::PROFILE_UNSPECIFIED
                       ? client.server_info().default_profile()
                       : options.profile;
  report.storage_dtype = StorageOf(recording);

  const v1::CreateSessionRequest create = MakeCreateRequest(recording, report.profile);
  // Also when the create fails: its reply alone may have been lost.
  const auto delete_session =
      absl::MakeCleanup([&] { client.DeleteSession(create.session()).IgnoreError(); });
  const auto session = client.CreateSession(create);
  if (!session.ok()) return session.status();

  const auto replays = RunLayers(client, recording, *session, options);
  if (!replays.ok()) return replays.status();

  const auto end = client.GetSession(session->id());
  if (!end.ok()) return end.status();
  if (end->layer_states_size() != static_cast<int>(replays->size())) {
    return absl::InternalError("the server told of another number of layers than it was given");
  }
  for (std::size_t l = 0; l < replays->size(); ++l) {
    report.layers.push_back(MakeLayerReport(
        recording.layers()[l], end->layer_states(static_cast<int>(l)), *(*replays)[l]));
  }
  Summarize(*replays, report);
  return report;
}

}  // namespace oscarkv
