// Disks that are slow: whoever needs nothing of them does not wait for them.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/mutex.h"
#include "tests/server/support/store_on_disk.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

// Writes to one file stand still for as long as they are told to.
class StandingDisk : public SystemCalls {
 public:
  int Open(const char* path, int flags, mode_t mode) override {
    const int file = SystemCalls::Open(path, flags, mode);
    if (std::string_view(path).find("/slow.okv") != std::string_view::npos) slow_ = file;
    return file;
  }
  ssize_t Pwrite(int file, const void* bytes, std::size_t count, off_t offset) override {
    if (file == slow_) Stand();
    return SystemCalls::Pwrite(file, bytes, count, offset);
  }

  void Stop() {
    MutexLock lock(&mutex_);
    stopped_ = true;
  }
  void GoOn() {
    MutexLock lock(&mutex_);
    stopped_ = false;
    changed_.SignalAll();
  }
  bool stands() {
    MutexLock lock(&mutex_);
    return stands_;
  }

 private:
  void Stand() {
    MutexLock lock(&mutex_);
    stands_ = stopped_;
    while (stopped_) changed_.Wait(&mutex_);
    stands_ = false;
  }

  std::atomic<int> slow_ = -1;
  Mutex mutex_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool stands_ ABSL_GUARDED_BY(mutex_) = false;
};

class SlowDiskTest : public StoreOnDisk {
 protected:
  SlowDiskTest() { calls_ = &disk_; }
  ~SlowDiskTest() override {
    EndStandstill();
    store_.reset();
    dir_.reset();
  }

  // From here on a checkpoint of the session "slow" is under way, for ten seconds at most.
  void BeginStandstill() {
    disk_.Stop();
    threads_.emplace_back([this] { store_->Checkpoint("slow", 0).IgnoreError(); });
    for (int i = 0; i < 1000 && !disk_.stands(); ++i) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_TRUE(disk_.stands());
    threads_.emplace_back([this] {
      for (int i = 0; i < 1000 && !ended_; ++i) absl::SleepFor(absl::Milliseconds(10));
      disk_.GoOn();
    });
  }
  void EndStandstill() {
    ended_ = true;
    disk_.GoOn();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // Calls that may wait for the disk, and what is done meanwhile must not.
  template <typename Call>
  void Begin(Call call) {
    threads_.emplace_back(call);
    absl::SleepFor(absl::Milliseconds(50));  // long enough to get to where it waits
  }

  StandingDisk disk_;
  std::atomic<bool> ended_ = false;
  std::vector<std::thread> threads_;
};

TEST_F(SlowDiskTest, RequestsGoOnWhileOthersWaitForTheirFile) {
  Start();
  ASSERT_TRUE(store_->Create(SmallSession("slow")).ok());
  Fill("slow", 0, 300);
  const std::uint64_t generation = Info("slow").generation;
  const std::int64_t logical_bytes = store_->Totals().logical_bytes;
  BeginStandstill();
  EXPECT_EQ(store_->Totals().logical_bytes, logical_bytes);  // what is written counts once
  Begin([this] { EXPECT_TRUE(store_->Checkpoint("slow", 0).ok()); });
  Begin([this, generation] { EXPECT_TRUE(store_->Truncate("slow", "", generation, 300).ok()); });
  Begin([this] { EXPECT_TRUE(store_->Evict("slow", 0).ok()); });
  Fill("slow", 300, 320, 1);
  EXPECT_TRUE(disk_.stands());
  EndStandstill();
  EXPECT_EQ(Info("slow").committed_length, 300);
}

TEST_F(SlowDiskTest, RoomIsMadeWhereNoFileIsBeingWritten) {
  MakeStore(std::int64_t{1} << 30);
  for (const char* id : {"slow", "other", "third"}) {
    ASSERT_TRUE(store_->Create(SmallSession(id)).ok());
    Fill(id, 0, 1000);
  }
  Start(store_->Totals().resident_bytes * 5 / 6);
  for (const char* id : {"slow", "other"}) {
    ASSERT_TRUE(store_->Create(SmallSession(id)).ok());
    Fill(id, 0, 1000);
  }
  BeginStandstill();
  ASSERT_TRUE(store_->Create(SmallSession("third")).ok());
  Fill("third", 0, 1000);
  EXPECT_TRUE(disk_.stands());
  EXPECT_TRUE(Info("other").evicted);
  EXPECT_FALSE(Info("slow").evicted);
}

}  // namespace
}  // namespace oscarkv
