#include "server/rpc/batch_work.h"

#include <exception>
#include <vector>

namespace oscarkv {
namespace {

void Apply(SessionStore& store, WorkKind kind, std::span<BatchItem* const> items) {
  if (kind == WorkKind::kAppend) {
    store.Append(items);
  } else {
    store.Attend(items);
  }
}

// Those that have not given up, in one call. False if there was no memory for it: then nothing is
// applied.
bool ApplyAll(SessionStore& store, WorkKind kind, std::span<Work* const> works) {
  try {
    std::vector<BatchItem*> items;
    for (Work* work : works) {
      auto& batch_work = static_cast<BatchWork&>(*work);
      if (!batch_work.scope().status().ok()) continue;
      items.insert(items.end(), batch_work.items().begin(), batch_work.items().end());
    }
    Apply(store, kind, items);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

absl::Status ApplyFailed(SessionStore& store, WorkKind kind, std::span<BatchItem* const> items) {
  std::vector<BatchItem*> failed;
  for (BatchItem* item : items) {
    if (item->call_failed) failed.push_back(item);
  }
  if (!failed.empty()) Apply(store, kind, failed);
  return absl::OkStatus();
}

}  // namespace

void ApplyTogether(SessionStore& store, std::span<Work* const> works) {
  const WorkKind kind = works.front()->facts().kind;
  for (Work* work : works) static_cast<BatchWork*>(work)->scope().Take().IgnoreError();
  const bool alone = works.size() == 1;
  const bool applied = !alone && ApplyAll(store, kind, works);
  for (Work* work : works) {
    auto& batch_work = static_cast<BatchWork&>(*work);
    RpcScope& scope = batch_work.scope();
    if (!scope.status().ok()) continue;
    const absl::Status told = scope.Guard([&] {
      if (applied) return ApplyFailed(store, kind, batch_work.items());
      Apply(store, kind, batch_work.items());
      return absl::OkStatus();
    });
    static_cast<void>(told);  // the scope tells it again
  }
}

}  // namespace oscarkv
