#include "server/queue/fair_queue.h"

#include <algorithm>
#include <string>

namespace oscarkv {
namespace {

std::int64_t ChargeOf(const Work& work) { return std::max<std::int64_t>(work.facts().cost, 1); }

}  // namespace

void FairQueue::Push(Work* work) {
  // No one waits: what anyone was served before is of no account.
  if (works_.empty()) tenants_.clear();
  auto it = tenants_.find(work->facts().tenant);
  if (it == tenants_.end()) {
    it = tenants_.try_emplace(std::string(work->facts().tenant), Tenant{now_, now_}).first;
  }
  Tenant& tenant = it->second;
  const std::int64_t begin = std::max(now_, tenant.end);
  const std::int64_t start = std::max(begin, tenant.last_start);
  works_.emplace(Place{.start = start, .number = next_number_}, work);
  ++next_number_;
  tenant = {.last_start = start, .end = begin + ChargeOf(*work)};
  ForgetIdle();
}

void FairQueue::Offer(absl::FunctionRef<Verdict(Work&)> decide) {
  for (auto it = works_.begin(); it != works_.end();) {
    const Verdict verdict = decide(*it->second);
    if (verdict == Verdict::kStop) return;
    if (verdict == Verdict::kSkip) {
      ++it;
      continue;
    }
    if (verdict == Verdict::kTake) {
      now_ = std::max(now_, it->first.start);
    } else if (const auto tenant = tenants_.find(it->second->facts().tenant);
               tenant != tenants_.end()) {
      tenant->second.end -= ChargeOf(*it->second);
    }
    it = works_.erase(it);
  }
}

void FairQueue::ForgetIdle() {
  if (tenants_.size() <= forget_above_) return;
  std::erase_if(tenants_, [this](const auto& entry) {
    return std::max(entry.second.last_start, entry.second.end) <= now_;
  });
  forget_above_ = 2 * tenants_.size() + kFewTenants;  // often enough: each time costs a look at all
}

}  // namespace oscarkv
