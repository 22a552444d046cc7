// A decorator that lets one call of a backend fail: the n-th one from when it was armed. The call
// may have done its work before, as the contract of Backend allows for output blocks and spans.
//
// Thread-safety: as Backend's; what it has recorded is to be read while nothing runs.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/api/backend.h"
#include "server/base/mutex.h"

namespace oscarkv {

class FaultyBackend : public Backend {
 public:
  explicit FaultyBackend(Backend* inner) : inner_(inner) {}

  // Call number `call` from now on, from 0, fails with `status`.
  void FailCall(int call, KernelStatus status) {
    MutexLock lock(&mutex_);
    calls_left_ = call;
    status_ = std::move(status);
    throws_ = false;
  }
  // It throws bad_alloc instead, as the code around a backend may.
  void ThrowInCall(int call) {
    MutexLock lock(&mutex_);
    calls_left_ = call;
    throws_ = true;
  }
  void Disarm() {
    MutexLock lock(&mutex_);
    calls_left_ = -1;
  }
  // Whether the fault that was armed last has struck.
  bool struck() const {
    MutexLock lock(&mutex_);
    return calls_left_ < 0;
  }

  // Calls that went well, by name of the operation.
  const std::map<std::string, int>& calls() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return calls_; }
  // The bytes of all pages sealed, in the order of sealing, which ends with a page's last head.
  const std::vector<std::string>& pages() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return pages_; }

  BackendInfo Info() const override { return inner_->Info(); }
  KernelStatus Allocate(std::int64_t bytes, std::span<BlockId> blocks) override;
  void Free(std::span<const BlockId> blocks) override { inner_->Free(blocks); }
  KernelStatus Append(std::span<const AppendItem> items) override;
  KernelStatus Attend(std::span<const AttendItem> items) override;
  KernelStatus Seal(std::span<SealItem> items) override;
  KernelStatus ReadTokens(std::span<const ReadItem> items) override;
  KernelStatus Copy(std::span<const CopyItem> items) override;
  KernelStatus ReadBlock(BlockId block, std::span<std::byte> bytes) override {
    return inner_->ReadBlock(block, bytes);
  }
  KernelStatus WriteBlock(BlockId block, std::span<const std::byte> bytes) override {
    return inner_->WriteBlock(block, bytes);
  }

 private:
  // Counts a call that `done` tells the result of, and turns it into a failure if it is its turn.
  KernelStatus After(const char* name, KernelStatus done);

  Backend* const inner_;
  mutable Mutex mutex_;
  int calls_left_ ABSL_GUARDED_BY(mutex_) = -1;
  KernelStatus status_ ABSL_GUARDED_BY(mutex_);
  bool throws_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> pages_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace oscarkv
