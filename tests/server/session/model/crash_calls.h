// System calls that keep a copy of a data directory as it is at some moment, in the middle of a
// write too: what a server finds that starts after a crash there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "server/base/mutex.h"
#include "server/file/system_calls.h"

namespace oscarkv {

// Thread-safety: all functions may be called at once.
class CrashCalls : public SystemCalls {
 public:
  // At the call number `call` from now on of those that change files, `directory` is copied to
  // `copy`, which must not be there.
  void Arm(int call, std::string directory, std::string copy) {
    MutexLock lock(&mutex_);
    left_ = call;
    directory_ = std::move(directory);
    copy_ = std::move(copy);
  }
  // Whether it came to the copy since Arm.
  bool Disarm() {
    MutexLock lock(&mutex_);
    const bool done = left_ == 0;
    left_ = -1;
    return done;
  }

  ssize_t Pwrite(int file, const void* bytes, std::size_t count, off_t offset) override {
    Count([&](std::uint64_t random) {
      if (count > 0) SystemCalls::Pwrite(file, bytes, random % count, offset);
    });
    return SystemCalls::Pwrite(file, bytes, count, offset);
  }
  int Ftruncate(int file, off_t length) override {
    Count();
    return SystemCalls::Ftruncate(file, length);
  }
  int Rename(const char* from, const char* to) override {
    Count();
    return SystemCalls::Rename(from, to);
  }
  int Unlink(const char* path) override {
    Count();
    return SystemCalls::Unlink(path);
  }
  // What they promise is not needed where only processes end.
  int Fsync(int) override { return 0; }
  int Fdatasync(int) override { return 0; }

 private:
  // `half`: does a part of the call.
  void Count(absl::FunctionRef<void(std::uint64_t random)> half = [](std::uint64_t) {}) {
    MutexLock lock(&mutex_);
    if (left_ <= 0 || --left_ > 0) return;
    half(random_());
    std::filesystem::copy(directory_, copy_, std::filesystem::copy_options::recursive);
  }

  Mutex mutex_;
  int left_ ABSL_GUARDED_BY(mutex_) = -1;
  std::string directory_ ABSL_GUARDED_BY(mutex_);
  std::string copy_ ABSL_GUARDED_BY(mutex_);
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_){7};
};

}  // namespace oscarkv
