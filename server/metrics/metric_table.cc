#include "server/metrics/metric_table.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/string_view.h"

namespace oscarkv {
namespace {

constexpr std::string_view kTierNames[] = {"memory", "disk"};
constexpr std::string_view kMemoryKindNames[] = {"pages", "window", "session", "promised"};
static_assert(std::size(kMemoryKindNames) == kMemoryKinds);
constexpr std::string_view kMoveNames[] = {"evict", "restore", "checkpoint"};
constexpr std::string_view kDirectionNames[] = {"written", "read"};
constexpr std::string_view kDropReasonNames[] = {"expired", "room"};

constexpr MetricLabel kBuild[] = {{"version", {}, &Readings::version},
                                  {"backend", {}, &Readings::backend},
                                  {"device", {}, &Readings::device}};
constexpr MetricLabel kTier[] = {{"tier", kTierNames}};
constexpr MetricLabel kKind[] = {{"kind", kMemoryKindNames}};
constexpr MetricLabel kMove[] = {{"operation", kMoveNames}};
constexpr MetricLabel kDirection[] = {{"direction", kDirectionNames}};
constexpr MetricLabel kDropReason[] = {{"reason", kDropReasonNames}};
constexpr MetricLabel kReason[] = {{"reason", kErrorReasons}};

double Number(std::int64_t value) { return static_cast<double>(value); }

// Each `numbers` is a captureless lambda, so that the table is all there is to a metric.
constexpr Metric kMetrics[] = {
    {"oscarkv_build_info", MetricType::kGauge, kBuild, "", "Always 1; the labels tell what runs.",
     [](const Readings&) { return std::vector{1.0}; }},
    {"oscarkv_start_time_seconds",
     MetricType::kGauge,
     {},
     "seconds",
     "When the server started, since 1970: a change is a restart.",
     [](const Readings& r) {
       return std::vector{absl::ToDoubleSeconds(r.start_time - absl::UnixEpoch())};
     }},
    {"oscarkv_ready",
     MetricType::kGauge,
     {},
     "",
     "1 while the health service says SERVING for oscarkv.v1.KvCacheService, else 0.",
     [](const Readings& r) { return std::vector{r.ready ? 1.0 : 0.0}; }},

    {"oscarkv_sessions", MetricType::kGauge, kTier, "",
     "Sessions whose tokens are in memory, and sessions whose tokens are in their files alone.",
     [](const Readings& r) {
       return std::vector{Number(r.store.sessions - r.store.evicted_sessions),
                          Number(r.store.evicted_sessions)};
     }},
    {"oscarkv_tokens", MetricType::kGauge, kTier, "", "Committed tokens of these sessions.",
     [](const Readings& r) {
       return std::vector{Number(r.store.tokens), Number(r.store.evicted_tokens)};
     }},
    {"oscarkv_logical_bytes",
     MetricType::kGauge,
     {},
     "bytes",
     "What the tokens in memory would take in 16 bits; over oscarkv_resident_bytes: what is saved.",
     [](const Readings& r) { return std::vector{Number(r.store.logical_bytes)}; }},
    {"oscarkv_resident_bytes", MetricType::kGauge, kKind, "bytes",
     "What of the memory budget is taken. pages: sealed; window: sinks, windows, sampled queries; "
     "session: what sessions take before their first token; promised: nothing yet, kept for steps "
     "under way.",
     [](const Readings& r) {
       std::vector<double> kinds;
       for (const std::int64_t bytes : r.store.resident_bytes_of) kinds.push_back(Number(bytes));
       return kinds;
     }},
    {"oscarkv_budget_bytes",
     MetricType::kGauge,
     {},
     "bytes",
     "The memory budget.",
     [](const Readings& r) { return std::vector{Number(r.store.budget_bytes)}; }},
    {"oscarkv_block_bytes",
     MetricType::kGauge,
     {},
     "bytes",
     "Blocks that the backend has given out.",
     [](const Readings& r) { return std::vector{Number(r.store.block_bytes)}; }},
    {"oscarkv_held_bytes",
     MetricType::kGauge,
     {},
     "bytes",
     "Memory that the backend holds for blocks; less oscarkv_block_bytes: the slack.",
     [](const Readings& r) { return std::vector{Number(r.store.held_bytes)}; }},
    {"oscarkv_pages_sealed_without_queries",
     MetricType::kGauge,
     {},
     "",
     "Pages there are that were sealed without sampled queries, and so keep less of what queries "
     "look for; of all layers.",
     [](const Readings& r) { return std::vector{Number(r.store.pages_sealed_without_queries)}; }},

    {"oscarkv_evictions_total",
     MetricType::kCounter,
     {},
     "",
     "Sessions that were moved to their files.",
     [](const Readings& r) { return std::vector{Number(r.store.evictions)}; }},
    {"oscarkv_restores_total",
     MetricType::kCounter,
     {},
     "",
     "Sessions that were brought back. As many as evictions, second after second: thrash.",
     [](const Readings& r) { return std::vector{Number(r.store.restores)}; }},
    {"oscarkv_restores_within_minute_total",
     MetricType::kCounter,
     {},
     "",
     "Of these, those that had been evicted less than a minute before: the memory budget is too "
     "small for what is in use.",
     [](const Readings& r) { return std::vector{Number(r.store.restores_within_minute)}; }},
    {"oscarkv_dropped_sessions_total", MetricType::kCounter, kDropReason, "",
     "Sessions that the server deleted on its own. expired: not used for their time to live; room: "
     "without --data-dir, to make room, or to keep a tenant to its quota.",
     [](const Readings& r) {
       return std::vector{Number(r.store.expired_sessions), Number(r.store.dropped_sessions)};
     }},
    {"oscarkv_checkpoints_total",
     MetricType::kCounter,
     {},
     "",
     "Checkpoints of a session, also those that found nothing to write.",
     [](const Readings& r) { return std::vector{Number(r.store.checkpoints)}; }},
    {"oscarkv_move_failures_total", MetricType::kCounter, kMove, "",
     "Evictions, restores and checkpoints that failed, also for want of memory.",
     [](const Readings& r) {
       return std::vector{Number(r.store.eviction_failures), Number(r.store.restore_failures),
                          Number(r.store.checkpoint_failures)};
     }},
    {"oscarkv_move_duration_seconds", MetricType::kHistogram, kMove, "seconds",
     "How long those that succeeded took; a restore with its wait for memory.", nullptr,
     [](const Readings& r) {
       return std::vector{r.store.eviction_times, r.store.restore_times, r.store.checkpoint_times};
     }},
    {"oscarkv_session_file_bytes_total", MetricType::kCounter, kDirection, "bytes",
     "Of session files: written by evictions and checkpoints, read by restores.",
     [](const Readings& r) {
       return std::vector{Number(r.store.file_written_bytes), Number(r.store.file_read_bytes)};
     }},
    {"oscarkv_checkpoint_lag_seconds",
     MetricType::kGauge,
     {},
     "seconds",
     "How long the oldest change has waited to be in a file; what a crash would lose. 0 without "
     "--data-dir.",
     [](const Readings& r) { return std::vector{absl::ToDoubleSeconds(r.store.checkpoint_lag)}; }},
    {"oscarkv_sweeps_total",
     MetricType::kCounter,
     {},
     "",
     "Passes of the background that keeps files up to date, makes room and deletes what has "
     "expired, "
     "about one a second. No increase: one takes long, or it stands still.",
     [](const Readings& r) { return std::vector{Number(r.store.passes)}; }},
    {"oscarkv_sweep_failures_total",
     MetricType::kCounter,
     {},
     "",
     "Passes that failed as a whole.",
     [](const Readings& r) { return std::vector{Number(r.store.failed_passes)}; }},

    {"oscarkv_rejections_total", MetricType::kCounter, kReason, "",
     "Errors that clients were told of, by the reason of google.rpc.ErrorInfo: of requests, of "
     "messages of streams, and of items.",
     [](const Readings& r) {
       std::vector<double> reasons;
       for (const std::int64_t count : r.errors) reasons.push_back(Number(count));
       return reasons;
     }},
    {"oscarkv_prepared_pages_total",
     MetricType::kCounter,
     {},
     "",
     "Pages that were sealed in the background, before the append that needs them.",
     [](const Readings& r) { return std::vector{Number(r.store.pages_prepared)}; }},
    {"oscarkv_prepare_failures_total",
     MetricType::kCounter,
     {},
     "",
     "Pieces of that work that failed, and were left to the append.",
     [](const Readings& r) { return std::vector{Number(r.store.prepare_failures)}; }},
    {"oscarkv_settle_failures_total",
     MetricType::kCounter,
     {},
     "",
     "Layers of idle sessions that could not be sealed when it was tried.",
     [](const Readings& r) { return std::vector{Number(r.store.settle_failures)}; }},
};

std::string_view NameOf(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "";
}

std::string LabelsAsMarkdown(const Metric& metric) {
  std::vector<std::string> labels;
  for (const MetricLabel& label : metric.labels) {
    std::string text = absl::StrCat("`", label.name, "`");
    std::string separator = ": ";
    for (const std::string_view value : label.values) {
      absl::StrAppend(&text, separator, "`", ToAbsl(value), "`");
      separator = ", ";
    }
    labels.push_back(text);
  }
  return absl::StrJoin(labels, "; ");
}

}  // namespace

std::span<const Metric> Metrics() { return kMetrics; }

std::vector<SeriesLabels> SeriesOf(const Metric& metric, const Readings& readings) {
  std::vector<SeriesLabels> series(1);
  for (const MetricLabel& label : metric.labels) {
    std::vector<SeriesLabels> longer;
    for (const SeriesLabels& labels : series) {
      const auto add = [&](std::string_view value) {
        longer.push_back(labels);
        longer.back().emplace_back(label.name, value);
      };
      if (label.fixed != nullptr) add(readings.*label.fixed);
      for (const std::string_view value : label.values) add(value);
    }
    series = std::move(longer);
  }
  return series;
}

std::string MetricsAsMarkdown() {
  std::string table =
      "| Metric | Type | Labels | Unit | What it tells |\n"
      "| --- | --- | --- | --- | --- |\n";
  for (const Metric& metric : kMetrics) {
    absl::StrAppend(&table, "| `", metric.name, "` | ", ToAbsl(NameOf(metric.type)), " | ",
                    LabelsAsMarkdown(metric), " | ", metric.unit, " | ", metric.help, " |\n");
  }
  return table;
}

}  // namespace oscarkv
