// The system calls of files, as a seam: tests put in calls that fail, write less or crash.
#pragma once

#include <dirent.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace oscarkv {

// Each function is the call of its name: -1 and errno where it fails, Opendir a null pointer.
// Readdir returns null at the end too, and leaves errno alone there. May be called at once.
class SystemCalls {
 public:
  virtual ~SystemCalls() = default;

  virtual int Open(const char* path, int flags, mode_t mode);
  virtual int Close(int file);
  virtual ssize_t Pwrite(int file, const void* bytes, std::size_t count, off_t offset);
  virtual ssize_t Pread(int file, void* bytes, std::size_t count, off_t offset);
  virtual int Fdatasync(int file);
  virtual int Fsync(int file);
  virtual int Syncfs(int file);
  virtual int Ftruncate(int file, off_t length);
  virtual int Rename(const char* from, const char* to);
  virtual int Unlink(const char* path);
  virtual int Mkdir(const char* path, mode_t mode);
  virtual DIR* Opendir(const char* path);
  virtual dirent* Readdir(DIR* directory);
  virtual int Closedir(DIR* directory);
  virtual int Flock(int file, int operation);
  virtual int Statvfs(const char* path, struct statvfs* status);

  // Those of the system itself.
  static SystemCalls* Real();
};

// "cannot `what` `path`: ...", what a call that failed has left in errno: RESOURCE_EXHAUSTED for a
// full disk or quota, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, else INTERNAL; reason
// FILE_ERROR.
absl::Status SystemError(std::string_view what, const std::string& path);

// Calls again where a signal has interrupted.
template <typename Call>
auto Uninterrupted(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

}  // namespace oscarkv
