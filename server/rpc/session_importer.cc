#include "server/rpc/session_importer.h"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/rpc/decode_session.h"
#include "server/rpc/encode_reply.h"

namespace oscarkv {
namespace {

absl::Status NoHeader() {
  return InvalidField("header", "not there", "a header in the first message");
}

// What the file has otherwise than the header says is named as a field of the header.
absl::Status AsOfHeader(const absl::Status& status) {
  const absl::optional<ErrorDetails> details = DetailsOf(status);
  return details && details->reason == "FILE_MISMATCH" ? WithFieldPrefix(status, "header.")
                                                       : status;
}

}  // namespace

absl::Status SessionImporter::Begin(const v1::ImportSessionHeader& header) {
  if (import_ != nullptr) {
    return InvalidField("header", "there again", "one header, in the first message");
  }
  absl::StatusOr<ImportOptions> options = DecodeImportHeader(header);
  if (!options.ok()) return options.status();
  import_ = store_.Import(*std::move(options));
  return absl::OkStatus();
}

absl::Status SessionImporter::Take(const v1::ImportSessionRequest& request) {
  switch (request.part_case()) {
    case v1::ImportSessionRequest::kHeader:
      return Begin(request.header());
    case v1::ImportSessionRequest::kData:
      if (import_ == nullptr) return NoHeader();
      return AsOfHeader(import_->Push(std::as_bytes(std::span<const char>(request.data()))));
    case v1::ImportSessionRequest::PART_NOT_SET:
      break;
  }
  return InvalidField("part", "not there", "a header or data");
}

absl::Status SessionImporter::Finish(v1::ImportSessionResponse& response) {
  if (import_ == nullptr) return NoHeader();
  const absl::StatusOr<SessionInfo> info = import_->Finish();
  if (!info.ok()) return info.status();
  EncodeSession(*info, SessionParts::kAll, *response.mutable_session());
  return absl::OkStatus();
}

}  // namespace oscarkv
