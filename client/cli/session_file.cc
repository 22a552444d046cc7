#include "client/cli/session_file.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "google/rpc/error_details.pb.h"
#include "server/base/error.h"

namespace oscarkv {
namespace {

// Opens to read alone: whoever looks at a file need not be allowed to change it.
class ReadOnlyCalls : public SystemCalls {
 public:
  int Open(const char* path, int flags, mode_t mode) override {
    return SystemCalls::Open(path, (flags & ~O_ACCMODE) | O_RDONLY, mode);
  }
};

// Whether it begins as session files do. What cannot be read counts as such.
bool LooksLikeSessionFile(const PosixFile& file, std::uint64_t bytes) {
  std::array<unsigned char, kFileMagic.size()> magic = kFileMagic;
  if (bytes < magic.size()) return false;
  (void)file.ReadAt(0, std::as_writable_bytes(std::span(magic)));
  return magic == kFileMagic;
}

// Details as the client library has them of a server's errors (client/error_info.h).
absl::Status WithErrorInfo(absl::Status status, const absl::optional<ErrorDetails>& details) {
  if (!details) return status;
  google::rpc::ErrorInfo info;
  info.set_domain("oscarkv");
  info.set_reason(details->reason);
  info.mutable_metadata()->insert(details->metadata.begin(), details->metadata.end());
  status.SetPayload(absl::StrCat("type.googleapis.com/", info.GetDescriptor()->full_name()),
                    absl::Cord(info.SerializeAsString()));
  return status;
}

// A message about a session file, to follow its path.
std::string WithoutSubject(absl::string_view message) {
  for (const char* subject : {"session file, ", "session file: "}) {
    if (absl::ConsumePrefix(&message, subject)) break;
  }
  return std::string(message);
}

// An error of reading what has been opened.
absl::Status Explain(const absl::Status& status, const PosixFile& file, std::uint64_t bytes) {
  const absl::optional<ErrorDetails> details = DetailsOf(status);
  std::string message = WithoutSubject(status.message());
  if (absl::IsFailedPrecondition(status)) {
    message = absl::StrCat(file.path(), ": of another version: ", message);
  } else if (absl::IsDataLoss(status) && LooksLikeSessionFile(file, bytes)) {
    message = absl::StrCat(file.path(), ": damaged: ", message);
  } else if (absl::IsDataLoss(status)) {
    message = absl::StrCat(file.path(), ": not a session file, or its first bytes are damaged");
  }
  return WithErrorInfo(absl::Status(status.code(), message), details);
}

template <typename ReadContents>
absl::StatusOr<SessionFile> ReadAs(const std::string& path, const ReadContents& read) {
  absl::StatusOr<std::unique_ptr<PosixFile>> file = OpenSessionFile(path);
  if (!file.ok()) return file.status();
  const absl::StatusOr<std::uint64_t> bytes = (*file)->Size();
  if (!bytes.ok()) return WithErrorInfo(bytes.status(), DetailsOf(bytes.status()));
  absl::StatusOr<SessionFileContents> contents = read(**file);
  if (!contents.ok()) return Explain(contents.status(), **file, *bytes);
  return SessionFile{.file = *std::move(file), .bytes = *bytes, .contents = *std::move(contents)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<PosixFile>> OpenSessionFile(const std::string& path) {
  static ReadOnlyCalls calls;
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  // What does not exist, opening tells. Opening a pipe would wait.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  absl::StatusOr<std::unique_ptr<PosixFile>> file = PosixFile::Open(path, &calls);
  if (!file.ok()) return WithErrorInfo(file.status(), DetailsOf(file.status()));
  return file;
}

absl::StatusOr<SessionFile> ReadWholeSessionFile(const std::string& path) {
  return ReadAs(path, [](const ByteSource& file) { return ReadSessionFile(file, nullptr); });
}

absl::StatusOr<SessionFile> ReadSessionFileIndex(const std::string& path) {
  return ReadAs(path, IndexSessionFile);
}

std::int64_t CommittedLength(const SessionFileState& state) {
  const std::vector<LayerCommit>& layers = state.last_commit()->layers;
  const auto shorter = [](const LayerCommit& a, const LayerCommit& b) {
    return a.length < b.length;
  };
  return std::min_element(layers.begin(), layers.end(), shorter)->length;
}

std::optional<std::string> TailDamage(const SessionFileContents& contents) {
  if (contents.damage.ok()) return std::nullopt;
  return WithoutSubject(contents.damage.message());
}

std::string DescribeTail(const SessionFileContents& contents) {
  if (contents.tail_bytes == 0) return "";
  const std::string why = TailDamage(contents).value_or("records that were not committed");
  return absl::StrCat("a tail of ", contents.tail_bytes, " bytes, which is ignored (", why, ")");
}

}  // namespace oscarkv
