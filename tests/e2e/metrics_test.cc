// The metrics of a running server, as Prometheus scrapes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/metrics/metric_table.h"
#include "tests/e2e/server_process.h"
#include "tests/e2e/test_server.h"
#include "tests/server/support/scrape.h"

namespace oscarkv::testing {
namespace {

using ::testing::HasSubstr;

class MetricsTest : public ::testing::Test {
 protected:
  MetricsTest() { EXPECT_NE(mkdtemp(folder_.data()), nullptr); }
  ~MetricsTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_ = ::testing::TempDir() + "metrics_XXXXXX";
};

TEST_F(MetricsTest, EverySeriesIsThereAtZeroFromTheStart) {
  ServerProcess server({"--data-dir=" + folder_ + "/data"});
  const Scraped scraped = ParseMetrics(Scrape(server.metrics_address()));
  std::size_t series = 0;
  for (const auto& [name, value] : scraped.series) {
    if (!name.starts_with("oscarkv_")) continue;
    ++series;
    const bool may_be_set = name.starts_with("oscarkv_build_info") ||
                            name == "oscarkv_start_time_seconds" || name == "oscarkv_ready" ||
                            name == "oscarkv_budget_bytes" || name == "oscarkv_sweeps_total";
    if (!may_be_set) {
      EXPECT_EQ(value, 0) << name;
    }
  }
  std::size_t expected = 0;
  for (const Metric& metric : Metrics()) {
    ASSERT_TRUE(scraped.types.contains(metric.name)) << metric.name;
    const std::size_t parts =
        metric.type == MetricType::kHistogram ? kDurationBounds.size() + 3 : 1;
    expected += parts * SeriesOf(metric, {}).size();
  }
  EXPECT_EQ(series, expected);
  EXPECT_EQ(scraped.at("oscarkv_ready"), 1);
  EXPECT_GT(scraped.at("oscarkv_budget_bytes"), 0);
}

TEST_F(MetricsTest, ValuesFollowWhatIsDone) {
  Config config = TestConfig();
  config.metrics_address = "127.0.0.1:0";
  config.data_dir = folder_ + "/data";
  config.durability = Durability::kWritten;
  config.memory_budget_bytes = 2 << 20;
  TestServer server(config);
  const auto scrape = [&] { return ParseMetrics(Scrape(server.server().metrics_address())); };
  constexpr TestModel kModel = {.layers = 1};
  std::vector<v1::Session> sessions;
  for (int i = 0; i < 12; ++i) {
    sessions.push_back(Create(server.stub(), absl::StrCat("s", i), kModel));
  }
  Append(server.stub(), AppendRequestOf(kModel, sessions[0], 0, 0, 100));
  Scraped scraped = scrape();
  EXPECT_EQ(scraped.at("oscarkv_sessions{tier=\"memory\"}"), 12);
  EXPECT_EQ(scraped.at("oscarkv_tokens{tier=\"memory\"}"), 100);
  EXPECT_GT(scraped.at("oscarkv_resident_bytes{kind=\"window\"}"), 0);
  EXPECT_GT(scraped.at("oscarkv_resident_bytes{kind=\"session\"}"), 0);
  EXPECT_GT(scraped.at("oscarkv_logical_bytes"), 0);
  EXPECT_GE(scraped.at("oscarkv_held_bytes"), scraped.at("oscarkv_block_bytes"));
  EXPECT_EQ(scraped.at("oscarkv_evictions_total"), 0);

  // More than memory holds, in turns: all of them go and come back.
  std::int64_t length = 100;
  for (int i = 1; i < 12; ++i) {
    Append(server.stub(), AppendRequestOf(kModel, sessions[i], 0, 0, 100));
  }
  while (scrape().at("oscarkv_restores_total") < 12) {
    ASSERT_LT(length, 20000) << "nothing was evicted";
    for (const v1::Session& session : sessions) {
      Append(server.stub(), AppendRequestOf(kModel, session, 0, length, 100));
    }
    length += 100;
  }
  scraped = scrape();
  EXPECT_GT(scraped.at("oscarkv_sessions{tier=\"disk\"}"), 0);
  EXPECT_EQ(scraped.at("oscarkv_sessions{tier=\"disk\"}") +
                scraped.at("oscarkv_sessions{tier=\"memory\"}"),
            12);
  EXPECT_EQ(
      scraped.at("oscarkv_tokens{tier=\"disk\"}") + scraped.at("oscarkv_tokens{tier=\"memory\"}"),
      static_cast<double>(12 * length));
  EXPECT_GE(scraped.at("oscarkv_evictions_total"), 12);
  EXPECT_GE(scraped.at("oscarkv_restores_within_minute_total"), 12);
  EXPECT_GE(scraped.at("oscarkv_move_duration_seconds_count{operation=\"restore\"}"), 12);
  EXPECT_GT(scraped.at("oscarkv_move_duration_seconds_sum{operation=\"restore\"}"), 0);
  EXPECT_GT(scraped.at("oscarkv_session_file_bytes_total{direction=\"written\"}"), 0);
  EXPECT_GT(scraped.at("oscarkv_session_file_bytes_total{direction=\"read\"}"), 0);
  EXPECT_GT(scraped.at("oscarkv_checkpoint_lag_seconds"), 0);

  // Of the whole process, with the servers of other tests.
  const std::string refused = "oscarkv_rejections_total{reason=\"SESSION_NOT_FOUND\"}";
  const double before = scraped.at(refused);
  v1::GetSessionRequest request;
  request.set_session("nobody");
  v1::GetSessionResponse response;
  EXPECT_FALSE(Call(server.stub(), &Stub::GetSession, request, response).ok());
  EXPECT_EQ(scrape().at(refused), before + 1);
  server.server().Drain(absl::Seconds(10));
  scraped = scrape();
  EXPECT_EQ(scraped.at("oscarkv_ready"), 0);
  EXPECT_GE(scraped.at("oscarkv_checkpoints_total"), 1);
  EXPECT_EQ(scraped.at("oscarkv_checkpoint_lag_seconds"), 0);
}

TEST_F(MetricsTest, SessionsThatTheServerDeletesAreCounted) {
  Config config = TestConfig();
  config.metrics_address = "127.0.0.1:0";
  config.memory_budget_bytes = 2 << 20;
  config.drop_when_full = true;
  TestServer server(config);
  const auto dropped = [&](const char* reason) {
    const Scraped scraped = ParseMetrics(Scrape(server.server().metrics_address()));
    return scraped.at(absl::StrCat("oscarkv_dropped_sessions_total{reason=\"", reason, "\"}"));
  };
  constexpr TestModel kModel = {.layers = 1};
  v1::CreateSessionRequest request = CreateRequest("brief", kModel);
  request.mutable_retention()->mutable_ttl()->set_nanos(1);
  v1::CreateSessionResponse response;
  ASSERT_TRUE(Call(server.stub(), &Stub::CreateSession, request, response).ok());
  while (dropped("expired") < 1) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(dropped("room"), 0);
  for (int i = 0; dropped("room") < 1; ++i) {
    ASSERT_LT(i, 1000) << "nothing was dropped";
    const v1::Session session = Create(server.stub(), absl::StrCat("s", i), kModel);
    Append(server.stub(), AppendRequestOf(kModel, session, 0, 0, 100));
  }
  EXPECT_EQ(dropped("expired"), 1);
  for (const char* gone : {"brief", "s0"}) {
    v1::GetSessionRequest get;
    get.set_session(gone);
    v1::GetSessionResponse got;
    EXPECT_TRUE(absl::IsNotFound(Call(server.stub(), &Stub::GetSession, get, got))) << gone;
  }
}

TEST_F(MetricsTest, ScrapesWhileSessionsComeAndGo) {
  Config config = TestConfig();
  config.metrics_address = "127.0.0.1:0";
  config.data_dir = folder_ + "/data";
  config.durability = Durability::kWritten;
  config.checkpoint_interval = absl::Milliseconds(10);
  TestServer server(config);
  std::atomic<bool> stopped = false;
  std::vector<std::thread> scrapers;
  for (int i = 0; i < 3; ++i) {
    scrapers.emplace_back([&] {
      while (!stopped) ParseMetrics(Scrape(server.server().metrics_address()));
    });
  }
  constexpr TestModel kModel = {.layers = 1};
  std::vector<std::thread> clients;
  for (int c = 0; c < 2; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 40; ++i) {
        const v1::Session session = Create(server.stub(), absl::StrCat("s", c, ".", i), kModel);
        Append(server.stub(), AppendRequestOf(kModel, session, 0, 0, 50));
        v1::DeleteSessionRequest request;
        request.set_session(session.id());
        v1::DeleteSessionResponse response;
        EXPECT_TRUE(Call(server.stub(), &Stub::DeleteSession, request, response).ok());
      }
    });
  }
  for (std::thread& client : clients) client.join();
  stopped = true;
  for (std::thread& scraper : scrapers) scraper.join();
  const Scraped scraped = ParseMetrics(Scrape(server.server().metrics_address()));
  EXPECT_EQ(scraped.at("oscarkv_sessions{tier=\"memory\"}"), 0);
  EXPECT_EQ(scraped.at("oscarkv_tokens{tier=\"memory\"}"), 0);
  EXPECT_EQ(scraped.at("oscarkv_block_bytes"), 0);
}

TEST_F(MetricsTest, AnAddressThatIsTakenEndsTheStart) {
  ServerProcess first({});
  ServerProcess second({"--metrics-address=" + first.metrics_address()}, ServerProcess::kDoNotWait);
  EXPECT_EQ(second.WaitForExit(), 1);
  EXPECT_THAT(second.Log(),
              HasSubstr("cannot serve metrics on " + first.metrics_address() + ": the address"));
  Scrape(first.metrics_address());
}

TEST_F(MetricsTest, WithoutThemNothingListens) {
  ServerProcess server({"--metrics-address=off"});
  EXPECT_EQ(server.metrics_address(), "off");
}

}  // namespace
}  // namespace oscarkv::testing
