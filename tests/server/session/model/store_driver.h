// Random requests to a store, right and wrong, and what a plain model says of their answers.
//
// Thread-safety: none of a driver; drivers whose ids begin differently may use a store at once.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/session/session_export.h"
#include "server/session/session_store.h"
#include "tests/server/session/model/model_session.h"
#include "tests/server/session/model/undisturbed.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {

// What OSCARKV_TEST_SEED says, or else `usual`.
std::uint64_t DriverSeed(std::uint64_t usual);

struct DriverOptions {
  std::uint64_t seed = 1;
  std::string name;   // the tenant, and what ids begin with
  bool files = true;  // the store has a data directory
  // Sessions go to their files when they are told to, and at no other time.
  bool moves_when_told = true;
  // Nobody else settles, or may be disturbed by it.
  bool settles = true;
};

class StoreDriver {
 public:
  explicit StoreDriver(const DriverOptions& options);

  // The store that the next requests go to.
  void Use(SessionStore* store) { store_ = store; }
  // One request, or a few, drawn from a table.
  void Step();
  std::int64_t steps() const { return steps_; }
  const ModelSessions& sessions() const { return sessions_; }

  // All of the store's sessions of this tenant are those of the model.
  void ExpectList();
  // As many layers as in the store have gone through what the model says they have.
  void ExpectUndisturbed();
  // Around a Settle of the store.
  void BeforeSettle();
  void AfterSettle();
  // Moves all sessions to their files, then brings them back.
  void EvictAll();
  void RestoreAll();
  void DeleteAll();

  // What the store says is durable, by session.
  std::map<std::string, std::int64_t> DurableLengths() const;
  // The store has been started from its directory, as it was when the model had `before`, or what
  // it has now, or something in between. `durable`: lengths that must be there.
  void Recover(const ModelSessions& before, const std::map<std::string, std::int64_t>& durable);

  // How to get there again, and what the last requests were.
  void PrintTrace() const;

 private:
  struct Operation {
    const char* name;
    int weight;
    void (StoreDriver::*run)();
  };
  static std::span<const Operation> Operations();
  struct Planned;  // an item of a batch
  struct Exported {
    std::vector<std::byte> bytes = {};
    ModelShape shape;
    SessionState state;
    std::uint64_t serial = 0;
  };

  void Create();
  void Delete();
  void Truncate();
  void Fork();
  void AppendOrAttend();
  void Read();
  void Compare();
  void Look();
  void Settle();
  void Evict();
  void Restore();
  void Checkpoint();
  void CheckpointAll();
  void Export();
  void Import();

  std::int64_t Draw(std::int64_t from, std::int64_t to) {
    return from + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(to - from + 1));
  }
  bool OneIn(std::uint64_t n) { return random_() % n == 0; }
  std::string DrawId();
  std::uint64_t NewSeed() { return next_seed_++; }
  // The model's session of that id; null: there is none.
  ModelSession* Find(const std::string& id);
  void Note(const std::string& id, const std::string& text);

  // Checks a generation that the store has begun, and keeps it.
  void Began(std::uint64_t generation, ModelSession* session);
  // After each change: the session is in the store what it is in the model, at a glance.
  void ExpectLike(const std::string& id, const SessionInfo& info);
  void ExpectSession(const std::string& id);
  // What is in the session's file may be what the session is now.
  void MayBeWritten(ModelSession* session);
  // Refused for want of memory: true if there may have been none, and `want` bytes are wanted.
  bool MayLack(const absl::Status& status, std::int64_t used, std::int64_t want);
  std::int64_t UsedBytes() const;

  Planned Plan(bool attend);
  void PlanTokens(bool attend, ModelSession* session, Planned* planned);
  void Spoil(Planned* planned);
  void ExpectAnswered(bool attend, std::int64_t used, Planned* planned);

  SessionConfig CreateConfig(const std::string& id, const ModelShape& shape);
  // Where a create of that shape must find its prefix.
  std::pair<const ModelSession*, std::int64_t> PrefixOf(const ModelShape& shape) const;

  void PlanFork(ForkItem* item);
  ModelSession ForkOf(const ForkItem& item);
  struct Refusal {
    absl::StatusCode code = absl::StatusCode::kOk;
    std::string reason = "";
  };
  Refusal ForkRefusal(const ForkItem& item, bool again);
  Refusal CutRefusal(std::int64_t length, std::int64_t most, std::int64_t least) const;
  void ExpectRefusal(const absl::Status& status, const Refusal& refusal);
  // Of evictions, restores and checkpoints. A generation to ask for, and what comes of it.
  std::pair<std::uint64_t, Refusal> DrawMove(const ModelSession* session);

  void ExpectTokens(const std::string& id, const ModelSession& session, std::size_t layer,
                    std::int64_t begin, const Tokens& tokens);
  bool TokensFit(const std::string& id, const ModelSession& session);
  void RecoverSession(const SessionInfo& info, const ModelSession* before,
                      const ModelSession* after, ModelSessions* found);
  bool IsUndisturbed(const std::string& id, const ModelSession& session);

  const DriverOptions options_;
  SessionStore* store_ = nullptr;
  std::mt19937_64 random_;
  Undisturbed undisturbed_;
  const SessionConfig configs_[2];  // by kind
  ModelSessions sessions_;
  std::uint64_t last_generation_ = 0;
  std::uint64_t next_seed_ = 1000;
  std::uint64_t requests_ = 0;
  std::uint64_t added_ = 0;
  std::int64_t steps_ = 0;
  std::deque<Exported> exports_;
  std::map<std::string, std::vector<std::pair<std::int64_t, std::int64_t>>>
      sealed_;  // before a Settle: tokens in pages, and the first that is kept
  std::deque<std::pair<std::string, std::string>> trace_;  // ids, and what was asked
};

}  // namespace oscarkv
