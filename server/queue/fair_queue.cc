#include "server/queue/fair_queue.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace oscarkv {

void FairQueue::Push(Work* work) {
  // No one waits: what anyone was served before is of no account.
  if (order_.empty()) tenants_.clear();
  auto found = tenants_.find(work->facts().tenant);
  if (found == tenants_.end()) {
    found = tenants_.try_emplace(std::string(work->facts().tenant)).first;
    found->second.number = next_number_++;
  }
  Tenant* const tenant = &found->second;
  tenant->works.push_back(work);
  ++size_;
  if (tenant->works.size() > 1) return;
  tenant->time = std::max(tenant->time, now_);
  order_.insert(tenant);
}

void FairQueue::Offer(absl::FunctionRef<Verdict(Work&)> decide) {
  std::vector<Tenant*> offered;  // all their works have been; not in order_ until the end
  for (Tenant* tenant : order_) tenant->next = tenant->works.begin();
  bool stopped = false;
  while (!stopped && !order_.empty()) {
    Tenant* const tenant = *order_.begin();
    if (tenant->next == tenant->works.end()) {
      order_.erase(order_.begin());
      offered.push_back(tenant);
      continue;
    }
    Work& work = **tenant->next;
    const std::int64_t cost = work.facts().cost;  // a work that is taken is no longer the queue's
    const Verdict verdict = decide(work);
    stopped = verdict == Verdict::kStop;
    if (verdict == Verdict::kSkip) ++tenant->next;
    if (verdict != Verdict::kTake) continue;
    tenant->next = tenant->works.erase(tenant->next);
    --size_;
    order_.erase(order_.begin());
    now_ = std::max(now_, tenant->time);
    tenant->time += std::max<std::int64_t>(cost, 1);
    order_.insert(tenant);
  }
  for (Tenant* tenant : offered) order_.insert(tenant);
  std::erase_if(order_, [](const Tenant* tenant) { return tenant->works.empty(); });
  ForgetIdle();
}

void FairQueue::ForgetIdle() {
  if (tenants_.size() <= 2 * order_.size() + 16) return;  // often enough: each costs a look at all
  std::erase_if(tenants_, [this](const auto& entry) {
    return entry.second.works.empty() && entry.second.time <= now_;
  });
}

}  // namespace oscarkv
