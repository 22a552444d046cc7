// oscarkv_bench: each row is a benchmark of Google Benchmark, which chooses and runs them; what a
// row times, and how, is in workload.h and measure.h.
#include <benchmark/benchmark.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <vector>

#include "kernels/cpu/executor.h"
#include "tests/bench/bf16_kernels.h"
#include "tests/bench/environment.h"
#include "tests/bench/machine.h"
#include "tests/bench/measure.h"
#include "tests/bench/options.h"
#include "tests/bench/report.h"
#include "tests/bench/workload.h"

namespace oscarkv::bench {
namespace {

// Caches that hold a fraction of a working set hold little of what is read next.
constexpr std::int64_t kCachesInWorkingSet = 4;

// What rows add to while they run, one after another.
struct Progress {
  Environment& environment;
  const Options& options;
  std::int64_t available_bytes;
  std::vector<Measurement> measurements;
  std::string problem;  // of the last row; empty: it is the last of `measurements`
  bool failed = false;
};

void LeaveOut(benchmark::State& state, Progress& progress, const std::string& problem) {
  progress.problem = problem;
  state.SkipWithError(progress.problem.c_str());
}

void RunRow(benchmark::State& state, Progress& progress, const Row& row) {
  progress.problem.clear();
  for ([[maybe_unused]] auto _ : state) {
    const std::int64_t needed = MemoryOf(progress.environment, row);
    if (needed > progress.available_bytes) {
      LeaveOut(state, progress,
               "left out: needs " + std::to_string(needed >> 20) + " MiB of memory, of which " +
                   std::to_string(progress.available_bytes >> 20) + " can be had");
      return;
    }
    const WorkloadResult made = MakeWorkload(progress.environment, row);
    MeasurementResult result{made.status, {}};
    if (made.status.ok()) result = Measure(row, *made.workload, progress.options.effort);
    if (!result.status.ok()) {
      progress.failed = true;
      LeaveOut(state, progress, "failed: " + result.status.message);
      return;
    }
    state.SetIterationTime(result.measurement.ours.seconds);
    progress.measurements.push_back(result.measurement);
  }
}

// Prints a row as soon as it is measured.
class TableReporter : public benchmark::BenchmarkReporter {
 public:
  TableReporter(const Progress& progress, const RunInfo& info) : progress_(progress), info_(info) {}

  bool ReportContext(const Context&) override {
    PrintHeading(std::cout, info_);
    return true;
  }

  void ReportRuns(const std::vector<Run>& reports) override {
    for (const Run& report : reports) {
      if (progress_.problem.empty()) {
        PrintRow(std::cout, progress_.measurements.back());
      } else {
        std::cout << report.benchmark_name() << ": " << progress_.problem << std::endl;
      }
    }
  }

 private:
  const Progress& progress_;
  const RunInfo& info_;
};

std::string Now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

RunInfo InfoOf(Environment& environment, const Machine& machine, const Options& options) {
  const BackendInfo backend = environment.backend(0).Info();
  RunInfo info;
  info.machine = machine;
  info.backend = backend.name + " (" + backend.device + ")";
  info.baseline = BestKernels().name;
  info.date = Now();
  info.version = OSCARKV_VERSION;
  info.revision = options.revision;
  info.working_set_bytes = environment.working_set();
  return info;
}

int Main(int argc, char** argv) {
  const Machine machine = ThisMachine();
  Options options;
  if (const auto status = ParseOptions(argc, argv, machine.cores, options)) return *status;

  if (options.list) {
    for (const Row& row : options.rows) std::cout << row.name() << "\n";
    return 0;
  }
  Environment environment(kCachesInWorkingSet * machine.cache_bytes, options.cpu_instructions);
  // Some memory stays for the rest of the machine.
  Progress progress{environment, options, machine.available_bytes / 10 * 9, {}, ""};
  for (const Row& row : options.rows) {
    benchmark::RegisterBenchmark(row.name().c_str(), RunRow, std::ref(progress), row)
        ->UseManualTime()
        ->Iterations(1);
  }
  char* only_name[] = {argv[0], nullptr};
  int one = 1;
  benchmark::Initialize(&one, only_name);
  const RunInfo info = InfoOf(environment, machine, options);
  TableReporter reporter(progress, info);
  benchmark::RunSpecifiedBenchmarks(&reporter, ".");
  if (progress.failed) {
    std::cerr << "error: a row failed; the table says which, and why\n";
  } else if (progress.measurements.empty()) {
    std::cerr << "error: every row was left out, as it needs more memory than there is\n";
  }
  if (!options.json.empty() && !progress.measurements.empty()) {
    std::ofstream file(options.json);
    file << ToJson(info, progress.measurements) << std::flush;
    if (!file) {
      std::cerr << "error: " << options.json << " cannot be written\n";
      return 1;
    }
  }
  return progress.failed || progress.measurements.empty() ? 1 : 0;
}

}  // namespace
}  // namespace oscarkv::bench

int main(int argc, char** argv) { return oscarkv::bench::Main(argc, argv); }
