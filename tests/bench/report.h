// Prints measurements as a table, and writes them as JSON.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/bench/machine.h"
#include "tests/bench/measure.h"

namespace oscarkv::bench {

struct RunInfo {
  Machine machine;
  std::string backend;   // its name and device
  std::string baseline;  // instructions that the BF16 baseline uses
  std::string date;      // UTC, ISO 8601
  std::string version;
  std::string revision;  // of the source, if known
  std::int64_t working_set_bytes = 0;
};

void PrintHeading(std::ostream& out, const RunInfo& info);
void PrintRow(std::ostream& out, const Measurement& measurement);

// The whole file's text. Keys of rows: docs/performance.md.
std::string ToJson(const RunInfo& info, const std::vector<Measurement>& measurements);

}  // namespace oscarkv::bench
