#include "client/cli/new_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/file/posix_file.h"

namespace oscarkv {
namespace {

absl::Status CheckName(const std::string& path, bool replace) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::symlink_status(path, error);
  if (!std::filesystem::exists(status)) return absl::OkStatus();
  if (!std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  if (replace) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(path, " exists; --force takes its place"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NewFile>> NewFile::Create(const std::string& path, bool replace) {
  if (absl::Status status = CheckName(path, replace); !status.ok()) return status;
  std::unique_ptr<NewFile> file(new NewFile(path, replace));
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  file->file_ = mkostemp(temporary.data(), O_CLOEXEC);
  if (file->file_ < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path));
  file->temporary_ = std::move(temporary);
  return file;
}

NewFile::~NewFile() {
  if (file_ >= 0) close(file_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status NewFile::WriteAt(std::uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
    bytes.remove_prefix(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return absl::OkStatus();
}

absl::Status NewFile::Finish() {
  if (fsync(file_) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot sync ", path_));
  if (close(std::exchange(file_, -1)) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot close ", path_));
  }
  // Renaming would replace what has come to be there meanwhile; that not all file systems can do
  // otherwise leaves a moment.
  if (absl::Status status = CheckName(path_, replace_); !status.ok()) return status;
  if (absl::Status status = ReplaceFile(temporary_, path_); !status.ok()) return status;
  temporary_.clear();
  return absl::OkStatus();
}

}  // namespace oscarkv
