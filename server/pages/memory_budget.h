// How many bytes sessions may take, and what they take now. Bytes are reserved before they are
// allocated and released after they are freed, so that used() is never less than the blocks that
// are there; what a backend keeps around them (free room in slabs, scratch) is not counted.
//
// Thread-safety: all functions of MemoryBudget may be called at once; a MemoryReservation belongs
// to whoever holds it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"

namespace oscarkv {

enum class MemoryKind : std::uint8_t {
  kPages,     // sealed pages
  kWindow,    // sinks, window, query samples, residual directions
  kSession,   // what a session takes before its first token
  kPromised,  // nothing yet: promised to the layers of a session for a step under way
};
inline constexpr std::size_t kMemoryKinds = 4;

// What a reservation may take. A seal may overdraw the budget by a 64th, since it needs its page
// before it frees the window blocks, which weigh several times as much: without that, a full budget
// could never be compressed. Work that is done ahead of its time leaves a 16th to what cannot wait.
enum class Purpose : std::uint8_t { kKeep, kSeal, kAhead };

class MemoryReservation;

// Invariants: every count is >= 0; their sum is at most total() plus a 64th of it.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::int64_t total_bytes) : total_(total_bytes) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // False, and nothing reserved, if the budget has less left. What `promise` holds, which is of
  // kPromised, is taken first. REQUIRES: bytes >= 0.
  [[nodiscard]] bool Reserve(MemoryKind kind, std::int64_t bytes, Purpose purpose = Purpose::kKeep,
                             MemoryReservation* promise = nullptr);
  // REQUIRES: reserved before, as the same kind.
  void Release(MemoryKind kind, std::int64_t bytes);

  std::int64_t total() const { return total_; }
  std::int64_t used() const;
  std::int64_t used(MemoryKind kind) const;

 private:
  const std::int64_t total_;
  mutable Mutex mutex_;
  std::array<std::int64_t, kMemoryKinds> used_ ABSL_GUARDED_BY(mutex_) = {};
};

// Reserved bytes of one kind, released when it ends. For memory that is not in a block.
class MemoryReservation {
 public:
  MemoryReservation() = default;
  MemoryReservation(MemoryBudget* budget, MemoryKind kind) : budget_(budget), kind_(kind) {}
  ~MemoryReservation() { Shrink(bytes_); }
  MemoryReservation(MemoryReservation&& other) noexcept
      : budget_(other.budget_), kind_(other.kind_), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryReservation(const MemoryReservation&) = delete;
  MemoryReservation& operator=(const MemoryReservation&) = delete;

  std::int64_t bytes() const { return bytes_; }

  // False, and nothing changed, if the budget has less left. `promise`: as Reserve's.
  [[nodiscard]] bool Grow(std::int64_t bytes, Purpose purpose = Purpose::kKeep,
                          MemoryReservation* promise = nullptr);
  // REQUIRES: 0 <= bytes <= bytes().
  void Shrink(std::int64_t bytes);
  // Takes over what `other` holds. REQUIRES: the same budget and kind.
  void Absorb(MemoryReservation* other) { Absorb(other, other->bytes_); }
  // The same of a part. REQUIRES: 0 <= bytes <= other->bytes().
  void Absorb(MemoryReservation* other, std::int64_t bytes);
  // Leaves it to the caller to release what it holds.
  std::int64_t Detach() { return std::exchange(bytes_, 0); }

 private:
  friend class MemoryBudget;

  MemoryBudget* budget_ = nullptr;
  MemoryKind kind_ = MemoryKind::kWindow;
  std::int64_t bytes_ = 0;
};

}  // namespace oscarkv
