// The system calls of files, as a seam: tests put in calls that fail, write less or crash.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace oscarkv {

// Each function is the call of its name: -1 and errno where it fails. May be called at once.
class SystemCalls {
 public:
  virtual ~SystemCalls() = default;

  virtual int Open(const char* path, int flags, mode_t mode);
  virtual int Close(int file);
  virtual ssize_t Pwrite(int file, const void* bytes, std::size_t count, off_t offset);
  virtual ssize_t Pread(int file, void* bytes, std::size_t count, off_t offset);
  virtual int Fdatasync(int file);
  virtual int Fsync(int file);
  virtual int Ftruncate(int file, off_t length);
  virtual int Rename(const char* from, const char* to);
  virtual int Unlink(const char* path);

  // Those of the system itself.
  static SystemCalls* Real();
};

}  // namespace oscarkv
