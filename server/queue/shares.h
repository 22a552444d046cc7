// How many requests each tenant holds, and whether it may have one more.
//
// There are a few places more than one tenant may take: an eighth of `limit`, at least one, is the
// spare. A tenant may take a place while what it holds is to `limit` less than what is free is to
// the spare. So a tenant that is alone gets `limit`, and leaves the spare; n that all ask for more
// than they get come to about 1/n each, and leave a little free, whoever came first: one that has
// more than that gets none until enough of its own have ended. Nothing that has a place loses it.
//
// Thread-safety: none.
// Invariants:
//   1. What all tenants hold is at most limit + spare, and what one holds at most limit.
//   2. A tenant that holds none is refused only where no place is free at all. Then none that holds
//      limit / spare or more takes the next one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace oscarkv {

// Places of one sort.
class Shares {
 public:
  // REQUIRES: limit > 0.
  explicit Shares(std::int64_t limit)
      : limit_(limit), spare_(std::max<std::int64_t>(1, limit / 8)) {}

  std::int64_t limit() const { return limit_; }
  std::int64_t free() const { return limit_ + spare_ - taken_; }

  // Whether a tenant that holds `held` may take one of `free`.
  bool Allows(std::int64_t held, std::int64_t free) const { return held * spare_ < free * limit_; }

  void Take() { ++taken_; }
  void Give() { --taken_; }
  bool none_taken() const { return taken_ == 0; }

 private:
  const std::int64_t limit_;
  const std::int64_t spare_;
  std::int64_t taken_ = 0;
};

// What a tenant holds of each sort.
struct Held {
  std::int64_t places = 0;
  std::int64_t tickets = 0;
};

// Those that hold any. Entries stay where they are.
using HeldByTenant = std::map<std::string, Held, std::less<>>;

}  // namespace oscarkv
