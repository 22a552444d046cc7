#include "kernels/cpu/cpu_backend.h"

#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

#include "kernels/cpu/attend.h"
#include "kernels/cpu/host_info.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/layer_memory.h"
#include "kernels/cpu/seal.h"
#include "kernels/cpu/token_io.h"

namespace oscarkv {
namespace {

// Runs `call`; no exception leaves the kernels, and the only ones that arise are of allocations.
// The messages are short enough for a string to hold without memory.
template <typename Call>
KernelStatus WithoutExceptions(const Call& call) noexcept {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return KernelStatus::ResourceExhausted("out of memory");
  } catch (const std::length_error&) {
    return KernelStatus::ResourceExhausted("out of memory");
  } catch (...) {
    return KernelStatus::Internal("exception");
  }
}

KernelStatus CopyBlocks(const cpu::BlockMemory& memory, std::span<const CopyItem> items) {
  struct Ends {
    std::byte* from = nullptr;
    std::byte* to = nullptr;
  };
  std::vector<Ends> ends(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const CopyItem& item = items[i];
    KernelStatus status =
        cpu::FindBlock(memory, item.from, item.bytes, "source of a copy", &ends[i].from);
    if (!status.ok()) return status;
    status = cpu::FindBlock(memory, item.to, item.bytes, "target of a copy", &ends[i].to);
    if (!status.ok()) return status;
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    std::memmove(ends[i].to, ends[i].from, static_cast<std::size_t>(items[i].bytes));
  }
  return KernelStatus::Ok();
}

}  // namespace

CpuBackend::CpuBackend(int threads)
    : processor_(cpu::ProcessorName()),
      memory_bytes_(cpu::MemoryLimit()),
      executor_(cpu::MakeExecutor(threads)) {}

BackendInfo CpuBackend::Info() const {
  BackendInfo info;
  info.name = "cpu";
  info.device = processor_ + ", " + cpu::InstructionSet();
  info.threads = executor_->threads();
  info.memory_bytes = memory_bytes_;
  const cpu::SlabUse use = memory_.use();
  info.block_bytes = use.in_use;
  info.held_bytes = use.held;
  return info;
}

KernelStatus CpuBackend::Allocate(std::int64_t bytes, std::span<BlockId> blocks) {
  return WithoutExceptions([&] { return memory_.Allocate(bytes, blocks); });
}

void CpuBackend::Free(std::span<const BlockId> blocks) { memory_.Free(blocks); }

KernelStatus CpuBackend::Append(std::span<const AppendItem> items) {
  return WithoutExceptions([&] { return cpu::Append(memory_, *executor_, items); });
}

KernelStatus CpuBackend::Attend(std::span<const AttendItem> items) {
  return WithoutExceptions([&] { return cpu::Attend(memory_, *executor_, items); });
}

KernelStatus CpuBackend::Seal(std::span<SealItem> items) {
  return WithoutExceptions([&] { return cpu::Seal(memory_, *executor_, items); });
}

KernelStatus CpuBackend::ReadTokens(std::span<const ReadItem> items) {
  return WithoutExceptions([&] { return cpu::ReadTokens(memory_, *executor_, items); });
}

KernelStatus CpuBackend::Copy(std::span<const CopyItem> items) {
  return WithoutExceptions([&] { return CopyBlocks(memory_, items); });
}

KernelStatus CpuBackend::ReadBlock(BlockId block, std::span<std::byte> bytes) {
  return WithoutExceptions([&] {
    std::byte* data = nullptr;
    KernelStatus status = cpu::FindBlock(memory_, block, static_cast<std::int64_t>(bytes.size()),
                                         "read of a block", &data);
    if (status.ok() && !bytes.empty()) std::memcpy(bytes.data(), data, bytes.size());
    return status;
  });
}

KernelStatus CpuBackend::WriteBlock(BlockId block, std::span<const std::byte> bytes) {
  return WithoutExceptions([&] {
    std::byte* data = nullptr;
    KernelStatus status = cpu::FindBlock(memory_, block, static_cast<std::int64_t>(bytes.size()),
                                         "write of a block", &data);
    if (status.ok() && !bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
    return status;
  });
}

}  // namespace oscarkv
