#include "tests/server/session/model/store_rig.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "kernels/backend_factory.h"

namespace oscarkv {
namespace {

// What a write that never ended, or a file system, may leave behind the last commit.
void TearTail(const std::filesystem::path& path, std::mt19937_64* random) {
  std::ofstream file(path, std::ios::binary | std::ios::app);
  const bool zero = (*random)() % 2 == 0;
  for (std::uint64_t left = (*random)() % 300; left > 0; --left) {
    file.put(static_cast<char>(zero ? 0 : (*random)()));
  }
}

}  // namespace

StoreRig::StoreRig(const RigOptions& options)
    : options_(options), folder_(::testing::TempDir() + "store_rig_XXXXXX") {
  EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  BackendResult made = MakeBackend({.kind = BackendKind::kCpu, .threads = 1});
  EXPECT_TRUE(made.status.ok()) << made.status.message;
  backend_ = std::move(made.backend);
  Start();
}

StoreRig::~StoreRig() {
  store_.reset();
  dir_.reset();
  std::filesystem::remove_all(folder_);
}

void StoreRig::Start() {
  StoreOptions options{.memory_budget_bytes = options_.budget,
                       .settle_after = absl::InfiniteDuration(),
                       // Requests at random leave most steps in the middle.
                       .step_lease = absl::ZeroDuration(),
                       .first_generation = next_generation_ += 1 << 20,
                       .durability = Durability::kWritten,
                       .checkpoint_interval = options_.checkpoint_interval};
  if (options_.files) {
    auto dir = DataDir::Open(data(), &calls_);
    ASSERT_TRUE(dir.ok()) << dir.status();
    dir_ = *std::move(dir);
    options.data_dir = dir_.get();
  }
  store_ = std::make_unique<SessionStore>(backend_.get(), options);
  if (!options_.files) return;
  const auto report = store_->Recover();
  ASSERT_TRUE(report.ok()) << report.status();
  for (const std::string& remark : report->remarks) {
    EXPECT_NE(remark.find("behind the last commit"), std::string::npos) << remark;
  }
}

void StoreRig::Restart(bool from_copy) {
  store_.reset();
  EXPECT_EQ(backend_->Info().block_bytes, 0);
  dir_.reset();
  if (from_copy) {
    std::filesystem::remove_all(data());
    std::filesystem::rename(copy(), data());
    for (const auto& file : std::filesystem::directory_iterator(data() + "/sessions")) {
      if (random_() % 2 == 0) TearTail(file.path(), &random_);
    }
  }
  Start();
}

std::int64_t StoreRig::Files() const {
  const std::filesystem::directory_iterator files(data() + "/sessions");
  return std::distance(begin(files), end(files));
}

}  // namespace oscarkv
