#include "server/pages/memory_budget.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace oscarkv {
namespace {

std::int64_t Sum(const std::array<std::int64_t, kMemoryKinds>& used) {
  return std::accumulate(used.begin(), used.end(), std::int64_t{0});
}

// What must be left of the budget after a reservation.
std::int64_t LeastLeft(std::int64_t total, Purpose purpose) {
  switch (purpose) {
    case Purpose::kKeep:
      return 0;
    case Purpose::kSeal:
      return -(total / 64);
    case Purpose::kAhead:
      return total / 16;
  }
  return 0;
}

}  // namespace

bool MemoryBudget::Reserve(MemoryKind kind, std::int64_t bytes, Purpose purpose,
                           MemoryReservation* promise) {
  assert(promise == nullptr ||
         (promise->budget_ == this && promise->kind_ == MemoryKind::kPromised));
  const std::int64_t promised = promise ? std::min(bytes, promise->bytes_) : 0;
  const std::int64_t missing = bytes - promised;
  const std::int64_t least_left = LeastLeft(total_, purpose);
  MutexLock lock(&mutex_);
  if (missing > 0 && missing + least_left > total_ - Sum(used_)) return false;
  used_[static_cast<std::size_t>(kind)] += bytes;
  if (promise) {
    used_[static_cast<std::size_t>(MemoryKind::kPromised)] -= promised;
    promise->bytes_ -= promised;
  }
  return true;
}

void MemoryBudget::Release(MemoryKind kind, std::int64_t bytes) {
  MutexLock lock(&mutex_);
  used_[static_cast<std::size_t>(kind)] -= bytes;
  assert(used_[static_cast<std::size_t>(kind)] >= 0);
}

std::int64_t MemoryBudget::used() const {
  MutexLock lock(&mutex_);
  return Sum(used_);
}

std::int64_t MemoryBudget::used(MemoryKind kind) const {
  MutexLock lock(&mutex_);
  return used_[static_cast<std::size_t>(kind)];
}

bool MemoryReservation::Grow(std::int64_t bytes, Purpose purpose, MemoryReservation* promise) {
  if (!budget_->Reserve(kind_, bytes, purpose, promise)) return false;
  bytes_ += bytes;
  return true;
}

void MemoryReservation::Shrink(std::int64_t bytes) {
  if (bytes == 0) return;
  assert(0 <= bytes && bytes <= bytes_);
  budget_->Release(kind_, bytes);
  bytes_ -= bytes;
}

void MemoryReservation::Absorb(MemoryReservation* other, std::int64_t bytes) {
  assert(budget_ == other->budget_ && kind_ == other->kind_);
  assert(0 <= bytes && bytes <= other->bytes_);
  other->bytes_ -= bytes;
  bytes_ += bytes;
}

}  // namespace oscarkv
