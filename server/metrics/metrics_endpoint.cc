#include "server/metrics/metrics_endpoint.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"
#include "prometheus/metric_family.h"

namespace oscarkv {
namespace {

prometheus::MetricType TypeOf(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return prometheus::MetricType::Counter;
    case MetricType::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricType::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

prometheus::ClientMetric::Histogram HistogramOf(const DurationCounts& durations) {
  prometheus::ClientMetric::Histogram histogram;
  for (std::size_t i = 0; i < durations.counts.size(); ++i) {
    histogram.sample_count += static_cast<std::uint64_t>(durations.counts[i]);
    if (i == kDurationBounds.size()) break;  // the rest is the format's own
    histogram.bucket.push_back(
        {.cumulative_count = histogram.sample_count, .upper_bound = kDurationBounds[i]});
  }
  histogram.sample_sum = durations.seconds;
  return histogram;
}

prometheus::MetricFamily FamilyOf(const Metric& metric, const Readings& readings) {
  prometheus::MetricFamily family;
  family.name = metric.name;
  family.help = metric.help;
  family.type = TypeOf(metric.type);
  const std::vector<SeriesLabels> series = SeriesOf(metric, readings);
  std::vector<double> numbers(series.size());
  std::vector<DurationCounts> durations(series.size());
  if (metric.numbers != nullptr) numbers = metric.numbers(readings);
  if (metric.durations != nullptr) durations = metric.durations(readings);
  numbers.resize(series.size());
  durations.resize(series.size());
  for (std::size_t i = 0; i < series.size(); ++i) {
    prometheus::ClientMetric one;
    for (const auto& [name, value] : series[i]) one.label.push_back({.name = name, .value = value});
    one.counter.value = one.gauge.value = numbers[i];
    if (metric.type == MetricType::kHistogram) one.histogram = HistogramOf(durations[i]);
    family.metric.push_back(std::move(one));
  }
  return family;
}

class Collector : public prometheus::Collectable {
 public:
  explicit Collector(std::function<Readings()> read) : read_(std::move(read)) {}

  // The exposer cannot take an exception: without memory a scrape finds nothing.
  std::vector<prometheus::MetricFamily> Collect() const override {
    try {
      const Readings readings = read_();
      std::vector<prometheus::MetricFamily> families;
      for (const Metric& metric : Metrics()) families.push_back(FamilyOf(metric, readings));
      return families;
    } catch (const std::exception&) {
      return {};
    }
  }

 private:
  const std::function<Readings()> read_;
};

// Connects to a port of this machine, and hangs up.
void Knock(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return;
  static_cast<void>(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address));
  ::close(socket);
}

}  // namespace

// The exposer ends first, and with it all scrapes.
class MetricsEndpoint::Impl {
 public:
  Impl(const std::string& address, std::function<Readings()> read)
      : collector_(std::make_shared<Collector>(std::move(read))),
        exposer_(std::make_unique<prometheus::Exposer>(std::vector<std::string>{
            "listening_ports", address, "num_threads", "2", "request_timeout_ms", "5000"})) {
    exposer_->RegisterCollectable(collector_);
  }
  // CivetWeb looks whether to stop when someone connects, or every two seconds.
  ~Impl() {
    const int listening = port();
    std::atomic<bool> ended = false;
    std::thread knocking([&] {
      while (!ended) {
        Knock(listening);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
    exposer_.reset();
    ended = true;
    knocking.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  int port() const { return exposer_->GetListeningPorts().at(0); }

 private:
  const std::shared_ptr<Collector> collector_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const std::string& address, std::function<Readings()> read) {
  try {
    auto impl = std::make_unique<Impl>(address, std::move(read));
    std::string real = absl::StrCat(address.substr(0, address.rfind(':')), ":", impl->port());
    return std::unique_ptr<MetricsEndpoint>(new MetricsEndpoint(std::move(impl), std::move(real)));
  } catch (const std::exception&) {
    return absl::UnavailableError(absl::StrCat(
        "cannot serve metrics on ", address,
        ": the address is in use, is not of this machine, or may not be used by this user"));
  }
}

MetricsEndpoint::MetricsEndpoint(std::unique_ptr<Impl> impl, std::string address)
    : impl_(std::move(impl)), address_(std::move(address)) {}

MetricsEndpoint::~MetricsEndpoint() = default;

}  // namespace oscarkv
