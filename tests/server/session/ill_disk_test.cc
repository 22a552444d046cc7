// A disk that is ill for a long time: it fills up, fails, writes half, forgets at a loss of power.
// What was durable stays, to the bit, and once the disk is well again everything goes on.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/support/store_on_disk.h"
#include "tests/server/support/test_session.h"
#include "tests/server/support/transfer.h"

namespace oscarkv {
namespace {

// While it is ill, one call of six that change files, and one of thirty that read, fails.
class IllDisk : public SystemCalls {
 public:
  void SetIll(bool ill) { ill_ = ill; }
  std::int64_t failures() const { return failures_; }

  int Open(const char* path, int flags, mode_t mode) override {
    if (Fails(30, EMFILE)) return -1;
    const int file = SystemCalls::Open(path, flags, mode);
    if (file >= 0) paths_[file] = path;
    return file;
  }
  ssize_t Pwrite(int file, const void* bytes, std::size_t count, off_t offset) override {
    if (!Fails(6, random_() % 2 == 0 ? ENOSPC : EIO)) {
      return SystemCalls::Pwrite(file, bytes, count, offset);
    }
    // A part of it may be there, and may even be told of.
    const std::size_t some = count == 0 ? 0 : random_() % count;
    const ssize_t written = SystemCalls::Pwrite(file, bytes, some, offset);
    errno = ENOSPC;
    return random_() % 2 == 0 && written > 0 ? written : -1;
  }
  ssize_t Pread(int file, void* bytes, std::size_t count, off_t offset) override {
    return Fails(30, EIO) ? -1 : SystemCalls::Pread(file, bytes, count, offset);
  }
  int Fdatasync(int file) override {
    if (Fails(6, EIO)) return -1;
    struct stat status {};
    EXPECT_EQ(::fstat(file, &status), 0);
    synced_[paths_[file]] = static_cast<std::uint64_t>(status.st_size);
    return 0;
  }
  int Fsync(int /*file*/) override { return Fails(6, EIO) ? -1 : 0; }
  int Ftruncate(int file, off_t length) override {
    if (Fails(6, EIO)) return -1;
    std::uint64_t& synced = synced_[paths_[file]];
    synced = std::min(synced, static_cast<std::uint64_t>(length));
    return SystemCalls::Ftruncate(file, length);
  }
  int Rename(const char* from, const char* to) override {
    const bool fails = Fails(6, EIO);
    if (!fails || random_() % 2 == 0) {
      synced_[to] = std::exchange(synced_[from], 0);
      if (SystemCalls::Rename(from, to) != 0) return -1;
    }
    errno = EIO;
    return fails ? -1 : 0;
  }
  int Unlink(const char* path) override {
    const bool fails = Fails(6, EIO);
    const int result = !fails || random_() % 2 == 0 ? SystemCalls::Unlink(path) : 0;
    if (!fails) return result;
    errno = EIO;
    return -1;
  }

  // Of what was not synced, only some at the begin is left.
  void LosePower(const std::string& path) {
    const std::uint64_t size = std::filesystem::file_size(path);
    const std::uint64_t least = std::min(size, synced_[path]);
    std::filesystem::resize_file(path, least + random_() % (size - least + 1));
  }

 private:
  bool Fails(std::uint64_t one_of, int error) {
    if (!ill_ || random_() % one_of != 0) return false;
    ++failures_;
    errno = error;
    return true;
  }

  bool ill_ = false;
  std::int64_t failures_ = 0;
  std::mt19937_64 random_{5};
  std::map<int, std::string> paths_;             // of files that are open
  std::map<std::string, std::uint64_t> synced_;  // bytes, by path
};

class IllDiskTest : public StoreOnDisk {
 protected:
  // What the session's file may have: as a twin on no disk had it.
  struct State {
    std::int64_t length = 0;
    std::vector<Tokens> tokens = {};
    std::vector<std::byte> file = {};
  };

  IllDiskTest() {
    MakeStore(std::int64_t{1} << 30);
    std::swap(store_, twin_);
    calls_ = &disk_;
    options_.durability = Durability::kSynced;
  }

  ~IllDiskTest() override {
    store_.reset();
    dir_.reset();
  }

