// A server that is killed, and the one that takes over its data directory.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/server_process.h"
#include "tests/e2e/test_server.h"

namespace oscarkv::testing {
namespace {

constexpr TestModel kModel = {.layers = 2};

class DurabilityTest : public ::testing::Test {
 protected:
  DurabilityTest() { EXPECT_NE(mkdtemp(folder_.data()), nullptr); }
  ~DurabilityTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start(const std::string& interval, const std::string& budget = "256MiB") {
    server_.reset();
    server_ = std::make_unique<ServerProcess>(std::vector<std::string>{
        absl::StrCat("--data-dir=", folder_, "/data"), "--checkpoint-interval=" + interval,
        "--fsync=never", "--memory-budget=" + budget});
    stub_ = v1::KvCacheService::NewStub(Connect(server_->address()));
  }
  void Stop(int signal) {
    server_->Kill(signal);
    server_->WaitForExit();
  }
  // One token through all layers; returns all outputs.
  std::string Step(const v1::Session& session, std::int64_t position, int tokens = 1) {
    std::string outputs;
    for (int layer = 0; layer < kModel.layers; ++layer) {
      const auto response =
          Attend(*stub_, AttendRequestOf(kModel, session, layer, position, tokens, 1));
      outputs += response.output().raw() + response.log_sum_exp().raw();
    }
    return outputs;
  }

  std::string folder_ = ::testing::TempDir() + "durability_XXXXXX";
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(DurabilityTest, AStopBySigtermLosesNothing) {
  Start("24h");
  const v1::Session session = Create(*stub_, "a", kModel);
  Step(session, 0, 300);
  Stop(SIGTERM);
  Start("24h");
  EXPECT_EQ(Get(*stub_, "a").committed_length(), 300);
  EXPECT_EQ(Get(*stub_, "a").durable_length(), 300);
  EXPECT_NE(Get(*stub_, "a").generation(), session.generation());
  EXPECT_TRUE(Get(*stub_, "a").evicted());
}

TEST_F(DurabilityTest, KillsAtAnyMomentLoseNothingDurableAndChangeNoAnswer) {
  const int kills = std::getenv("OSCARKV_TEST_FULL") != nullptr ? 200 : 12;
  const int steps = 35 * kills;
  std::vector<std::string> expected;
  {
    TestServer undisturbed;
    const v1::Session session = Create(undisturbed.stub(), "a", kModel);
    for (int step = 0; step < steps; ++step) {
      std::string outputs;
      for (int layer = 0; layer < kModel.layers; ++layer) {
        const auto response =
            Attend(undisturbed.stub(), AttendRequestOf(kModel, session, layer, step, 1, 1));
        outputs += response.output().raw() + response.log_sum_exp().raw();
      }
      expected.push_back(outputs);
    }
  }
  std::mt19937_64 random(7);
  Start("10ms");
  v1::Session session = Create(*stub_, "a", kModel);
  std::int64_t position = 0;
  for (int kill = 0; kill < kills; ++kill) {
    std::int64_t durable = 0;
    const std::int64_t end =
        std::min<std::int64_t>(steps, position + 1 + static_cast<std::int64_t>(random() % 60));
    for (; position < end; ++position) {
      ASSERT_EQ(Step(session, position), expected[static_cast<std::size_t>(position)]) << position;
      if (random() % 8 == 0) durable = Get(*stub_, "a").durable_length();
    }
    // Each of the servers makes durable what it is given.
    while (kill % 2 == 0 && durable < position) durable = Get(*stub_, "a").durable_length();
    // In the middle of a step too.
    if (random() % 2 == 0 && position < steps) {
      Attend(*stub_, AttendRequestOf(kModel, session, 0, position, 1, 1));
    }
    Stop(SIGKILL);
    Start("10ms");
    session = Get(*stub_, "a");
    ASSERT_GE(session.committed_length(), durable);
    ASSERT_LE(session.committed_length(), position);
    session = Truncate(*stub_, session, session.committed_length());
    position = session.committed_length();
  }
}

TEST_F(DurabilityTest, MoreSessionsThanMemoryHasRoomFor) {
  Start("10s", "1MiB");
  constexpr int kSessions = 12;
  std::vector<v1::Session> sessions;
  for (int i = 0; i < kSessions; ++i) {
    sessions.push_back(Create(*stub_, absl::StrCat("s", i), kModel));
    Step(sessions.back(), 0, 300);
  }
  for (int round = 0; round < 4; ++round) {
    for (const v1::Session& session : sessions) Step(session, 300 + round);
  }
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(Call(*stub_, &Stub::GetServerInfo, {}, info).ok());
  EXPECT_LE(info.resident_bytes(), (1 << 20) + (1 << 14));
  for (int i = 0; i < kSessions; ++i) {
    EXPECT_EQ(Get(*stub_, absl::StrCat("s", i)).committed_length(), 304);
  }
}

TEST_F(DurabilityTest, SessionsAreCheckpointedEvictedAndRestoredByRequest) {
  Start("24h");
  const v1::Session session = Create(*stub_, "a", kModel);
  Step(session, 0, 300);

  v1::CheckpointSessionRequest checkpoint;
  v1::CheckpointSessionResponse checkpointed;
  checkpoint.set_session("a");
  checkpoint.set_generation(session.generation() + 1);
  EXPECT_EQ(ReasonOf(Call(*stub_, &Stub::CheckpointSession, checkpoint, checkpointed)),
            "GENERATION_MISMATCH");
  checkpoint.set_generation(session.generation());
  ASSERT_TRUE(Call(*stub_, &Stub::CheckpointSession, checkpoint, checkpointed).ok());
  EXPECT_EQ(checkpointed.session().durable_length(), 300);
  EXPECT_EQ(checkpointed.session().layer_states_size(), kModel.layers);

  v1::EvictSessionRequest evict;
  v1::EvictSessionResponse evicted;
  evict.set_session("a");
  for (int time = 0; time < 2; ++time) {
    ASSERT_TRUE(Call(*stub_, &Stub::EvictSession, evict, evicted).ok());
    EXPECT_TRUE(evicted.session().evicted());
    EXPECT_EQ(evicted.session().resident_bytes(), 0);
  }
  v1::RestoreSessionRequest restore;
  v1::RestoreSessionResponse restored;
  restore.set_session("a");
  for (int time = 0; time < 2; ++time) {
    ASSERT_TRUE(Call(*stub_, &Stub::RestoreSession, restore, restored).ok());
    EXPECT_FALSE(restored.session().evicted());
    EXPECT_GT(restored.session().resident_bytes(), 0);
  }
  EXPECT_EQ(restored.session().generation(), session.generation());
  Step(session, 300);
  Stop(SIGKILL);
  Start("24h");
  EXPECT_EQ(Get(*stub_, "a").committed_length(), 300);
}

TEST_F(DurabilityTest, TwoServersDoNotShareADirectory) {
  Start("1s");
  ServerProcess second({absl::StrCat("--data-dir=", folder_, "/data")}, ServerProcess::kDoNotWait);
  EXPECT_EQ(second.WaitForExit(), 1);
  EXPECT_NE(second.Log().find(folder_), std::string::npos) << second.Log();
}

}  // namespace
}  // namespace oscarkv::testing
