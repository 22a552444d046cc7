// Plans for random inputs, compared with an oracle: the rules once more, each said of the prefixes
// of the order of eviction, of which the shortest one is wanted.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/session/eviction_policy.h"

namespace oscarkv {
namespace {

constexpr EvictionAction kSpill = EvictionAction::kSpill;
constexpr EvictionAction kDrop = EvictionAction::kDrop;
constexpr EvictionReason kTtl = EvictionReason::kTtl;
constexpr EvictionReason kQuota = EvictionReason::kQuota;
constexpr EvictionReason kMemory = EvictionReason::kMemory;

absl::Time At(std::int64_t seconds) { return absl::FromUnixSeconds(seconds); }

struct OracleUnit {
  std::vector<EvictionCandidate> members;  // by id

  template <typename Of>
  auto Highest(Of of) const {
    auto highest = of(members.front());
    for (const EvictionCandidate& member : members) highest = std::max(highest, of(member));
    return highest;
  }
  bool Any(bool EvictionCandidate::*flag) const {
    return Highest([&](const EvictionCandidate& member) { return member.*flag; });
  }
  auto Rank() const {
    return std::tuple(Highest([](const EvictionCandidate& member) { return member.priority; }),
                      Highest([](const EvictionCandidate& member) { return member.last_use; }),
                      members.front().id);
  }
  bool IsHeld() const { return Any(&EvictionCandidate::pinned) || Any(&EvictionCandidate::busy); }
  bool HasExpired(absl::Time now) const {
    const auto last_use = std::get<1>(Rank());
    return std::all_of(members.begin(), members.end(),
                       [&](const auto& member) { return last_use + member.ttl <= now; });
  }
  std::int64_t Bytes() const {
    std::int64_t bytes = 0;
    for (const EvictionCandidate& member : members) bytes += member.resident_bytes;
    return bytes;
  }
  bool CanBeSpilled() const {
    return std::all_of(members.begin(), members.end(),
                       [](const auto& member) { return member.spillable || member.spilled; });
  }
};

using Units = std::vector<OracleUnit>;

Units UnitsInOrder(const EvictionInput& input) {
  std::map<std::tuple<std::string, std::string, std::string>, Units::value_type> by_name;
  for (const EvictionCandidate& candidate : input.candidates) {
    const bool alone = candidate.group.empty();
    by_name[{candidate.tenant, candidate.group, alone ? candidate.id : ""}].members.push_back(
        candidate);
  }
  Units units;
  for (auto& [name, unit] : by_name) {
    std::sort(unit.members.begin(), unit.members.end(),
              [](const auto& a, const auto& b) { return a.id < b.id; });
    units.push_back(std::move(unit));
  }
  std::sort(units.begin(), units.end(),
            [](const OracleUnit& a, const OracleUnit& b) { return a.Rank() < b.Rank(); });
  return units;
}

// Removes and returns the units for which it holds, in their order.
template <typename Predicate>
Units Extract(Units& units, Predicate predicate) {
  const auto taken = std::stable_partition(units.begin(), units.end(),
                                           [&](const auto& unit) { return !predicate(unit); });
  Units extracted(std::make_move_iterator(taken), std::make_move_iterator(units.end()));
  units.erase(taken, units.end());
  return extracted;
}

// How many units to evict from the front, so that what is left of `bytes` is enough; all of them
// if it never is.
template <typename Enough>
std::size_t ShortestPrefix(const Units& units, std::int64_t bytes, Enough enough) {
  std::size_t count = 0;
  while (count < units.size() && !enough(bytes)) bytes -= units[count++].Bytes();
  return count;
}

std::int64_t BytesOf(const Units& units) {
  std::int64_t bytes = 0;
  for (const OracleUnit& unit : units) bytes += unit.Bytes();
  return bytes;
}

class Oracle {
 public:
  explicit Oracle(const EvictionInput& input) : input_(input), left_(UnitsInOrder(input)) {}

  std::vector<EvictionDecision> Plan() {
    Decide(Extract(left_, [&](const auto& u) { return !u.IsHeld() && u.HasExpired(input_.now); }),
           kTtl);
    Decide(BeyondQuotas(), kQuota);
    Decide(BeyondWatermarks(), kMemory);
    return decisions_;
  }