  void Create() {
    ASSERT_TRUE(store_->Create(config_).ok());
    (void)twin_->Delete("a", 0);
    ASSERT_TRUE(twin_->Create(config_).ok());
    length_ = 0;
    in_file_.clear();
  }
  void StepBoth(int count) {
    const std::vector<float> answers = Step("a", length_, count);
    std::swap(store_, twin_);
    const std::vector<float> expected = Step("a", length_, count);
    std::swap(store_, twin_);
    ASSERT_TRUE(answers == expected) << "at " << length_;
    length_ += count;
  }
  State StateOfTwin(const std::string& id) {
    State state{.length = twin_->Get(id)->committed_length};
    for (std::size_t i = 0; i < config_.layers.size(); ++i) {
      state.tokens.push_back(*ReadAll(*twin_, id, i));
    }
    state.file = ExportAll(twin_.get(), id);
    return state;
  }
  void ImportIntoTwin(const std::string& id, const State& state) {
    (void)twin_->Delete(id, 0);
    ImportOptions options;
    options.session = id;
    options.request_id = "import";
    const auto info = ImportAll(twin_.get(), state.file, std::move(options));
    ASSERT_TRUE(info.ok()) << info.status();
  }
  State Truncated(const State& state, std::int64_t length) {
    ImportIntoTwin("cut", state);
    EXPECT_TRUE(twin_->Truncate("cut", "", twin_->Get("cut")->generation, length).ok());
    return StateOfTwin("cut");
  }
  void MayBeInFile(State state) {
    for (const State& known : in_file_) {
      if (known.length == state.length && known.tokens == state.tokens &&
          known.file.size() == state.file.size()) {
        return;
      }
    }
    in_file_.push_back(std::move(state));
  }

  absl::Status Truncate(std::int64_t length) {
    const absl::Status s = store_->Truncate("a", "", Info("a").generation, length).status();
    const std::vector<State> before = s.ok() ? std::exchange(in_file_, {}) : in_file_;
    for (const State& state : before) {
      MayBeInFile(state.length > length ? Truncated(state, length) : state);
    }
    if (!s.ok()) return s;
    EXPECT_TRUE(twin_->Truncate("a", "", twin_->Get("a")->generation, length).ok());
    length_ = length;
    return s;
  }
  absl::Status Write(bool evict) {
    const absl::Status s = (evict ? store_->Evict("a", 0) : store_->Checkpoint("a", 0)).status();
    if (s.ok()) {
      EXPECT_EQ(Info("a").durable_length, length_);
      in_file_.clear();
    }
    MayBeInFile(StateOfTwin("a"));
    return s;
  }
  absl::Status SomethingIll() {
    const std::uint64_t draw = random_() % 5;
    if (draw == 0) return store_->Restore("a", 0).status();
    if (draw > 1) return Write(draw == 2);
    return Truncate(static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(length_ + 1)));
  }

  // What the store finds is a state that its file may have.
  void CrashAndCheck() {
    const std::int64_t durable = Info("a").durable_length;
    store_.reset();
    if (random_() % 2 == 0) {
      for (const auto& file : std::filesystem::directory_iterator(folder_ + "/data/sessions")) {
        disk_.LosePower(file.path());
      }
    }
    Start();
    if (!store_->Get("a").ok()) {
      ASSERT_EQ(durable, 0);
      return Create();
    }
    ASSERT_GE(Info("a").committed_length, durable);
    std::vector<Tokens> tokens;
    for (std::size_t i = 0; i < config_.layers.size(); ++i) {
      tokens.push_back(*ReadAll(*store_, "a", i));
    }
    const auto found = std::find_if(in_file_.begin(), in_file_.end(), [&](const State& state) {
      return state.length == Info("a").committed_length && state.tokens == tokens;
    });
    ASSERT_NE(found, in_file_.end()) << "it never had these " << Info("a").committed_length;
    const State state = *found;
    ASSERT_NO_FATAL_FAILURE(ImportIntoTwin("a", state));
    length_ = state.length;
    in_file_ = {state};
  }

  IllDisk disk_;
  std::unique_ptr<SessionStore> twin_;
  const SessionConfig config_ = SmallSession("a", 2);
  std::mt19937_64 random_{6};
  std::int64_t length_ = 0;
  std::vector<State> in_file_;  // one of them is
};

TEST_F(IllDiskTest, NothingDurableIsLostAndNothingWrongServed) {
  const int rounds = std::getenv("OSCARKV_TEST_FULL") != nullptr ? 4000 : 200;
  Start();
  ASSERT_NO_FATAL_FAILURE(Create());
  int refused = 0;
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < 8; ++i) {
      ASSERT_NO_FATAL_FAILURE(StepBoth(1 + static_cast<int>(random_() % 40)));
      disk_.SetIll(random_() % 4 != 0);
      const absl::Status s = SomethingIll();
      disk_.SetIll(false);
      refused += s.ok() ? 0 : 1;
      ASSERT_EQ(Info("a").committed_length, length_) << s;
      ASSERT_LE(Info("a").durable_length, length_);
    }
    ASSERT_NO_FATAL_FAILURE(CrashAndCheck()) << "round " << round;
  }
  EXPECT_GT(refused, rounds);
  EXPECT_GT(disk_.failures(), rounds);
}

}  // namespace
}  // namespace oscarkv
