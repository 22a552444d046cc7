// Which sessions to evict, in which order, and how: the policy picks, the store acts.
//
// Thread-safety: pure functions; no locks, no clock, nothing is kept between calls.
//
// What is evicted is a unit: a session, or all sessions of a tenant that name the same group. Of a
// group, its members' bytes are added up, the highest priority, the latest use and the longest time
// to live count, and one member that is pinned or busy holds all of them.
//
// Rules, in the order in which they apply:
//   1. A unit whose time to live has passed since its last use is dropped, however much memory is
//      free.
//   2. While a tenant holds more than its quota, its own units are evicted.
//   3. If what is used and wanted is more than the high watermark, units are evicted until it is at
//      most the low one. Where no eviction leads there, a sweep evicts all that it may, and a
//      request only what lets it fit into the budget. For a request that cannot fit, nothing is
//      evicted: the plan is that of a sweep.
//
// Rules 2 and 3 take units of lower priority first, among these the least recently used, and then
// by id. They move a unit to the lower tier if all of it can be moved, else drop it if data may be
// lost, else leave it; and they leave what holds no memory. None of the rules touches what is
// pinned or busy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"

namespace oscarkv {

struct EvictionCandidate {
  std::string id;
  std::string group;  // empty: none
  std::string tenant;
  std::int64_t resident_bytes = 0;  // that its eviction frees; 0 if spilled
  int priority = 0;                 // higher: stays longer
  absl::Time last_use;
  absl::Duration ttl = absl::InfiniteDuration();  // from last_use on; infinite: none
  bool pinned = false;                            // by its owner
  bool busy = false;                              // requests are inside, or a step is under way
  bool spillable = false;                         // its state can be moved to the lower tier
  bool spilled = false;                           // to the lower tier already
};

struct EvictionInput {
  absl::Time now;
  std::int64_t budget_bytes = 0;
  std::int64_t used_bytes = 0;    // as the budget counts them
  std::int64_t wanted_bytes = 0;  // that a request needs now; 0: a sweep
  double low_watermark = 1;       // both are fractions of the budget
  double high_watermark = 1;
  bool can_spill = false;  // there is a lower tier
  bool may_drop = false;   // data may be lost for memory and quotas; a time to live needs no leave
  // Resident bytes by tenant. Without an entry, or with 0: no quota.
  absl::btree_map<std::string, std::int64_t> quota_bytes;
  std::vector<EvictionCandidate> candidates;  // all sessions, in any order
};

enum class EvictionAction : std::uint8_t { kSpill, kDrop };
enum class EvictionReason : std::uint8_t { kTtl, kQuota, kMemory };

struct EvictionDecision {
  std::string id;
  EvictionAction action = EvictionAction::kSpill;
  EvictionReason reason = EvictionReason::kMemory;

  bool operator==(const EvictionDecision&) const = default;
};

// For configurations: what PlanEvictions requires of watermarks.
constexpr bool AreValidWatermarks(double low, double high) {
  return 0 < low && low <= high && high <= 1;
}

// Decisions in the order in which to carry them out, members of a unit next to each other and by
// id; of a unit that is spilled, those that are not on the lower tier yet. The same for any order
// of the candidates. O(n log n).
//
// A plan, not a promise: blocks that sessions share are counted for each of them and freed with the
// last, sessions become busy, spilling fails. Whoever carries it out looks after each unit whether
// enough is free, and asks again, with new numbers, when the plan ends too early.
//
// REQUIRES: the ids are distinct; bytes are at least 0, and their sums fit into an int64; the
// watermarks are valid.
std::vector<EvictionDecision> PlanEvictions(const EvictionInput& input);

}  // namespace oscarkv
