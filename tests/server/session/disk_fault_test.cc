// Disks that fail: whatever call of the system does, and however the process ends afterwards, what
// a session was told to be durable is there, and nothing that it has dropped comes back.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/kernels/support/failing_new.h"
#include "tests/server/file/failing_calls.h"
#include "tests/server/support/error_details.h"
#include "tests/server/support/store_on_disk.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

// A session whose tokens all stay in 16 bits: what is read is what was appended.
SessionConfig ExactSession(const std::string& id) {
  SessionConfig config = SmallSession(id);
  config.layers[0].codec.window = 1024;
  return config;
}

// Syncs take long, and show nothing: what was written is there until power is lost.
struct FailingDisk : FailingCalls {
  std::string folder;           // where all files are
  std::size_t room = SIZE_MAX;  // bytes that they may have

  ssize_t Pwrite(int file, const void* bytes, std::size_t count, off_t offset) override {
    if (room != SIZE_MAX) {
      std::size_t used = 0;
      for (const auto& entry : std::filesystem::directory_iterator(folder))
        used += entry.file_size();
      count = std::min(count, room - std::min(room, used));
    }
    if (count > 0) return FailingCalls::Pwrite(file, bytes, count, offset);
    errno = ENOSPC;
    return -1;
  }
  int Fdatasync(int /*file*/) override { return Fails() ? -1 : 0; }
  int Fsync(int /*file*/) override { return Fails() ? -1 : 0; }
  int Syncfs(int /*file*/) override {
    ++all_synced;
    return Fails() ? -1 : 0;
  }
  int all_synced = 0;
};

// What a worker has appended to a session and not dropped: a seed for each position.
using Model = std::vector<std::uint64_t>;

// Sessions beside models of them.
class DiskFaultTest : public StoreOnDisk {
 protected:
  DiskFaultTest() {
    calls_ = &failing_;
    failing_.folder = folder_ + "/data/sessions";
  }
  ~DiskFaultTest() override {
    failing_.fail_at = -1;
    store_.reset();
    dir_.reset();  // while its calls are there
  }

  void Create(const std::string& id) {
    const auto info = store_->Create(ExactSession(id));
    ASSERT_TRUE(info.ok()) << info.status();
    models_[id] = {};
  }
  // Tokens that no other call appends.
  absl::Status Append(const std::string& id, int count) {
    const std::uint64_t seed = ++seeds_;
    const SessionInfo info = Info(id);
    const Source source{.spec = info.config->layers.data(), .seed = seed};
    if_done_ = models_;
    Model& model = if_done_[id];
    Request request = AppendRequest(id, info.generation, source,
                                    static_cast<std::int64_t>(model.size()), count, false);
    model.resize(model.size() + static_cast<std::size_t>(count), seed);
    return Done(oscarkv::Append(store_.get(), 0, &request));
  }
  absl::Status Checkpoint(const std::string& id) { return store_->Checkpoint(id, 0).status(); }
  absl::Status Evict(const std::string& id) { return store_->Evict(id, 0).status(); }
  absl::Status Restore(const std::string& id) { return store_->Restore(id, 0).status(); }
  absl::Status Truncate(const std::string& id, std::int64_t length) {
    if_done_ = models_;
    if_done_[id].resize(static_cast<std::size_t>(length));
    const std::string request = absl::StrCat("a request id of some length: ", ++seeds_);
    return Done(store_->Truncate(id, request, Info(id).generation, length).status());
  }
  absl::Status Delete(const std::string& id) {
    if_done_ = models_;
    if_done_.erase(id);
    return Done(store_->Delete(id, 0));
  }
  absl::Status ForkInPlaceOf(const std::string& id, const std::string& source) {
    ForkItem fork{.source = source,
                  .generation = Info(source).generation,
                  .length = {},
                  .session = id,
                  .request_id = absl::StrCat("fork ", ++seeds_),
                  .replace = true,
                  .status = {},
                  .info = {}};
    if_done_ = models_;
    if_done_[id] = if_done_[source];
    store_->Fork(std::span(&fork, 1));
    return Done(fork.status);
  }
  absl::Status Done(absl::Status s) {
    if (s.ok()) models_.swap(if_done_);
    return s;
  }
  // What was interrupted is done or not.
  void FindOutWhatWasDone() {
    for (const auto& [id, model] : if_done_) {
      if (Info(id).committed_length != static_cast<std::int64_t>(model.size())) return;
    }
    for (const auto& [id, model] : models_) {
      if (store_->Get(id).ok() != if_done_.contains(id)) return;
    }
    models_ = if_done_;
  }

