#include "kernels/cpu/cpu_backend.h"

#include <cstring>
#include <new>
#include <stdexcept>

#include "kernels/cpu/attend.h"
#include "kernels/cpu/host_info.h"
#include "kernels/cpu/layer_memory.h"
#include "kernels/cpu/seal.h"
#include "kernels/cpu/token_io.h"

namespace oscarkv {
namespace {

// Runs `call`; no exception leaves the kernels, and the only ones that arise are of allocations.
template <typename Call>
KernelStatus WithoutExceptions(const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return KernelStatus::ResourceExhausted("no memory for scratch");
  } catch (const std::length_error&) {
    return KernelStatus::ResourceExhausted("no memory for scratch");
  }
}

}  // namespace

CpuBackend::CpuBackend(int threads) : executor_(cpu::MakeExecutor(threads)) {}

BackendInfo CpuBackend::Info() const {
  BackendInfo info;
  info.name = "cpu";
  info.device = cpu::ProcessorName();
  info.threads = executor_->threads();
  info.memory_bytes = cpu::MemoryLimit();
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
  const auto find = [&](const CopyItem& item, std::byte** from, std::byte** to) {
    KernelStatus status = cpu::FindBlock(memory_, item.from, item.bytes, "source of a copy", from);
    if (!status.ok()) return status;
    return cpu::FindBlock(memory_, item.to, item.bytes, "target of a copy", to);
  };
  std::byte* from = nullptr;
  std::byte* to = nullptr;
  for (const CopyItem& item : items) {
    KernelStatus status = find(item, &from, &to);
    if (!status.ok()) return status;
  }
  for (const CopyItem& item : items) {
    KernelStatus status = find(item, &from, &to);
    if (!status.ok()) return status;
    std::memmove(to, from, static_cast<std::size_t>(item.bytes));
  }
  return KernelStatus::Ok();
}

KernelStatus CpuBackend::ReadBlock(BlockId block, std::span<std::byte> bytes) {
  std::byte* data = nullptr;
  KernelStatus status = cpu::FindBlock(memory_, block, static_cast<std::int64_t>(bytes.size()),
                                       "read of a block", &data);
  if (status.ok() && !bytes.empty()) std::memcpy(bytes.data(), data, bytes.size());
  return status;
}

KernelStatus CpuBackend::WriteBlock(BlockId block, std::span<const std::byte> bytes) {
  std::byte* data = nullptr;
  KernelStatus status = cpu::FindBlock(memory_, block, static_cast<std::int64_t>(bytes.size()),
                                       "write of a block", &data);
  if (status.ok() && !bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
  return status;
}

}  // namespace oscarkv
