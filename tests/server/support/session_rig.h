// Sessions without a store around them, so that a test decides when a piece of a page is sealed
// ahead, and which sessions are prepared at all.
//
// Thread-safety: as of what it holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/session/batch.h"
#include "server/session/preparer.h"
#include "server/session/session.h"
#include "server/session/session_table.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {

class SessionRig {
 public:
  explicit SessionRig(Backend* backend, std::int64_t budget_bytes = 1 << 28, int most_pages = 4);

  std::shared_ptr<Session> Create(SessionConfig config);
  // As the store would, whether pages are prepared or not.
  absl::Status Append(Request* request, bool prepared = true);
  absl::Status Attend(Request* request, bool prepared = true);
  void Truncate(Session* session, std::int64_t length);
  void Delete(Session* session);

  // Does up to `most` pieces; returns how many there were.
  int DoPieces(int most = 1 << 20);

  BatchContext context(bool prepared = true);
  // The bytes of a layer's sealed pages, in order.
  std::vector<std::string> Pages(Session* session, std::size_t layer = 0);
  LayerStats Stats(const Session& session, std::size_t layer = 0) const {
    return session.Info().layers[layer];
  }

  MemoryBudget& budget() { return budget_; }
  // Without what is promised to steps.
  std::int64_t taken() const { return budget_.used() - budget_.used(MemoryKind::kPromised); }
  BlockPool& pool() { return pool_; }
  Preparer& preparer() { return *preparer_; }
  // Ends the preparer, wherever it is, and makes another.
  void ReplacePreparer(int most_pages = 4);

 private:
  absl::Status Run(Request* request, BatchKind kind, bool prepared);

  Backend* const backend_;
  MemoryBudget budget_;
  BlockPool pool_;
  std::atomic<std::int64_t> logical_bytes_{0};
  std::uint64_t next_generation_ = 1;
  SessionTable sessions_;
  std::unique_ptr<Preparer> preparer_;
};

}  // namespace oscarkv