  // Whether the session has the first tokens of what the model has.
  void ExpectPrefixOfModel(const std::string& id) {
    const SessionInfo info = Info(id);
    const Model& model = models_[id];
    const auto length = static_cast<std::size_t>(info.committed_length);
    ASSERT_LE(length, model.size()) << id;
    const auto tokens = ReadAll(*store_, id, 0);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    const LayerSpec& spec = info.config->layers[0];
    const std::size_t row = tokens->keys.size() / std::max<std::size_t>(length, 1);
    for (std::size_t i = 0; i < length; ++i) {
      const Source source{.spec = &spec, .seed = model[i]};
      const auto keys = source.Keys(static_cast<std::int64_t>(i), 1);
      ASSERT_TRUE(std::equal(keys.begin(), keys.end(),
                             tokens->keys.begin() + static_cast<std::ptrdiff_t>(i * row)))
          << id << " at " << i << " of " << length;
    }
  }
  // Kills the store, and starts another one, which must have what was durable and nothing else.
  void KillAndCheck() {
    std::map<std::string, std::int64_t> durable;
    for (const auto& [id, model] : models_) durable[id] = Info(id).durable_length;
    failing_.fail_at = -1;
    Start();
    for (const SessionInfo& info : store_->List("", 100, {})) {
      EXPECT_TRUE(models_.contains(info.config->id)) << info.config->id << " came back";
    }
    for (const auto& [id, length] : durable) {
      if (length == 0 && !store_->Get(id).ok()) continue;
      ASSERT_TRUE(store_->Get(id).ok()) << id << " is lost, of which " << length << " were durable";
      EXPECT_GE(Info(id).committed_length, length) << id;
      ASSERT_NO_FATAL_FAILURE(ExpectPrefixOfModel(id));
    }
  }

  FailingDisk failing_;
  std::map<std::string, Model> models_;
  std::map<std::string, Model> if_done_;  // models_, once what was called last is done
  std::uint64_t seeds_ = 0;
};

TEST_F(DiskFaultTest, AFileThatRecoveryCouldNotTakeIsNotOverwritten) {
  Start();
  for (const char* id : {"a", "b"}) {
    ASSERT_NO_FATAL_FAILURE(Create(id));
    ASSERT_EQ(Append(id, 100), absl::OkStatus());
    ASSERT_EQ(Checkpoint(id), absl::OkStatus());
  }
  std::int64_t of_one = 0;
  {
    MakeStore(1 << 20);
    ASSERT_TRUE(store_->Create(ExactSession("a")).ok());
    of_one = store_->Totals().resident_bytes;
  }
  // There is room for the first of them.
  const RecoveryReport report = Start(of_one * 3 / 2);
  EXPECT_EQ(report.sessions, 1);
  ASSERT_EQ(report.remarks.size(), 1);
  ASSERT_EQ(store_->Delete("a", 0), absl::OkStatus());
  const auto expect_withheld = [](const absl::Status& s) {
    EXPECT_TRUE(absl::IsFailedPrecondition(s)) << s;
    EXPECT_EQ(testing::ReasonOf(s), "FILE_WITHHELD");
  };
  expect_withheld(store_->Create(ExactSession("b")).status());
  Start(std::int64_t{1} << 30);
  EXPECT_EQ(Info("b").committed_length, 100);
  ASSERT_NO_FATAL_FAILURE(ExpectPrefixOfModel("b"));
}

TEST_F(DiskFaultTest, AFullDiskGivesBackWhatAFailedCheckpointTook) {
  Start();
  for (const char* id : {"big", "small"}) ASSERT_NO_FATAL_FAILURE(Create(id));
  ASSERT_EQ(Append("big", 900), absl::OkStatus());
  ASSERT_EQ(Append("small", 20), absl::OkStatus());
  failing_.room = 100 << 10;
  EXPECT_TRUE(absl::IsResourceExhausted(Checkpoint("big")));
  EXPECT_EQ(Files(), 0);
  EXPECT_EQ(Checkpoint("small"), absl::OkStatus());
  ASSERT_EQ(Append("small", 900), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(Checkpoint("small")));
  ASSERT_EQ(Truncate("small", 25), absl::OkStatus());
  EXPECT_EQ(Checkpoint("small"), absl::OkStatus());
  EXPECT_EQ(Info("small").durable_length, 25);
  ASSERT_NO_FATAL_FAILURE(KillAndCheck());
}