 private:
  bool Spills(const OracleUnit& unit) const { return input_.can_spill && unit.CanBeSpilled(); }
  bool IsEvictable(const OracleUnit& unit) const {
    return !unit.IsHeld() && unit.Bytes() > 0 && (Spills(unit) || input_.may_drop);
  }

  Units BeyondQuotas() {
    std::set<std::string> ids;  // of the first member of each
    for (const auto& [tenant, quota] : input_.quota_bytes) {
      if (quota == 0) continue;
      Units own;
      for (const OracleUnit& unit : left_) {
        if (unit.members.front().tenant == tenant) own.push_back(unit);
      }
      const std::int64_t held = BytesOf(own);
      const Units evictable = Extract(own, [&](const auto& unit) { return IsEvictable(unit); });
      const std::size_t count = ShortestPrefix(
          evictable, held, [limit = quota](std::int64_t bytes) { return bytes <= limit; });
      for (std::size_t i = 0; i < count; ++i) ids.insert(evictable[i].members.front().id);
    }
    return Extract(left_, [&](const auto& unit) { return ids.contains(unit.members.front().id); });
  }

  Units BeyondWatermarks() {
    Units evictable = Extract(left_, [&](const auto& unit) { return IsEvictable(unit); });
    const auto at_most = [&](double fraction, std::int64_t wanted) {
      return [=, this](std::int64_t bytes) {
        return static_cast<double>(std::max<std::int64_t>(bytes, 0) + wanted) <=
               fraction * static_cast<double>(input_.budget_bytes);
      };
    };
    const std::int64_t least = used_ - BytesOf(evictable);
    const std::int64_t wanted = at_most(1, input_.wanted_bytes)(least) ? input_.wanted_bytes : 0;
    std::size_t count = 0;
    if (!at_most(input_.high_watermark, wanted)(used_)) {
      const bool in_reach = at_most(input_.low_watermark, wanted)(least);
      const double goal = in_reach || wanted == 0 ? input_.low_watermark : 1;
      count = ShortestPrefix(evictable, used_, at_most(goal, wanted));
    }
    evictable.resize(count);
    return evictable;
  }

  void Decide(const Units& units, EvictionReason reason) {
    for (const OracleUnit& unit : units) {
      const bool spills = reason != kTtl && Spills(unit);
      for (const EvictionCandidate& member : unit.members) {
        if (spills && member.spilled) continue;
        decisions_.push_back({member.id, spills ? kSpill : kDrop, reason});
      }
    }
    used_ -= BytesOf(units);
  }

  const EvictionInput& input_;
  Units left_;
  std::int64_t used_ = input_.used_bytes;
  std::vector<EvictionDecision> decisions_;
};

class RandomInput {
 public:
  explicit RandomInput(std::uint32_t seed) : random_(seed) {}

  // Few different values of each kind, so that ties, full groups and exact fits are frequent.
  EvictionInput Next(int candidates, int groups) {
    EvictionInput input;
    input.now = At(100);
    for (int i = 0; i < candidates; ++i) input.candidates.push_back(Candidate(i, groups));
    std::int64_t resident = 0;
    for (const EvictionCandidate& candidate : input.candidates) {
      resident += candidate.resident_bytes;
    }
    input.used_bytes = std::max<std::int64_t>(resident + Below(21) - 10, 0);
    input.budget_bytes = 1 + input.used_bytes * Below(20) / 10;
    if (Chance(0.5)) input.wanted_bytes = Below(static_cast<int>(input.budget_bytes) + 10);
    input.low_watermark = (1 + Below(8)) / 8.0;
    input.high_watermark = std::min(1.0, input.low_watermark + Below(4) / 8.0);
    input.can_spill = Chance(0.7);
    input.may_drop = Chance(0.5);
    for (const char* tenant : {"x", "y"}) {
      if (Chance(0.5)) input.quota_bytes[tenant] = resident * Below(8) / 10;
    }
    return input;
  }

  void Shuffle(std::vector<EvictionCandidate>& candidates) {
    std::shuffle(candidates.begin(), candidates.end(), random_);
  }

 private:
  int Below(int end) { return std::uniform_int_distribution<>(0, end - 1)(random_); }
  bool Chance(double probability) { return std::bernoulli_distribution(probability)(random_); }

