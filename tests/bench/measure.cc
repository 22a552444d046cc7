#include "tests/bench/measure.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "tests/bench/machine.h"

namespace oscarkv::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Passes {
  const Subject* subject;
  std::vector<double> seconds;  // of one call, by pass
};

// One pass through the subject's working set; the first failure ends it.
KernelStatus Pass(Passes& passes) {
  const Subject& subject = *passes.subject;
  if (!subject.run) return KernelStatus::Ok();
  const Clock::time_point begin = Clock::now();
  for (std::int64_t call = 0; call < subject.calls; ++call) {
    KernelStatus status = subject.run(call);
    if (!status.ok()) return status;
  }
  const std::chrono::duration<double> time = Clock::now() - begin;
  passes.seconds.push_back(time.count() / static_cast<double>(subject.calls));
  return KernelStatus::Ok();
}

std::optional<Timing> TimingOf(Passes passes) {
  std::vector<double>& seconds = passes.seconds;
  if (seconds.empty()) return std::nullopt;
  std::sort(seconds.begin(), seconds.end());
  const std::size_t n = seconds.size();
  return Timing{(seconds[(n - 1) / 2] + seconds[n / 2]) / 2, seconds.front(), seconds.back()};
}

}  // namespace

MeasurementResult Measure(const Row& row, const Workload& workload, const Effort& effort) {
  std::array<Passes, 4> all{{{&workload.ours, {}},
                             {&workload.bf16, {}},
                             {&workload.read, {}},
                             {&workload.bf16_read, {}}}};
  // Pass -1 warms up: pages are mapped, threads started.
  double total = 0;
  int made = 0;
  for (int i = -1;
       i < effort.repetitions || (total < effort.least_seconds && i < effort.most_repetitions);
       ++i) {
    for (Passes& passes : all) {
      KernelStatus status = Pass(passes);
      if (!status.ok()) return {std::move(status), {}};
      if (i < 0) passes.seconds.clear();
    }
    if (i < 0) continue;
    ++made;
    total += all[0].seconds.back() * static_cast<double>(workload.ours.calls);
  }
  return {KernelStatus::Ok(),
          {row, made, HugePageShare(), *TimingOf(all[0]), TimingOf(all[1]), TimingOf(all[2]),
           TimingOf(all[3])}};
}

}  // namespace oscarkv::bench