TEST_F(DiskFaultTest, WhereTheDiskHasNoRoomForTwoFilesOneGoesOn) {
  Start();
  ASSERT_NO_FATAL_FAILURE(Create("a"));
  ASSERT_EQ(Append("a", 1000), absl::OkStatus());
  const auto size = [this] { return std::filesystem::file_size(dir_->PathOf("a")); };
  ASSERT_EQ(Checkpoint("a"), absl::OkStatus());
  const auto first = size();
  // It is worth writing anew by then.
  while (size() < 3 * first + (1 << 20)) {
    ASSERT_EQ(Truncate("a", 500), absl::OkStatus());
    ASSERT_EQ(Append("a", 500), absl::OkStatus());
    failing_.room = size() + first * 3 / 4;
    ASSERT_EQ(Checkpoint("a"), absl::OkStatus());
  }
  failing_.room = SIZE_MAX;
  ASSERT_EQ(Append("a", 1), absl::OkStatus());
  ASSERT_EQ(Checkpoint("a"), absl::OkStatus());
  EXPECT_LT(size(), 2 * first);
  ASSERT_NO_FATAL_FAILURE(KillAndCheck());
}

TEST_F(DiskFaultTest, KeysOfPrefixesThatATruncateEndedDoNotComeBack) {
  Start();
  SessionConfig config = ExactSession("a");
  config.prefix_keys = {{.length = 200, .key = "key of 200"}, {.length = 400, .key = "key of 400"}};
  ASSERT_TRUE(store_->Create(config).ok());
  ASSERT_EQ(Append("a", 300), absl::OkStatus());
  ASSERT_EQ(Checkpoint("a"), absl::OkStatus());
  ASSERT_EQ(Append("a", 150), absl::OkStatus());
  ASSERT_EQ(Truncate("a", 350), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(KillAndCheck());
  models_["a"].resize(300);
  ASSERT_EQ(Append("a", 150), absl::OkStatus());
  config.id = "b";
  config.request_id = "b";
  const auto other = store_->Create(config);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->reused_length, 200);
}

TEST_F(DiskFaultTest, WhatIsFoundIsSyncedBeforeItIsCalledDurable) {
  Start();
  EXPECT_EQ(failing_.all_synced, 0);
  options_.durability = Durability::kSynced;
  Start();
  EXPECT_EQ(failing_.all_synced, 1);
}

// A life of sessions in steps, each of which may fail. After a step that fails all is as before.
struct Deed {
  const char* name;
  std::function<absl::Status()> run;
};

class LifeTest : public DiskFaultTest {
 protected:
  std::vector<Deed> Life() {
    return {
        {"append", [this] { return Append("a", 100); }},
        {"first checkpoint", [this] { return Checkpoint("a"); }},
        {"append", [this] { return Append("a", 70); }},
        {"checkpoint", [this] { return Checkpoint("a"); }},
        {"truncate", [this] { return Truncate("a", 120); }},
        {"append", [this] { return Append("a", 60); }},
        {"checkpoint", [this] { return Checkpoint("a"); }},
        {"append", [this] { return Append("a", 40); }},
        {"evict", [this] { return Evict("a"); }},
        {"restore", [this] { return Restore("a"); }},
        {"append", [this] { return Append("a", 10); }},
        {"truncate what is not durable", [this] { return Truncate("a", Size("a") - 5); }},
        {"append", [this] { return Append("a", 10); }},
        {"append", [this] { return Append("b", 90); }},
        {"checkpoint b", [this] { return Checkpoint("b"); }},
        {"fork", [this] { return ForkInPlaceOf("b", "a"); }},
        {"checkpoint b", [this] { return Checkpoint("b"); }},
        {"append", [this] { return Append("b", 20); }},
        {"fork", [this] { return ForkInPlaceOf("a", "b"); }},
        {"delete b", [this] { return models_.contains("b") ? Delete("b") : absl::OkStatus(); }},
    };
  }
  std::int64_t Size(const std::string& id) const {
    return static_cast<std::int64_t>(models_.at(id).size());
  }
  void Begin(Durability durability) {
    store_.reset();
    dir_.reset();
    std::filesystem::remove_all(folder_ + "/data");
    models_.clear();
    options_.durability = durability;
    Start();
    Create("a");
    Create("b");
    failing_.made = 0;
  }
};