  EvictionCandidate Candidate(int number, int groups) {
    EvictionCandidate candidate;
    candidate.id = absl::StrCat("s", number);
    candidate.tenant = std::string(1, "xyz"[Below(3)]);
    if (Chance(0.5)) candidate.group = absl::StrCat("g", Below(groups));
    candidate.priority = Below(3) - 1;
    candidate.last_use = At(Below(100));
    if (Chance(0.3)) candidate.ttl = absl::Seconds(Below(100));
    candidate.pinned = Chance(0.1);
    candidate.busy = Chance(0.1);
    candidate.spilled = Chance(0.2);
    if (!candidate.spilled) {
      candidate.resident_bytes = Below(8);
      candidate.spillable = Chance(0.8);
    }
    return candidate;
  }

  std::mt19937 random_;
};

TEST(EvictionPolicyPropertyTest, AnyPlanIsThatOfTheOracle) {
  RandomInput random(1);
  std::map<std::pair<EvictionAction, EvictionReason>, int> seen;
  for (int round = 0; round < 20000; ++round) {
    const EvictionInput input = random.Next(1 + round % 12, 3);
    const std::vector<EvictionDecision> plan = PlanEvictions(input);
    ASSERT_EQ(plan, Oracle(input).Plan()) << "round " << round;
    for (const EvictionDecision& decision : plan) ++seen[{decision.action, decision.reason}];
  }
  for (const auto& kind :
       {std::pair(kDrop, kTtl), std::pair(kSpill, kQuota), std::pair(kDrop, kQuota),
        std::pair(kSpill, kMemory), std::pair(kDrop, kMemory)}) {
    EXPECT_GT(seen[kind], 1000);
  }
}

// What holds of any plan, whatever the order of the rules: nothing that is pinned or busy, no part
// of a group, nothing twice, nothing lost without leave.
TEST(EvictionPolicyPropertyTest, NoPlanTouchesWhatItMustNot) {
  RandomInput random(2);
  for (int round = 0; round < 5000; ++round) {
    const EvictionInput input = random.Next(1 + round % 40, 8);
    std::map<std::string, EvictionDecision> plan;
    for (const EvictionDecision& decision : PlanEvictions(input)) {
      ASSERT_TRUE(plan.emplace(decision.id, decision).second) << "twice";
      ASSERT_TRUE(decision.action == kDrop ? decision.reason == kTtl || input.may_drop
                                           : decision.reason != kTtl && input.can_spill);
    }
    for (const OracleUnit& unit : UnitsInOrder(input)) {
      const auto first =
          std::find_if(unit.members.begin(), unit.members.end(),
                       [&](const EvictionCandidate& member) { return plan.contains(member.id); });
      if (first == unit.members.end()) continue;
      const EvictionDecision& decision = plan.at(first->id);
      ASSERT_FALSE(unit.IsHeld());
      ASSERT_TRUE(decision.reason == kTtl || unit.Bytes() > 0);
      for (const EvictionCandidate& member : unit.members) {
        const auto it = plan.find(member.id);
        if (decision.action == kSpill && member.spilled) {
          ASSERT_EQ(it, plan.end());
          continue;
        }
        ASSERT_NE(it, plan.end()) << "a part of a group";
        ASSERT_EQ(it->second.action, decision.action);
        ASSERT_EQ(it->second.reason, decision.reason);
        ASSERT_TRUE(decision.action == kDrop || member.spillable);
      }
    }
  }
}

TEST(EvictionPolicyPropertyTest, APlanDoesNotDependOnTheOrderOfTheCandidates) {
  RandomInput random(3);
  for (int round = 0; round < 2000; ++round) {
    EvictionInput input = random.Next(1 + round % 40, 8);
    const std::vector<EvictionDecision> plan = PlanEvictions(input);
    random.Shuffle(input.candidates);
    ASSERT_EQ(PlanEvictions(input), plan) << "round " << round;
  }
}

TEST(EvictionPolicyPropertyTest, ManyCandidates) {
  RandomInput random(4);
  for (int round = 0; round < 5; ++round) {
    const EvictionInput input = random.Next(10000, 1000);
    ASSERT_EQ(PlanEvictions(input), Oracle(input).Plan()) << "round " << round;
  }
}

}  // namespace
}  // namespace oscarkv
