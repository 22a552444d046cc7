// Waiting works in an order that is fair between tenants: start-time fair queueing (Goyal, Vin and
// Cheng, 1996). Each tenant has a time of its own, which moves on by the cost of what is taken of
// it; next is the tenant whose time is least, and of a tenant the work that came first. A tenant
// that comes back does not have earlier than the others, so being idle saves nothing up; one that
// has just been served much still waits its turn. So whoever has one request waits for about one
// of every other tenant, however many they have.
//
// Thread-safety: none.
// Invariants:
//   1. order_ has the tenants with works, by their times; tenants_ has others only while the order
//      would differ without them.
//   2. now_ never falls; a tenant that comes back is not earlier than it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "server/queue/work.h"

namespace oscarkv {

class FairQueue {
 public:
  enum class Verdict : std::uint8_t { kTake, kSkip, kStop };

  void Push(Work* work);

  // Offers works in fair order, each once at most: kTake removes it from the queue and charges its
  // tenant, which may change the order of those to come; kSkip leaves it; kStop leaves it and ends.
  void Offer(absl::FunctionRef<Verdict(Work&)> decide);

  bool empty() const { return order_.empty(); }
  std::size_t size() const { return size_; }
  std::size_t tenants() const { return tenants_.size(); }  // that are remembered

 private:
  struct Tenant {
    std::int64_t time = 0;
    std::uint64_t number = 0;  // counts the tenants that came
    std::list<Work*> works;
    std::list<Work*>::iterator next;  // to be offered; meaningful during Offer only
  };
  struct Earlier {
    bool operator()(const Tenant* a, const Tenant* b) const {
      return std::pair(a->time, a->number) < std::pair(b->time, b->number);
    }
  };

  void ForgetIdle();

  std::map<std::string, Tenant, std::less<>> tenants_;
  std::set<Tenant*, Earlier> order_;
  std::int64_t now_ = 0;
  std::uint64_t next_number_ = 0;
  std::size_t size_ = 0;
};

}  // namespace oscarkv
