// A store over the CPU backend with a data directory, if wanted, that ends and starts again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "kernels/api/backend.h"
#include "server/file/data_dir.h"
#include "server/session/session_store.h"
#include "tests/server/session/model/crash_calls.h"

namespace oscarkv {

struct RigOptions {
  std::int64_t budget = std::int64_t{1} << 30;
  bool files = true;
  absl::Duration checkpoint_interval = absl::InfiniteDuration();
};

class StoreRig {
 public:
  explicit StoreRig(const RigOptions& options);
  ~StoreRig();
  StoreRig(const StoreRig&) = delete;
  StoreRig& operator=(const StoreRig&) = delete;

  SessionStore* store() { return store_.get(); }
  Backend* backend() { return backend_.get(); }

  // The directory is copied at a later change of its files, in the middle of it.
  void ArmCrash(int changes) { calls_.Arm(changes, data(), copy()); }
  bool Crashed() { return calls_.Disarm(); }
  // Ends the store with what it has not written, and starts another one: from the directory, or
  // from what was copied. REQUIRES: there is a directory.
  void Restart(bool from_copy);
  // How many files of sessions there are.
  std::int64_t Files() const;

 private:
  void Start();
  std::string data() const { return folder_ + "/data"; }
  std::string copy() const { return folder_ + "/copy"; }

  const RigOptions options_;
  std::string folder_;
  CrashCalls calls_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DataDir> dir_;
  std::unique_ptr<SessionStore> store_;
  std::uint64_t next_generation_ = 1;
  std::mt19937_64 random_{9};
};

}  // namespace oscarkv
