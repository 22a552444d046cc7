// One Append or Attend over items of many sessions and layers: each item applies whole or not at
// all, and the backend is called once for all of them.
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
#include "server/session/preparer.h"
#include "server/session/session.h"
#include "server/session/session_store.h"
#include "server/session/session_table.h"

namespace oscarkv {

class Tiers;

// What batches work on. All outlive them.
struct BatchContext {
  const SessionTable* sessions = nullptr;
  Backend* backend = nullptr;
  BlockPool* pool = nullptr;
  MemoryBudget* budget = nullptr;
  Preparer* preparer = nullptr;  // null: nothing is sealed ahead
  Tiers* tiers = nullptr;        // null: no session is ever evicted
};

enum class BatchKind : std::uint8_t { kAppend, kAttend };

class Batch {
 public:
  // REQUIRES: items and what they point to outlive the batch.
  Batch(const BatchContext& context, std::span<BatchItem* const> items, BatchKind kind);

  // Does all of it; every item then has its status. To be called once. If it throws bad_alloc, no
  // item is applied.
  void Run();

 private:
  // An item that has a session. Members end in reverse order: undo, then unlock.
  struct Work {
    BatchItem* item = nullptr;
    std::uint32_t crc = 0;
    std::unique_ptr<LayerLease> lease = {};
    AppendKind append = AppendKind::kNone;
    QueryRows queries = {};
    MemoryReservation promise = {};
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
  // `work` fails with `status`, if it is an error.
  static void Fail(const absl::Status& status, Work* work);
  static void ReturnPromise(Work* work);
  // A call of the backend for `works` has ended so.
  static void NoteCall(const KernelStatus& status, std::span<Work* const> works);

  const BatchContext context_;
  const std::span<BatchItem* const> items_;
  const BatchKind kind_;
  std::deque<Work> works_;  // in the order of session ids
};

}  // namespace oscarkv
