#include "server/session/session_import.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/crc32c.h"
#include "server/base/error.h"
#include "server/file/record.h"

namespace oscarkv {
namespace {

absl::Status CheckSame(std::string_view field, const std::optional<std::string>& wanted,
                       const std::string& found) {
  if (!wanted || *wanted == found) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat(std::string(field), " of the file is \"", found, "\"; expected \"", *wanted,
                   "\""),
      {.reason = "FILE_MISMATCH", .metadata = {{"field", std::string(field)}, {"value", found}}});
}

}  // namespace

SessionImport::SessionImport(ImportOptions options, std::unique_ptr<SessionLoader> loader,
                             WithRoom with_room, Put put)
    : options_(std::move(options)),
      loader_(std::move(loader)),
      with_room_(std::move(with_room)),
      put_(std::move(put)),
      reader_(this) {}

absl::Status SessionImport::Push(std::span<const std::byte> bytes) {
  bytes_ += bytes.size();
  crc_ = Crc32c(bytes.data(), bytes.size(), crc_);
  return reader_.Push(bytes);
}

absl::StatusOr<SessionInfo> SessionImport::Finish() {
  absl::StatusOr<SessionFileContents> contents = reader_.Finish();
  if (!contents.ok()) return contents.status();
  if (contents->tail_bytes > 0) {
    return FileDamaged(contents->state.committed_end(),
                       absl::StrCat(contents->tail_bytes, " bytes that no commit counts"),
                       "the end of the file");
  }
  loader_->KeepOnly(contents->state);
  config_.request_id = options_.request_id;
  config_.content_digest = absl::StrCat("import ", bytes_, " ", absl::Hex(crc_));
  return put_(std::move(config_), contents->state, loader_.get());
}

absl::Status SessionImport::OnSession(const SessionFields& fields) {
  config_ = fields.config;
  if (!options_.session.empty()) config_.id = options_.session;
  if (options_.tenant) config_.tenant = *options_.tenant;
  absl::Status s = CheckSame("model", options_.model, config_.model);
  s.Update(CheckSame("model_revision", options_.model_revision, config_.model_revision));
  s.Update(CheckSame("rope_digest", options_.rope_digest, config_.rope_digest));
  return s;
}

absl::Status SessionImport::OnRecord(const RecordHeader& header,
                                     std::span<const std::byte> payload) {
  return with_room_([&] {
    return loader_->Take(config_.layers[header.layer], header.type,
                         header.offset + sizeof(RecordHeader), payload);
  });
}

absl::Status SessionImport::OnCommit(const SessionFileState& state) {
  // Now and then: a file of many commits would take long otherwise.
  if (loader_->payloads() < sweep_at_) return absl::OkStatus();
  loader_->KeepOnly(state);
  sweep_at_ = 1024 + 2 * loader_->payloads();
  return absl::OkStatus();
}

}  // namespace oscarkv
