// Times the subjects of a row in turns, so that all see the same machine.
#pragma once

#include <optional>

#include "tests/bench/row.h"
#include "tests/bench/workload.h"

namespace oscarkv::bench {

struct Effort {
  int repetitions = 7;       // of every subject, at least
  double least_seconds = 0;  // of all repetitions of ours together; more are made for it,
  int most_repetitions = 0;  // but no more than these
};

// Seconds of one call: the median, and the spread, of the means of passes through a working set.
struct Timing {
  double seconds = 0;
  double least = 0;
  double most = 0;
};

struct Measurement {
  Row row;
  int repetitions = 0;
  std::optional<double> huge_page_share;  // of the program's memory
  Timing ours;
  std::optional<Timing> bf16;
  std::optional<Timing> read;
  std::optional<Timing> bf16_read;
};

struct MeasurementResult {
  KernelStatus status;
  Measurement measurement;
};

// REQUIRES: effort.repetitions > 0.
MeasurementResult Measure(const Row& row, const Workload& workload, const Effort& effort);

}  // namespace oscarkv::bench