class EachCallFails : public LifeTest, public ::testing::WithParamInterface<Durability> {};

TEST_P(EachCallFails, AndNothingIsLostOrComesBack) {
  int faults = 0;
  for (const bool for_good : {false, true}) {
    failing_.for_good = for_good;
    bool hit = true;
    for (int call = 0; hit; ++call) {
      for (const std::size_t lacking : {SIZE_MAX, std::size_t{64}}) {
        for (const int more : {0, 100}) {
          if (lacking == 64 && more > 0) continue;
          ASSERT_NO_FATAL_FAILURE(Begin(GetParam()));
          failing_.fail_at = call;
          failing_.lacking = lacking;
          std::string trace = absl::StrCat("call ", call, for_good ? " and all after it" : "",
                                           lacking == 64 ? ", torn" : "");
          const std::vector<Deed> life = Life();
          int left = more;
          for (std::size_t i = 0; i < life.size() && left >= 0; ++i) {
            const absl::Status s = life[i].run();
            if (!s.ok()) absl::StrAppend(&trace, "; ", life[i].name, " (", i, "): ", s.message());
            if (failing_.hit()) --left;
          }
          SCOPED_TRACE(trace);
          hit = failing_.hit();
          failing_.fail_at = -1;
          if (more == 100 && call % 2 == 0) {
            // It all works again.
            ASSERT_EQ(store_->CheckpointAll(), absl::OkStatus());
            for (const auto& [id, model] : models_) EXPECT_EQ(Info(id).durable_length, Size(id));
          }
          ASSERT_NO_FATAL_FAILURE(KillAndCheck());
          ++faults;
        }
      }
    }
  }
  EXPECT_GT(faults, 200);
}

INSTANTIATE_TEST_SUITE_P(Durabilities, EachCallFails,
                         ::testing::Values(Durability::kWritten, Durability::kSynced),
                         [](const auto& durability) {
                           return durability.param == Durability::kSynced ? "Synced" : "Written";
                         });

// The same, where memory ends instead of the disk.
TEST_F(LifeTest, EachAllocationFailsAndNothingIsLost) {
  int faults = 0;
  std::vector<bool> struck(Life().size(), true);
  for (std::size_t at = 0; at < struck.size(); ++at) {
    for (int n = 0; struck[at]; ++n) {
      ASSERT_NO_FATAL_FAILURE(Begin(Durability::kSynced));
      const std::vector<Deed> life = Life();
      for (std::size_t i = 0; i < at; ++i) ASSERT_EQ(life[i].run(), absl::OkStatus());
      SCOPED_TRACE(absl::StrCat(life[at].name, " (", at, "), allocation ", n));
      absl::Status s;
      if_done_ = models_;
      {
        const testing::FailingNew failing(n);
        try {
          s = life[at].run();
        } catch (const std::bad_alloc&) {
          s = absl::ResourceExhaustedError("thrown");
        }
        struck[at] = failing.struck();
      }
      if (!s.ok()) FindOutWhatWasDone();
      for (std::size_t i = at; i < life.size() && !s.ok() && n % 3 == 0; ++i) {
        ASSERT_EQ(life[i].run(), absl::OkStatus()) << life[i].name << i;
      }
      if (n % 2 == 0) {
        ASSERT_EQ(store_->CheckpointAll(), absl::OkStatus());
        for (const auto& [id, model] : models_) ASSERT_EQ(Info(id).durable_length, Size(id)) << id;
      }
      ASSERT_NO_FATAL_FAILURE(KillAndCheck());
      for (const SessionInfo& info : store_->List("", 100, {})) {
        ASSERT_EQ(store_->Delete(info.config->id, 0), absl::OkStatus());
      }
      ASSERT_EQ(store_->Totals().resident_bytes, 0);
      ASSERT_EQ(store_->Totals().logical_bytes, 0);
      ++faults;
    }
  }
  EXPECT_GT(faults, 100);
}

}  // namespace
}  // namespace oscarkv
