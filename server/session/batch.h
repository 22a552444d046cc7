// One Append or Attend over items of many sessions: each item applies whole or not at all, and the
// backend is called once for all of them.
//
// Thread-safety: a batch belongs to one thread; batches run side by side. To do so without
// deadlock, a batch takes its sessions' locks in the order of their ids.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/api/backend.h"
#include "server/pages/block_pool.h"
#include "server/pages/memory_budget.h"
#include "server/session/item_check.h"
#include "server/session/layer_change.h"
#include "server/session/session.h"
#include "server/session/session_store.h"
#include "server/session/session_table.h"

namespace oscarkv {

// What batches work on. All outlive them.
struct BatchContext {
  const SessionTable* sessions = nullptr;
  Backend* backend = nullptr;
  BlockPool* pool = nullptr;
  MemoryBudget* budget = nullptr;
};

class Batch {
 public:
  // `attend`: null for an Append. REQUIRES: items and what they point to outlive the batch.
  Batch(const BatchContext& context, int layer, std::span<BatchItem> items,
        const AttendOptions* attend);

  // Does all of it; every item then has its status. To be called once.
  void Run();

 private:
  // An item that has a session. Members end in reverse order: undo, then unlock.
  struct Work {
    BatchItem* item = nullptr;
    std::uint32_t crc = 0;
    std::unique_ptr<LayerLease> lease = {};
    AppendKind append = AppendKind::kNone;
    QueryRows queries = {};
    std::unique_ptr<LayerChange> change = {};  // null once the item has failed

    LayerState& layer() const { return lease->state(); }
  };

  void Open();
  absl::Status OpenItem(BatchItem* item);
  absl::Status Check(Work* work) const;
  absl::Status Prepare(Work* work) const;
  void Seal();
  void Write();
  void Attend();
  void Commit();

  // Runs `step` on the works that are still good.
  void ForEach(const std::function<absl::Status(Work*)>& step);
  // `works` fail with `status`, if it is an error.
  static void FailAll(const absl::Status& status, std::span<Work* const> works);

  const BatchContext context_;
  const int layer_;
  const std::span<BatchItem> items_;
  const AttendOptions* const attend_;
  std::deque<Work> works_;  // in the order of session ids
};

}  // namespace oscarkv
