// The backend that computes on the host's processors.
//
// Thread-safety: as Backend. The work itself is in attend.h, seal.h and token_io.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/api/backend.h"
#include "kernels/cpu/block_memory.h"
#include "kernels/cpu/executor.h"

namespace oscarkv {

class CpuBackend : public Backend {
 public:
  // `threads`: host threads that compute; 0: one per processor that this process may use.
  explicit CpuBackend(int threads);

  BackendInfo Info() const override;

  KernelStatus Allocate(std::int64_t bytes, std::span<BlockId> blocks) override;
  void Free(std::span<const BlockId> blocks) override;

  KernelStatus Append(std::span<const AppendItem> items) override;
  KernelStatus Attend(std::span<const AttendItem> items) override;
  KernelStatus Seal(std::span<SealItem> items) override;
  KernelStatus ReadTokens(std::span<const ReadItem> items) override;

  KernelStatus Copy(std::span<const CopyItem> items) override;
  KernelStatus ReadBlock(BlockId block, std::span<std::byte> bytes) override;
  KernelStatus WriteBlock(BlockId block, std::span<const std::byte> bytes) override;

 private:
  const std::string processor_;
  const std::int64_t memory_bytes_;
  cpu::BlockMemory memory_;
  std::unique_ptr<cpu::Executor> executor_;
};

}  // namespace oscarkv
