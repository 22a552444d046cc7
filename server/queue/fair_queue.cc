#include "server/queue/fair_queue.h"

#include <algorithm>
#include <string>

namespace oscarkv {

void FairQueue::Push(Work* work) {
  // No one waits: what anyone was served before is of no account.
  if (works_.empty()) ends_.clear();
  auto end = ends_.find(work->facts().tenant);
  if (end == ends_.end()) end = ends_.try_emplace(std::string(work->facts().tenant), now_).first;
  const std::int64_t start = std::max(now_, end->second);
  works_.emplace(Place{.start = start, .number = next_number_++}, work);
  end->second = start + std::max<std::int64_t>(work->facts().cost, 1);
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
    now_ = std::max(now_, it->first.start);
    it = works_.erase(it);
  }
}

void FairQueue::ForgetIdle() {
  if (ends_.size() <= forget_above_) return;
  std::erase_if(ends_, [this](const auto& entry) { return entry.second <= now_; });
  forget_above_ = 2 * ends_.size() + kFewTenants;  // often enough: each time costs a look at all
}

}  // namespace oscarkv
