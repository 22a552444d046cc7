// What Prometheus would read of a server's metrics.
#pragma once

#include <map>
#include <string>

namespace oscarkv::testing {

// The body of GET http://<address>/metrics. Fails the test unless the answer is 200 and whole.
std::string Scrape(const std::string& address);

struct Scraped {
  std::map<std::string, std::string> types;  // by family
  std::map<std::string, std::string> helps;  // by family
  std::map<std::string, double> series;      // by name and labels as they are written

  // Fails the test if there is no such series.
  double at(const std::string& name) const;
};

// Reads the text format strictly, and fails the test where it is not that: names and labels, each
// family in one piece behind its HELP and TYPE, no series twice, histograms that add up.
Scraped ParseMetrics(const std::string& text);

}  // namespace oscarkv::testing
