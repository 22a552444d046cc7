// Where Prometheus scrapes: HTTP, /metrics, the text format, on an address of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/metrics/metric_table.h"

namespace oscarkv {

class MetricsEndpoint {
 public:
  // `address`: host:port, a name or IPv4 (the distributions' CivetWeb has no IPv6); port 0: any
  // free one. `read` is called for each scrape, one at a time, on a thread of the endpoint.
  // UNAVAILABLE, with a message for people, if the address cannot be used.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const std::string& address,
                                                                std::function<Readings()> read);
  // Ends scrapes first.
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  // The given address, with the real port.
  const std::string& address() const { return address_; }

 private:
  class Impl;
  MetricsEndpoint(std::unique_ptr<Impl> impl, std::string address);

  std::unique_ptr<Impl> impl_;
  std::string address_;
};

}  // namespace oscarkv
