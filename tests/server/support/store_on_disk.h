// A store over the CPU backend whose sessions have files, and ends as after a kill.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "server/file/data_dir.h"
#include "tests/server/support/store_on_cpu.h"

namespace oscarkv {

class StoreOnDisk : public StoreOnCpu {
 protected:
  StoreOnDisk();
  ~StoreOnDisk() override;

  // Ends the store as a crash would, but for what the destructors do: nothing is written there.
  // Another one, of `options_`, takes over its files.
  RecoveryReport Start();
  RecoveryReport Start(std::int64_t budget, absl::Duration interval = absl::InfiniteDuration());

  std::size_t Files() const;

  std::string folder_ = ::testing::TempDir() + "store_XXXXXX";
  SystemCalls* calls_ = SystemCalls::Real();
  // Of the next start; the directory and the first generation are filled in.
  StoreOptions options_;
  std::unique_ptr<DataDir> dir_;
  std::uint64_t next_generation_ = 0;
  std::atomic<int> failures_told_ = 0;
};

}  // namespace oscarkv
