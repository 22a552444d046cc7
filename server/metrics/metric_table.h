// Every metric of the server: one table, from which come what is scraped and docs/metrics.md.
//
// A series is there from the start, at zero, for each value of a metric's labels; so these are
// closed lists: never a session, a tenant or a model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/base/duration_histogram.h"
#include "server/base/error_counts.h"
#include "server/session/session_store.h"

namespace oscarkv {

// What is read at a scrape, of which metrics are made.
struct Readings {
  std::string version;
  std::string backend;
  std::string device;
  absl::Time start_time;
  bool ready = false;
  StoreTotals store;
  ErrorCounts errors = {};
};

enum class MetricType : std::uint8_t { kCounter, kGauge, kHistogram };

struct MetricLabel {
  const char* name;
  std::span<const std::string_view> values;
  // Where there are no values: the one that is fixed when the server starts.
  std::string Readings::*fixed = nullptr;
};

struct Metric {
  const char* name;
  MetricType type;
  std::span<const MetricLabel> labels;
  const char* unit;  // "" for counts
  const char* help;
  // Of each series, in the order of the labels' values, those of the last label first. One of the
  // two is set: `durations` for a histogram.
  std::vector<double> (*numbers)(const Readings& readings);
  std::vector<DurationCounts> (*durations)(const Readings& readings) = nullptr;
};

std::span<const Metric> Metrics();

// The labels of one series, {name, value}.
using SeriesLabels = std::vector<std::pair<std::string, std::string>>;

// Of all series of a metric, in their order.
std::vector<SeriesLabels> SeriesOf(const Metric& metric, const Readings& readings);

// The table in docs/metrics.md.
std::string MetricsAsMarkdown();

}  // namespace oscarkv
