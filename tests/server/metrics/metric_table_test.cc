#include "server/metrics/metric_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

namespace oscarkv {
namespace {

using ::testing::HasSubstr;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(MetricTableTest, TheDocumentHoldsTheTable) {
  EXPECT_THAT(ReadFile(OSCARKV_SOURCE_DIR "/docs/metrics.md"), HasSubstr(MetricsAsMarkdown()))
      << "docs/metrics.md must hold this table:\n"
      << MetricsAsMarkdown();
}

TEST(MetricTableTest, NamesFollowTheConventions) {
  std::set<std::string> names;
  for (const Metric& metric : Metrics()) {
    const std::string name = metric.name;
    EXPECT_TRUE(std::regex_match(name, std::regex("oscarkv(_[a-z]+)+"))) << name;
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(name.ends_with("_total"), metric.type == MetricType::kCounter) << name;
    const std::string unit = metric.unit;
    EXPECT_THAT(unit, ::testing::AnyOf("", "seconds", "bytes", "ratio")) << name;
    const std::string base = name.ends_with("_total") ? name.substr(0, name.size() - 6) : name;
    for (const char* known : {"_seconds", "_bytes", "_ratio"}) {
      EXPECT_EQ(base.ends_with(known), "_" + unit == known) << name;
    }
    EXPECT_THAT(std::string(metric.help), ::testing::EndsWith(".")) << name;
    EXPECT_EQ(metric.durations != nullptr, metric.type == MetricType::kHistogram) << name;
    EXPECT_EQ(metric.numbers == nullptr, metric.type == MetricType::kHistogram) << name;
  }
}

TEST(MetricTableTest, LabelsAreClosedLists) {
  for (const Metric& metric : Metrics()) {
    for (const MetricLabel& label : metric.labels) {
      EXPECT_TRUE(std::regex_match(label.name, std::regex("[a-z_]+"))) << metric.name;
      EXPECT_EQ(label.values.empty(), label.fixed != nullptr) << metric.name;
      for (const char* unbounded : {"session", "tenant", "model", "group", "peer", "le"}) {
        EXPECT_STRNE(label.name, unbounded) << metric.name;
      }
    }
  }
}

TEST(MetricTableTest, EverySeriesHasAValueAndBeginsAtZero) {
  const std::set<std::string> begin_elsewhere = {"oscarkv_build_info",
                                                 "oscarkv_start_time_seconds"};
  Readings readings;
  readings.start_time = absl::FromUnixSeconds(5);
  for (const Metric& metric : Metrics()) {
    const std::size_t series = SeriesOf(metric, readings).size();
    EXPECT_GE(series, 1) << metric.name;
    if (metric.durations != nullptr) {
      EXPECT_EQ(metric.durations(readings).size(), series) << metric.name;
      continue;
    }
    EXPECT_EQ(metric.numbers(readings).size(), series) << metric.name;
    for (const double number : metric.numbers(readings)) {
      EXPECT_EQ(number == 0, !begin_elsewhere.contains(metric.name)) << metric.name;
    }
  }
}

TEST(MetricTableTest, SeriesAreAllCombinationsOfLabels) {
  static constexpr std::string_view kColors[] = {"red", "blue"};
  static constexpr std::string_view kSizes[] = {"s", "m", "l"};
  const MetricLabel labels[] = {{"color", kColors}, {"size", kSizes}};
  const Metric metric = {"oscarkv_x", MetricType::kGauge, labels, "", "X.", nullptr};
  const std::vector<SeriesLabels> series = SeriesOf(metric, {});
  ASSERT_EQ(series.size(), 6);
  EXPECT_EQ(series[1], (SeriesLabels{{"color", "red"}, {"size", "m"}}));
  EXPECT_EQ(series[3], (SeriesLabels{{"color", "blue"}, {"size", "s"}}));
}

// Whatever reason the server's code gives to clients is counted under its name.
TEST(MetricTableTest, ReasonsAreThoseOfTheServer) {
  const std::set<std::string> never_told = {"DATA_DIR_IN_USE"};  // at the start only
  std::set<std::string> found;
  const std::regex reason(R"re((reason = |Mismatch\(\s*)"([A-Z_]+)")re");
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(OSCARKV_SOURCE_DIR "/server")) {
    if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
    const std::string text = ReadFile(entry.path());
    for (std::sregex_iterator at(text.begin(), text.end(), reason), end; at != end; ++at) {
      found.insert((*at)[2]);
    }
  }
  EXPECT_GE(found.size(), 15);
  for (const std::string& name : found) {
    if (never_told.contains(name)) continue;
    EXPECT_NE(std::find(kErrorReasons.begin(), kErrorReasons.end(), name), kErrorReasons.end())
        << name << " is not in server/base/error_counts.h";
  }
}

TEST(ErrorCounterTest, CountsByReasonAndTheRestTogether) {
  ErrorCounter counter;
  counter.Count("OUT_OF_MEMORY");
  counter.Count("OUT_OF_MEMORY");
  counter.Count("");
  counter.Count("UNHEARD_OF");
  counter.Count("OTHER");
  const ErrorCounts counts = counter.Read();
  EXPECT_EQ(counts.back(), 3);
  const auto* const memory = std::find(kErrorReasons.begin(), kErrorReasons.end(), "OUT_OF_MEMORY");
  EXPECT_EQ(counts[static_cast<std::size_t>(memory - kErrorReasons.begin())], 2);
}

TEST(DurationHistogramTest, CountsIntoRangesWithTheirUpperBounds) {
  DurationHistogram histogram;
  histogram.Add(std::chrono::microseconds(100));  // with the bound
  histogram.Add(std::chrono::microseconds(101));
  histogram.Add(std::chrono::seconds(60));
  const DurationCounts read = histogram.Read();
  EXPECT_EQ(read.counts.front(), 1);
  EXPECT_EQ(read.counts[1], 1);
  EXPECT_EQ(read.counts.back(), 1);
  EXPECT_NEAR(read.seconds, 60.000201, 1e-9);
  EXPECT_TRUE(std::is_sorted(kDurationBounds.begin(), kDurationBounds.end()));
}

}  // namespace
}  // namespace oscarkv
