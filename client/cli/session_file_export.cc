#include <algorithm>
#include <string_view>

#include "client/cli/session_export.h"

namespace oscarkv {

absl::StatusOr<ExportReport> ExportSessionFile(Client& client, const ExportRequest& request,
                                               NewFile& file) {
  // How large the file will be no one knows: about as large as the session.
  const absl::StatusOr<v1::Session> session = client.GetSession(request.session);
  if (!session.ok()) return session.status();
  const std::int64_t total = std::max<std::int64_t>(1, session->resident_bytes());
  ExportReport report;
  const auto write = [&](std::string_view bytes) -> absl::Status {
    if (request.cancelled()) return absl::CancelledError("interrupted");
    absl::Status status = file.WriteAt(report.bytes, bytes);
    report.bytes += bytes.size();
    request.on_progress(std::min(static_cast<std::int64_t>(report.bytes), total), total);
    return status;
  };
  const absl::StatusOr<v1::ExportSessionHeader> header =
      client.ExportSession(request.session, 0, write);
  if (!header.ok()) return header.status();
  report.generation = header->generation();
  report.length = header->committed_length();
  report.layers = header->layer_lengths_size();
  return report;
}

}  // namespace oscarkv
