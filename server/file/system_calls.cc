#include "server/file/system_calls.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/base/string_view.h"

namespace oscarkv {
namespace {

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
      return absl::StatusCode::kResourceExhausted;
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

int SystemCalls::Open(const char* path, int flags, mode_t mode) {
  return ::open(path, flags, mode);
}

int SystemCalls::Close(int file) { return ::close(file); }

ssize_t SystemCalls::Pwrite(int file, const void* bytes, std::size_t count, off_t offset) {
  return ::pwrite(file, bytes, count, offset);
}

ssize_t SystemCalls::Pread(int file, void* bytes, std::size_t count, off_t offset) {
  return ::pread(file, bytes, count, offset);
}

int SystemCalls::Fdatasync(int file) { return ::fdatasync(file); }

int SystemCalls::Fsync(int file) { return ::fsync(file); }

int SystemCalls::Syncfs(int file) { return ::syncfs(file); }

int SystemCalls::Ftruncate(int file, off_t length) { return ::ftruncate(file, length); }

int SystemCalls::Rename(const char* from, const char* to) { return ::rename(from, to); }

int SystemCalls::Unlink(const char* path) { return ::unlink(path); }

int SystemCalls::Mkdir(const char* path, mode_t mode) { return ::mkdir(path, mode); }

DIR* SystemCalls::Opendir(const char* path) { return ::opendir(path); }

dirent* SystemCalls::Readdir(DIR* directory) { return ::readdir(directory); }

int SystemCalls::Closedir(DIR* directory) { return ::closedir(directory); }

int SystemCalls::Flock(int file, int operation) { return ::flock(file, operation); }

int SystemCalls::Statvfs(const char* path, struct statvfs* status) {
  return ::statvfs(path, status);
}

SystemCalls* SystemCalls::Real() {
  static SystemCalls real;
  return &real;
}

absl::Status SystemError(std::string_view what, const std::string& path) {
  const int error = errno;
  return MakeError(
      CodeOf(error),
      absl::StrCat("cannot ", ToAbsl(what), " ", path, ": ",
                   std::generic_category().message(error)),
      {.reason = "FILE_ERROR", .metadata = {{"path", path}, {"errno", absl::StrCat(error)}}});
}

}  // namespace oscarkv
