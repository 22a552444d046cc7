#include "tests/bench/workload.h"

#include <algorithm>

#include "kernels/api/page_layout.h"
#include "tests/bench/read_stream.h"

namespace oscarkv::bench {
namespace {

bool Attends(const Row& row) {
  return row.operation == Operation::kAttend || row.operation == Operation::kPrefill;
}

bool Seals(const Row& row) {
  return row.operation == Operation::kSealGiven || row.operation == Operation::kSealAuto;
}

// A working set of instances of any size that a subject of the row cycles through.
std::int64_t ArenaBytes(const Environment& environment, const Row& row) {
  return environment.working_set() + AlignUp(std::max(row.bytes(), row.bf16_bytes()));
}

// Reading `bytes` at a time, through a working set.
Subject ReadOf(Environment& environment, const Row& row, std::int64_t bytes) {
  const std::int64_t stride = AlignUp(bytes);
  const std::byte* const data = environment.arena();
  cpu::Executor& executor = environment.executor(row.threads);
  return {environment.InstancesOf(stride), [=, &executor](std::int64_t call) {
            [[maybe_unused]] volatile std::uint64_t sum =
                ReadAll(executor, data + call * stride, stride);
            return KernelStatus::Ok();
          }};
}

WorkloadResult MakeOf(Environment& environment, const Row& row) {
  if (Attends(row)) return MakeAttentionWorkload(environment, row);
  if (Seals(row)) return MakeSealWorkload(environment, row);
  if (row.operation == Operation::kAppend) return MakeAppendWorkload(environment, row);
  return MakeReadTokensWorkload(environment, row);
}

}  // namespace

WorkloadResult MakeWorkload(Environment& environment, const Row& row) {
  environment.Reserve(ArenaBytes(environment, row));
  WorkloadResult result = MakeOf(environment, row);
  if (result.workload == nullptr) return result;
  Workload& workload = *result.workload;
  workload.read = ReadOf(environment, row, Seals(row) ? row.bf16_bytes() : row.bytes());
  if (Attends(row)) workload.bf16_read = ReadOf(environment, row, row.bf16_bytes());
  return result;
}

std::int64_t MemoryOf(const Environment& environment, const Row& row) {
  const std::int64_t arena = ArenaBytes(environment, row);
  if (Attends(row)) return arena + environment.working_set() + row.bytes();
  return arena + 2 * (environment.working_set() + row.bf16_bytes());
}

}  // namespace oscarkv::bench
