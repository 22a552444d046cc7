#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "client/cli/session_export.h"
#include "client/error_info.h"
#include "client/recording/recording_layout.h"
#include "client/tensors.h"

namespace oscarkv {
namespace {

absl::StatusOr<DType> StorageOf(const v1::Session& session) {
  switch (session.storage_dtype()) {
    case v1::DATA_TYPE_BF16:
      return DType::kBF16;
    case v1::DATA_TYPE_FP16:
      return DType::kFP16;
    default:
      return absl::InternalError(absl::StrCat("the server keeps sessions in a type unknown here: ",
                                              session.storage_dtype()));
  }
}

absl::StatusOr<std::int64_t> LengthOf(const v1::Session& session, const ExportRequest& request) {
  const std::int64_t length = request.length.value_or(session.committed_length());
  if (length > session.committed_length()) {
    return absl::OutOfRangeError(absl::StrCat("session ", session.id(), " has ",
                                              session.committed_length(),
                                              " tokens of every layer; asked for ", length));
  }
  if (length == 0) {
    return absl::OutOfRangeError(
        absl::StrCat("session ", session.id(), " has no tokens of every layer"));
  }
  for (const v1::LayerState& state : session.layer_states()) {
    if (length > state.kept_from()) continue;
    return absl::OutOfRangeError(absl::StrCat("session ", session.id(), " has no tokens of layer ",
                                              state.layer(), " before ", length,
                                              "; it keeps those from ", state.kept_from(), " on"));
  }
  return length;
}

// The tokens from the first that is kept up to `length`.
RecordedLayer Describe(const v1::LayerSpec& spec, const v1::LayerState& state, DType storage,
                       std::int64_t length) {
  RecordedLayer layer;
  layer.layer = spec.layer();
  layer.begin = state.kept_from();
  layer.scale = spec.scale();
  if (spec.sliding_window() > 0) layer.sliding_window = spec.sliding_window();
  if (spec.softcap() > 0) layer.softcap = spec.softcap();
  layer.sink_logits.assign(spec.sink_logits().begin(), spec.sink_logits().end());
  layer.key.dtype = storage;
  layer.key.tokens = length - layer.begin;
  layer.key.heads = spec.kv_heads();
  layer.key.dim = spec.key_dim();
  layer.value = layer.key;
  layer.value.dim = spec.value_dim();
  layer.query.heads = spec.query_heads();
  return layer;
}

absl::Status CheckRun(const v1::Tensor& tensor, const v1::Session& session,
                      const RecordedTensor& expected, std::int64_t tokens) {
  const bool fits = tensor.dtype() == session.storage_dtype() && tensor.shape_size() == 3 &&
                    tensor.shape(0) == tokens && tensor.shape(1) == expected.heads &&
                    tensor.shape(2) == expected.dim;
  return fits ? CheckTensor(tensor)
              : absl::InternalError("the server sent tokens of another shape than the session's");
}

// Says so where an error of reading tells that the session is not what it was.
absl::Status ExplainChange(const v1::Session& session, const absl::Status& status) {
  const auto info = ErrorInfoOf(status);
  const bool changed =
      info && (info->reason() == "GENERATION_MISMATCH" || info->reason() == "SESSION_NOT_FOUND" ||
               info->reason() == "TOKENS_FREED");
  if (!changed) return status;
  absl::Status explained(status.code(),
                         absl::StrCat("session ", session.id(),
                                      " has changed while it was exported: ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    explained.SetPayload(url, payload);
  });
  return explained;
}

class RecordingExport {
 public:
  RecordingExport(Client& client, const ExportRequest& request, v1::Session session, NewFile& file)
      : client_(client), request_(request), session_(std::move(session)), file_(file) {}

  absl::StatusOr<ExportReport> Run() {
    const absl::StatusOr<DType> storage = StorageOf(session_);
    if (!storage.ok()) return storage.status();
    const absl::StatusOr<std::int64_t> length = LengthOf(session_, request_);
    if (!length.ok()) return length.status();
    for (int i = 0; i < session_.layers_size(); ++i) {
      layers_.push_back(Describe(session_.layers(i), session_.layer_states(i), *storage, *length));
      total_ += layers_.back().tokens();
    }
    const RecordingLayout layout = LayOutRecording(Origin(), layers_);
    if (absl::Status status = file_.WriteAt(0, layout.start); !status.ok()) return status;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const absl::Status status = CopyLayer(layers_[i], layout.layers[i]);
      if (!status.ok()) return ExplainChange(session_, status);
    }
    return ExportReport{.generation = session_.generation(),
                        .length = *length,
                        .layers = static_cast<int>(layers_.size()),
                        .bytes = layout.bytes};
  }

 private:
  RecordingOrigin Origin() const {
    return {.model = session_.model().empty() ? "unknown" : session_.model(),
            .origin = absl::StrCat("session ", session_.id(), ", generation ",
                                   session_.generation(), ", of an oscarkv server, decoded"),
            .license = "unknown"};
  }

  absl::Status CopyLayer(const RecordedLayer& layer, const RecordingLayout::Layer& place) {
    v1::ReadTokensRequest read;
    read.set_session(session_.id());
    read.set_generation(session_.generation());
    read.set_layer(layer.layer);
    read.set_begin(layer.begin);
    read.set_num_tokens(layer.tokens());
    std::int64_t copied = 0;
    const auto copy_run = [&](const v1::ReadTokensResponse& run) -> absl::Status {
      if (request_.cancelled()) return absl::CancelledError("interrupted");
      const std::int64_t tokens = run.key().shape_size() > 0 ? run.key().shape(0) : 0;
      if (run.begin() != layer.begin + copied || tokens < 1 || tokens > layer.tokens() - copied) {
        return absl::InternalError("the server sent other tokens than it was asked for");
      }
      absl::Status status = CheckRun(run.key(), session_, layer.key, tokens);
      status.Update(CheckRun(run.value(), session_, layer.value, tokens));
      if (!status.ok()) return status;
      const auto rows = static_cast<std::uint64_t>(copied);
      status.Update(file_.WriteAt(place.key + rows * layer.key.row_bytes(), run.key().raw()));
      status.Update(file_.WriteAt(place.value + rows * layer.value.row_bytes(), run.value().raw()));
      copied += tokens;
      done_ += tokens;
      request_.on_progress(done_, total_);
      return status;
    };
    if (absl::Status status = client_.ReadTokens(read, copy_run); !status.ok()) return status;
    if (copied == layer.tokens()) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the server sent ", copied, " tokens of layer ",
                                            layer.layer, "; asked for ", layer.tokens()));
  }

  Client& client_;
  const ExportRequest& request_;
  const v1::Session session_;
  NewFile& file_;
  std::vector<RecordedLayer> layers_;  // what is to be written, without the tokens
  std::int64_t done_ = 0;              // tokens, over all layers
  std::int64_t total_ = 0;
};

}  // namespace

absl::StatusOr<ExportReport> ExportRecording(Client& client, const ExportRequest& request,
                                             NewFile& file) {
  absl::StatusOr<v1::Session> session = client.GetSession(request.session);
  if (!session.ok()) return session.status();
  if (session->layers().empty() || session->layers_size() != session->layer_states_size()) {
    return absl::InternalError("the server told of a session without its layers");
  }
  return RecordingExport(client, request, *std::move(session), file).Run();
}

}  // namespace oscarkv
