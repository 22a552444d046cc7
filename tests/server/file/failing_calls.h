// Calls of the system of which one fails, or all from one on, as after the end of the process or
// the disk.
//
// Thread-safety: calls may be made at once; what is set is set while none is.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "server/file/system_calls.h"

namespace oscarkv {

struct FailingCalls : SystemCalls {
  int fail_at = -1;  // the how manieth call
  bool for_good = false;
  int error = EIO;
  bool no_renames = false;
  std::size_t lacking = SIZE_MAX;  // bytes at the end that a write which fails leaves out
  std::atomic<int> made = 0;

  bool Fails() {
    const int call = made++;
    if (fail_at < 0 || call < fail_at || (call > fail_at && !for_good)) return false;
    errno = error;
    return true;
  }
  bool hit() const { return fail_at >= 0 && made > fail_at; }

  int Open(const char* path, int flags, mode_t mode) override {
    return Fails() ? -1 : SystemCalls::Open(path, flags, mode);
  }
  int Close(int file) override {  // closes also where it fails, as Linux does
    const bool fails = Fails();
    const int result = SystemCalls::Close(file);
    if (fails) errno = error;
    return fails ? -1 : result;
  }
  ssize_t Pwrite(int file, const void* bytes, std::size_t count, off_t offset) override {
    if (!Fails()) return SystemCalls::Pwrite(file, bytes, count, offset);
    if (lacking < count) (void)SystemCalls::Pwrite(file, bytes, count - lacking, offset);
    errno = error;
    return -1;
  }
  ssize_t Pread(int file, void* bytes, std::size_t count, off_t offset) override {
    return Fails() ? -1 : SystemCalls::Pread(file, bytes, count, offset);
  }
  int Fdatasync(int file) override { return Fails() ? -1 : SystemCalls::Fdatasync(file); }
  int Fsync(int file) override { return Fails() ? -1 : SystemCalls::Fsync(file); }
  int Syncfs(int file) override { return Fails() ? -1 : SystemCalls::Syncfs(file); }
  int Ftruncate(int file, off_t length) override {
    return Fails() ? -1 : SystemCalls::Ftruncate(file, length);
  }
  int Rename(const char* from, const char* to) override {
    errno = error;
    return no_renames || Fails() ? -1 : SystemCalls::Rename(from, to);
  }
  int Unlink(const char* path) override { return Fails() ? -1 : SystemCalls::Unlink(path); }
  int Mkdir(const char* path, mode_t mode) override {
    return Fails() ? -1 : SystemCalls::Mkdir(path, mode);
  }
  DIR* Opendir(const char* path) override { return Fails() ? nullptr : SystemCalls::Opendir(path); }
  dirent* Readdir(DIR* directory) override {
    return Fails() ? nullptr : SystemCalls::Readdir(directory);
  }
  int Closedir(DIR* directory) override {
    (void)Fails();
    return SystemCalls::Closedir(directory);
  }
  int Flock(int file, int operation) override {
    return Fails() ? -1 : SystemCalls::Flock(file, operation);
  }
  int Statvfs(const char* path, struct statvfs* status) override {
    return Fails() ? -1 : SystemCalls::Statvfs(path, status);
  }
};

}  // namespace oscarkv
