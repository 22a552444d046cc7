// Waiting works in an order that is fair between tenants: start-time fair queueing (Goyal, Vin and
// Cheng, 1996). Each work has a start, which is fixed as it comes: the end of its tenant's work
// before, that is, that one's start and cost; but now, if that is later. Next is the work that
// starts first. A tenant that comes back does not start earlier than what is served now, so being
// idle saves nothing up; one that has just been served much still waits its turn. So whoever has
// one request waits for about one of every other tenant, however many they have.
//
// A work that is dropped is not charged: its tenant's next ones start earlier, though not before
// those of it that wait already.
//
// A work that is skipped keeps its start, while those that come later start ever later: in the end
// it is offered before all that may pass it.
//
// Thread-safety: none.
// Invariants:
//   1. Works of one tenant start in the order in which they came.
//   2. now_ is the latest start of what was taken, and never falls; no work starts earlier than
//      now_ was when it came.
//   3. tenants_ has every tenant whose next work would start after now_, but for those from before
//      the queue was last empty.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "server/queue/work.h"

namespace oscarkv {

class FairQueue {
 public:
  enum class Verdict : std::uint8_t { kTake, kDrop, kSkip, kStop };

  // Changes nothing if it throws std::bad_alloc.
  void Push(Work* work);

  // Offers works in fair order, each once at most: kTake removes it from the queue, kDrop does too
  // and takes its charge back, kSkip leaves it; kStop leaves it and ends. `decide` must not throw.
  void Offer(absl::FunctionRef<Verdict(Work&)> decide);

  bool empty() const { return works_.empty(); }
  std::size_t size() const { return works_.size(); }
  std::size_t tenants() const { return tenants_.size(); }  // that are remembered

 private:
  struct Place {
    std::int64_t start = 0;
    std::uint64_t number = 0;  // counts the works that came
    friend auto operator<=>(const Place&, const Place&) = default;
  };

  struct Tenant {
    std::int64_t last_start = 0;  // of its works so far
    std::int64_t end = 0;         // where what it is charged ends; may be before last_start
  };

  void ForgetIdle();

  static constexpr std::size_t kFewTenants = 16;

  std::map<Place, Work*> works_;
  std::map<std::string, Tenant, std::less<>> tenants_;
  std::int64_t now_ = 0;
  std::uint64_t next_number_ = 0;
  std::size_t forget_above_ = kFewTenants;
};

}  // namespace oscarkv
