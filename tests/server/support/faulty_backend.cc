#include "tests/server/support/faulty_backend.h"

#include <algorithm>
#include <new>
#include <utility>

#include "kernels/api/page_layout.h"

namespace oscarkv {

KernelStatus FaultyBackend::After(const char* name, KernelStatus done) {
  MutexLock lock(&mutex_);
  ++calls_[name];
  if (calls_left_ < 0 || calls_left_-- > 0) return done;
  if (throws_) throw std::bad_alloc();
  return status_;
}

KernelStatus FaultyBackend::Allocate(std::int64_t bytes, std::span<BlockId> blocks) {
  if (KernelStatus status = After("Allocate", KernelStatus::Ok()); !status.ok()) return status;
  return inner_->Allocate(bytes, blocks);
}

KernelStatus FaultyBackend::Append(std::span<const AppendItem> items) {
  return After("Append", inner_->Append(items));
}

KernelStatus FaultyBackend::Attend(std::span<const AttendItem> items) {
  return After("Attend", inner_->Attend(items));
}

KernelStatus FaultyBackend::Seal(std::span<SealItem> items) {
  KernelStatus status = After("Seal", inner_->Seal(items));
  if (!status.ok()) return status;
  for (const SealItem& item : items) {
    if (item.head_end > 0 && item.head_end < item.spec->kv_heads) continue;
    std::string bytes(static_cast<std::size_t>(PageLayout(*item.spec).bytes), '\0');
    const auto span = std::as_writable_bytes(std::span(bytes));
    if (KernelStatus read = inner_->ReadBlock(item.page, span); !read.ok()) return read;
    MutexLock lock(&mutex_);
    pages_.push_back(std::move(bytes));
  }
  return status;
}

KernelStatus FaultyBackend::ReadTokens(std::span<const ReadItem> items) {
  return After("ReadTokens", inner_->ReadTokens(items));
}

KernelStatus FaultyBackend::Copy(std::span<const CopyItem> items) {
  return After("Copy", inner_->Copy(items));
}

}  // namespace oscarkv
