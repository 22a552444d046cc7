#include "tests/server/support/store_on_disk.h"

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <utility>

namespace oscarkv {

StoreOnDisk::StoreOnDisk()
    : options_{.memory_budget_bytes = std::int64_t{1} << 30,
               .settle_after = absl::InfiniteDuration(),
               .durability = Durability::kWritten,
               .checkpoint_interval = absl::InfiniteDuration(),
               .on_tier_failure = [this](std::string_view session, const absl::Status& status) {
                 EXPECT_FALSE(status.ok());
                 EXPECT_FALSE(session.empty());
                 ++failures_told_;
               }} {
  EXPECT_NE(mkdtemp(folder_.data()), nullptr);
}

StoreOnDisk::~StoreOnDisk() {
  store_.reset();
  dir_.reset();
  std::filesystem::remove_all(folder_);
}

RecoveryReport StoreOnDisk::Start() {
  store_.reset();
  dir_.reset();
  auto dir = DataDir::Open(folder_ + "/data", calls_);
  EXPECT_TRUE(dir.ok()) << dir.status();
  dir_ = *std::move(dir);
  options_.data_dir = dir_.get();
  options_.first_generation = next_generation_ += 1000;
  store_ = std::make_unique<SessionStore>(backend_.get(), options_);
  auto report = store_->Recover();
  EXPECT_TRUE(report.ok()) << report.status();
  return *std::move(report);
}

RecoveryReport StoreOnDisk::Start(std::int64_t budget, absl::Duration interval) {
  options_.memory_budget_bytes = budget;
  options_.checkpoint_interval = interval;
  return Start();
}

std::size_t StoreOnDisk::Files() const {
  const std::filesystem::directory_iterator files(folder_ + "/data/sessions");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

}  // namespace oscarkv
