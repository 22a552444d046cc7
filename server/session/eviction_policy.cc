#include "server/session/eviction_policy.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

namespace oscarkv {
namespace {

struct Unit {
  std::vector<const EvictionCandidate*> members;  // by id
  std::int64_t resident_bytes = 0;                // 0 once it is evicted
  int priority = std::numeric_limits<int>::min();
  absl::Time last_use = absl::InfinitePast();
  absl::Duration ttl = -absl::InfiniteDuration();
  bool held = false;      // pinned or busy
  bool spillable = true;  // with all members that are not on the lower tier

  void Add(const EvictionCandidate& member) {
    members.push_back(&member);
    resident_bytes += member.resident_bytes;
    priority = std::max(priority, member.priority);
    last_use = std::max(last_use, member.last_use);
    ttl = std::max(ttl, member.ttl);
    held = held || member.pinned || member.busy;
    spillable = spillable && (member.spillable || member.spilled);
  }
};

bool AreOfOneUnit(const EvictionCandidate& a, const EvictionCandidate& b) {
  return !a.group.empty() && a.group == b.group && a.tenant == b.tenant;
}

// In the order of eviction.
std::vector<Unit> UnitsOf(const std::vector<EvictionCandidate>& candidates) {
  std::vector<const EvictionCandidate*> sorted;
  sorted.reserve(candidates.size());
  for (const EvictionCandidate& candidate : candidates) sorted.push_back(&candidate);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::tie(a->tenant, a->group, a->id) < std::tie(b->tenant, b->group, b->id);
  });

  std::vector<Unit> units;
  for (const EvictionCandidate* candidate : sorted) {
    if (units.empty() || !AreOfOneUnit(*units.back().members.front(), *candidate)) {
      units.emplace_back();
    }
    units.back().Add(*candidate);
  }
  std::sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) {
    return std::tie(a.priority, a.last_use, a.members.front()->id) <
           std::tie(b.priority, b.last_use, b.members.front()->id);
  });
  return units;
}

class Planner {
 public:
  explicit Planner(const EvictionInput& input)
      : input_(input), units_(UnitsOf(input.candidates)), used_bytes_(input.used_bytes) {}

  void DropExpired();
  void KeepToQuotas();
  void KeepToWatermarks();

  std::vector<EvictionDecision> TakeDecisions() { return std::move(decisions_); }

 private:
  bool HasExpired(const Unit& unit) const {
    return unit.ttl != absl::InfiniteDuration() && input_.now - unit.last_use >= unit.ttl;
  }
  // How a unit makes room, if it may and has any to make.
  std::optional<EvictionAction> WayOut(const Unit& unit) const;
  // Whether so many bytes are at most that part of the budget.
  bool Fit(std::int64_t bytes, double fraction) const {
    return static_cast<double>(bytes) <= fraction * static_cast<double>(input_.budget_bytes);
  }
  void Evict(Unit& unit, EvictionAction action, EvictionReason reason);

  const EvictionInput& input_;
  std::vector<Unit> units_;  // in the order of eviction
  std::int64_t used_bytes_;  // once the decisions are carried out; below 0 if they share blocks
  std::vector<EvictionDecision> decisions_;
};

void Planner::DropExpired() {
  for (Unit& unit : units_) {
    if (!unit.held && HasExpired(unit)) Evict(unit, EvictionAction::kDrop, EvictionReason::kTtl);
  }
}

void Planner::KeepToQuotas() {
  absl::btree_map<std::string_view, std::int64_t> excess;  // of the tenants that have a quota
  for (const auto& [tenant, quota] : input_.quota_bytes) {
    if (quota > 0) excess[tenant] = -quota;
  }
  if (excess.empty()) return;
  const auto excess_of = [&](const Unit& unit) {
    const auto it = excess.find(unit.members.front()->tenant);
    return it == excess.end() ? nullptr : &it->second;
  };
  for (const Unit& unit : units_) {
    if (std::int64_t* bytes = excess_of(unit)) *bytes += unit.resident_bytes;
  }
  for (Unit& unit : units_) {
    std::int64_t* bytes = excess_of(unit);
    if (bytes == nullptr || *bytes <= 0) continue;
    if (const auto action = WayOut(unit)) {
      *bytes -= unit.resident_bytes;
      Evict(unit, *action, EvictionReason::kQuota);
    }
  }
}

void Planner::KeepToWatermarks() {
  std::int64_t least_used = used_bytes_;
  for (const Unit& unit : units_) {
    if (WayOut(unit)) least_used -= unit.resident_bytes;
  }
  // Shared blocks are counted for each session; more than is used cannot be freed.
  least_used = std::max<std::int64_t>(least_used, 0);

  const std::int64_t wanted = Fit(least_used + input_.wanted_bytes, 1) ? input_.wanted_bytes : 0;
  if (Fit(used_bytes_ + wanted, input_.high_watermark)) return;
  const bool in_reach = Fit(least_used + wanted, input_.low_watermark);
  const double goal = wanted > 0 && !in_reach ? 1 : input_.low_watermark;
  for (Unit& unit : units_) {
    if (Fit(used_bytes_ + wanted, goal)) return;
    if (const auto action = WayOut(unit)) Evict(unit, *action, EvictionReason::kMemory);
  }
}

std::optional<EvictionAction> Planner::WayOut(const Unit& unit) const {
  if (unit.held || unit.resident_bytes == 0) return std::nullopt;
  if (input_.can_spill && unit.spillable) return EvictionAction::kSpill;
  if (input_.may_drop) return EvictionAction::kDrop;
  return std::nullopt;
}

void Planner::Evict(Unit& unit, EvictionAction action, EvictionReason reason) {
  for (const EvictionCandidate* member : unit.members) {
    if (action == EvictionAction::kSpill && member->spilled) continue;
    decisions_.push_back({.id = member->id, .action = action, .reason = reason});
  }
  used_bytes_ -= unit.resident_bytes;
  unit.resident_bytes = 0;
}

}  // namespace

std::vector<EvictionDecision> PlanEvictions(const EvictionInput& input) {
  Planner planner(input);
  planner.DropExpired();
  planner.KeepToQuotas();
  planner.KeepToWatermarks();
  return planner.TakeDecisions();
}

}  // namespace oscarkv
