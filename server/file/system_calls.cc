#include "server/file/system_calls.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace oscarkv {

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

int SystemCalls::Ftruncate(int file, off_t length) { return ::ftruncate(file, length); }

int SystemCalls::Rename(const char* from, const char* to) { return ::rename(from, to); }

int SystemCalls::Unlink(const char* path) { return ::unlink(path); }

SystemCalls* SystemCalls::Real() {
  static SystemCalls real;
  return &real;
}

}  // namespace oscarkv
