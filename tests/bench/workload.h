// What is timed for a row: ours, through the interface of backends; the BF16 baseline doing the
// same; and merely reading the bytes of either.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "kernels/api/status.h"
#include "tests/bench/environment.h"
#include "tests/bench/row.h"

namespace oscarkv::bench {

// Calls 0 to calls - 1 touch different memory, a working set together. Without `run`: nothing to
// time.
struct Subject {
  std::int64_t calls = 0;
  std::function<KernelStatus(std::int64_t call)> run;
};

class Workload {
 public:
  virtual ~Workload() = default;

  Subject ours;
  Subject bf16;       // not of sealing
  Subject read;       // of the compressed bytes; of sealing: of the 16-bit tokens
  Subject bf16_read;  // of the 16-bit tokens; of attention only
};

struct WorkloadResult {
  KernelStatus status;
  std::unique_ptr<Workload> workload;  // null unless ok
};

// REQUIRES: WhyUnsupported(row) is empty; `environment` outlives the workload, and is asked for no
// other before it has gone.
WorkloadResult MakeWorkload(Environment& environment, const Row& row);

// Bytes of memory that MakeWorkload will take.
std::int64_t MemoryOf(const Environment& environment, const Row& row);

// Pieces of MakeWorkload, a file each: `ours` and `bf16`.
WorkloadResult MakeAttentionWorkload(Environment& environment, const Row& row);
WorkloadResult MakeAppendWorkload(Environment& environment, const Row& row);
WorkloadResult MakeSealWorkload(Environment& environment, const Row& row);
WorkloadResult MakeReadTokensWorkload(Environment& environment, const Row& row);

// A workload of type T, which has a status().
template <typename T>
WorkloadResult MakeWorkloadOf(Environment& environment, const Row& row) {
  auto workload = std::make_unique<T>(environment, row);
  if (!workload->status().ok()) return {workload->status(), nullptr};
  return {KernelStatus::Ok(), std::move(workload)};
}

}  // namespace oscarkv::bench
