// What the health service says when files cannot be written, and that it recovers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/e2e/test_server.h"

namespace oscarkv::testing {
namespace {

constexpr char kService[] = "oscarkv.v1.KvCacheService";

class HealthTest : public ::testing::Test {
 protected:
  HealthTest() { EXPECT_NE(mkdtemp(folder_.data()), nullptr); }
  ~HealthTest() override { std::filesystem::remove_all(folder_); }

  Config ConfigWithFiles() const {
    Config config = TestConfig();
    config.data_dir = folder_ + "/data";
    config.checkpoint_interval = absl::Milliseconds(10);
    return config;
  }
  static void WaitFor(TestServer& server, const std::string& expected) {
    for (int i = 0; i < 6000 && HealthOf(server, kService) != expected; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_EQ(HealthOf(server, kService), expected);
  }

  std::string folder_ = ::testing::TempDir() + "health_XXXXXX";
};

TEST_F(HealthTest, FilesThatCannotBeWrittenTurnTheServiceRedAndNotTheProcess) {
  TestServer server(ConfigWithFiles());
  const std::string sessions = folder_ + "/data/sessions";
  for (int i = 0; i < 4; ++i) Create(server.stub(), absl::StrCat("s", i));
  EXPECT_EQ(HealthOf(server, kService), kServing);
  std::filesystem::rename(sessions, sessions + ".away");
  for (int i = 0; i < 4; ++i) {
    Append(server.stub(), AppendRequestOf({}, Get(server.stub(), absl::StrCat("s", i)), 0, 0, 100));
  }
  ASSERT_NO_FATAL_FAILURE(WaitFor(server, kNotServing));
  EXPECT_EQ(HealthOf(server, ""), kServing);
  Get(server.stub(), "s0");  // it serves all the same
  std::filesystem::rename(sessions + ".away", sessions);
  ASSERT_NO_FATAL_FAILURE(WaitFor(server, kServing));

  server.server().Drain(absl::Seconds(10));
}

}  // namespace
}  // namespace oscarkv::testing
