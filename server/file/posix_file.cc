#include "server/file/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/file/record.h"

namespace oscarkv {
namespace {

absl::Status StatusOf(int result, std::string_view what, const std::string& path) {
  return result == 0 ? absl::OkStatus() : SystemError(what, path);
}

}  // namespace

PosixFile::PosixFile(std::string path, int file, SystemCalls* calls)
    : path_(std::move(path)), calls_(calls), file_(file) {}

absl::StatusOr<std::unique_ptr<PosixFile>> PosixFile::Create(std::string path, SystemCalls* calls) {
  const int file = Uninterrupted([&] {
    return calls->Open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  });
  if (file < 0) return SystemError("create", path);
  return std::unique_ptr<PosixFile>(new PosixFile(std::move(path), file, calls));
}

absl::StatusOr<std::unique_ptr<PosixFile>> PosixFile::Open(std::string path, SystemCalls* calls) {
  const int file = Uninterrupted([&] { return calls->Open(path.c_str(), O_RDWR | O_CLOEXEC, 0); });
  if (file < 0) return SystemError("open", path);
  std::unique_ptr<PosixFile> opened(new PosixFile(std::move(path), file, calls));
  const absl::StatusOr<std::uint64_t> size = opened->Size();
  if (!size.ok()) return size.status();
  opened->size_ = *size;
  return opened;
}

PosixFile::~PosixFile() { (void)Close(); }

absl::Status PosixFile::Close() {
  if (file_ < 0) return absl::OkStatus();
  // Not again where it was interrupted: the number may be that of another file by then.
  const int result = calls_->Close(std::exchange(file_, -1));
  return result == 0 || errno == EINTR ? absl::OkStatus() : SystemError("close", path_);
}

absl::Status PosixFile::Cut(std::uint64_t size) {
  const int result =
      Uninterrupted([&] { return calls_->Ftruncate(file_, static_cast<off_t>(size)); });
  if (result != 0) return SystemError("cut", path_);
  size_ = size;
  write_error_ = absl::OkStatus();
  return absl::OkStatus();
}

absl::Status PosixFile::Write(std::span<const std::byte> bytes) {
  if (!sync_error_.ok()) return sync_error_;
  if (!write_error_.ok()) return write_error_;
  std::uint64_t at = size_;
  while (!bytes.empty()) {
    const ssize_t written = Uninterrupted(
        [&] { return calls_->Pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(at)); });
    if (written <= 0) {
      if (written == 0) errno = EIO;
      write_error_ = SystemError("write", path_);
      return write_error_;
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    at += static_cast<std::uint64_t>(written);
  }
  size_ = at;
  return absl::OkStatus();
}

absl::Status PosixFile::Sync() {
  if (!sync_error_.ok()) return sync_error_;
  if (!write_error_.ok()) return write_error_;
  sync_error_ = StatusOf(Uninterrupted([&] { return calls_->Fdatasync(file_); }), "sync", path_);
  return sync_error_;
}

absl::StatusOr<std::uint64_t> PosixFile::Size() const {
  struct stat status {};
  if (::fstat(file_, &status) != 0) return SystemError("measure", path_);
  return static_cast<std::uint64_t>(status.st_size);
}

absl::Status PosixFile::ReadAt(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t read = Uninterrupted([&] {
      return calls_->Pread(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    });
    if (read < 0) return SystemError("read", path_);
    if (read == 0) {
      return FileDamaged(offset, absl::StrCat("the end of ", path_),
                         absl::StrCat(bytes.size(), " bytes more"));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(read));
    offset += static_cast<std::uint64_t>(read);
  }
  return absl::OkStatus();
}

absl::Status SyncDirectoryOf(const std::string& path, SystemCalls* calls) {
  const std::size_t slash = path.rfind('/');
  const std::string directory =
      slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
  const int file = Uninterrupted(
      [&] { return calls->Open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (file < 0) return SystemError("open", directory);
  absl::Status status =
      StatusOf(Uninterrupted([&] { return calls->Fsync(file); }), "sync", directory);
  (void)calls->Close(file);
  return status;
}

absl::Status ReplaceFile(const std::string& from, const std::string& to, SystemCalls* calls) {
  if (calls->Rename(from.c_str(), to.c_str()) != 0) {
    return SystemError(absl::StrCat("rename ", from, " to"), to);
  }
  return SyncDirectoryOf(to, calls);
}

absl::Status RemoveFile(const std::string& path, SystemCalls* calls) {
  return StatusOf(calls->Unlink(path.c_str()), "remove", path);
}

}  // namespace oscarkv
