#include "server/rpc/session_exporter.h"

#include <algorithm>
#include <utility>

#include "server/rpc/fields.h"

namespace oscarkv {
namespace {

// Large enough to cost little per message, small enough to bound what a slow reader holds up.
constexpr std::int64_t kPieceBytes = 1 << 20;

void EncodeHeader(const SessionCommit& commit, v1::ExportSessionHeader& header) {
  header.set_generation(commit.generation);
  for (const LayerCommit& layer : commit.layers) header.add_layer_lengths(layer.length);
  header.set_committed_length(
      *std::min_element(header.layer_lengths().begin(), header.layer_lengths().end()));
}

}  // namespace

absl::StatusOr<SessionExporter> SessionExporter::Open(SessionStore& store,
                                                      const v1::ExportSessionRequest& request,
                                                      std::int64_t max_message_bytes) {
  if (absl::Status s = CheckId("session", request.session(), /*required=*/true); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<SessionExport>> made =
      store.Export(request.session(), request.generation());
  if (!made.ok()) return made.status();
  return SessionExporter(*std::move(made),
                         static_cast<std::size_t>(std::min(kPieceBytes, max_message_bytes / 2)));
}

absl::Status SessionExporter::Next(v1::ExportSessionResponse& response) {
  if (!std::exchange(began_, true)) EncodeHeader(export_->commit(), *response.mutable_header());
  if (taken_ == bytes_.size()) {
    absl::StatusOr<std::vector<std::byte>> bytes = export_->Next(piece_);
    if (!bytes.ok()) return bytes.status();
    bytes_ = *std::move(bytes);
    taken_ = 0;
  }
  const std::size_t some = std::min(piece_, bytes_.size() - taken_);
  response.set_data(bytes_.data() + taken_, some);
  taken_ += some;
  return absl::OkStatus();
}

}  // namespace oscarkv
