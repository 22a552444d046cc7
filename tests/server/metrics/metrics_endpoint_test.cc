#include "server/metrics/metrics_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/server/support/scrape.h"

namespace oscarkv {
namespace {

using ::testing::HasSubstr;
using testing::ParseMetrics;
using testing::Scrape;
using testing::Scraped;

TEST(MetricsEndpointTest, TellsWhatIsRead) {
  Readings readings;
  readings.version = "1.2";
  readings.backend = "cpu";
  readings.device = "a \"quoted\" \\ name";
  readings.store.sessions = 5;
  readings.store.evicted_sessions = 2;
  readings.store.restore_times.counts[0] = 3;
  readings.store.restore_times.counts.back() = 1;
  readings.store.restore_times.seconds = 12.5;
  const auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", [&] { return readings; });
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const Scraped scraped = ParseMetrics(Scrape((*endpoint)->address()));
  for (const Metric& metric : Metrics()) {
    ASSERT_TRUE(scraped.types.contains(metric.name)) << metric.name;
    EXPECT_EQ(scraped.helps.at(metric.name), metric.help);
  }
  EXPECT_EQ(scraped.at("oscarkv_build_info{version=\"1.2\",backend=\"cpu\",device=\"a "
                       "\\\"quoted\\\" \\\\ name\"}"),
            1);
  EXPECT_EQ(scraped.at("oscarkv_sessions{tier=\"memory\"}"), 3);
  EXPECT_EQ(scraped.at("oscarkv_sessions{tier=\"disk\"}"), 2);
  const std::string restores = "oscarkv_move_duration_seconds_";
  EXPECT_EQ(scraped.at(restores + "bucket{operation=\"restore\",le=\"0.0001\"}"), 3);
  EXPECT_EQ(scraped.at(restores + "bucket{operation=\"restore\",le=\"10\"}"), 3);
  EXPECT_EQ(scraped.at(restores + "bucket{operation=\"restore\",le=\"+Inf\"}"), 4);
  EXPECT_EQ(scraped.at(restores + "count{operation=\"restore\"}"), 4);
  EXPECT_EQ(scraped.at(restores + "sum{operation=\"restore\"}"), 12.5);
  EXPECT_EQ(scraped.at(restores + "count{operation=\"evict\"}"), 0);
}

TEST(MetricsEndpointTest, AnAddressThatIsTakenOrNotOursIsRefused) {
  const auto read = [] { return Readings(); };
  const auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", read);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  for (const std::string& address : {(*endpoint)->address(), std::string("192.0.2.1:0")}) {
    const absl::Status refused = MetricsEndpoint::Start(address, read).status();
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(address));
  }
  Scrape((*endpoint)->address());
}

TEST(MetricsEndpointTest, AReadThatThrowsIsAnEmptyScrape) {
  const auto endpoint = MetricsEndpoint::Start(
      "127.0.0.1:0", []() -> Readings { throw std::runtime_error("no memory"); });
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_THAT(Scrape((*endpoint)->address()), Not(HasSubstr("oscarkv_")));
}

}  // namespace
}  // namespace oscarkv
