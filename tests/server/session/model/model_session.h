// A session as a model of a store has it, and what its file may say.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/session/repeat_records.h"
#include "server/session/session_store.h"
#include "tests/server/session/model/layer_history.h"

namespace oscarkv {

inline constexpr int kModelLayers = 2;
// Sessions of the model have at most so many tokens.
inline constexpr std::int64_t kModelTokens = 420;
// So few that tokens are freed all the time.
inline constexpr std::int64_t kModelRollback = 16;
// Prompts that sessions may begin with, of tokens that are the same for each.
inline constexpr int kModelPrompts = 2;
inline constexpr std::int64_t kModelPrefixes[] = {64, 160};
inline constexpr std::int64_t kModelPromptTokens = 192;

// What a create fixes: one layer of 2 bits, and one of 16 bits with a sliding window that is sealed
// (kind 0) or never is (kind 1).
struct ModelShape {
  int kind = 0;
  int prompt = -1;  // -1: none, and no prefix keys
  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};
SessionConfig ModelConfig(const ModelShape& shape);

// What a file has of a session.
struct SessionState {
  std::vector<LayerHistory> layers{kModelLayers};
  std::int64_t prefix_limit = kPositionLimit;
  std::optional<TruncateRecord> last_truncate;  // if it can be repeated
  // How often tokens came or went: what asks for a checkpoint.
  int changes = 0;

  std::int64_t Committed() const;
  std::int64_t Longest() const;
  int Events() const;
  bool SameAs(const SessionState& other) const;
  bool StepIsComplete() const { return Committed() == Longest(); }

  // Tokens to come have the seed `next`.
  void Truncate(const TruncateRecord& asked, std::uint64_t next);
  // Whether a file that has this must learn of a truncate: of tokens, or of prefixes to come.
  bool IsToldOf(const TruncateRecord& asked, const ModelShape& shape) const;
  // What a fork of so many tokens begins as.
  SessionState Fork(std::int64_t length, std::uint64_t next) const;
  // Tokens to come are `shape`'s prompt, and then of the seed `next`.
  void SetPrompt(const ModelShape& shape, std::uint64_t next);
  // Gives tokens to come another seed, but where a prefix key has promised what they are.
  void GoOnWith(const ModelShape& shape, std::uint64_t next);
};

struct ModelSession {
  ModelShape shape;
  std::string request_id = {};
  std::string digest = {};                 // of what was asked, in the model's words
  std::optional<ForkItem> forked_by = {};  // the request that made it
  std::uint64_t generation = 0;
  std::uint64_t added = 0;  // ascends in the order in which prefix keys were told
  SessionState now = {};

  // States of which its file has one; more than one where it is not known when it was written.
  std::vector<SessionState> in_file = {};
  bool has_file = false;  // surely

  bool IsRepeat(const std::string& request, const std::string& asked) const {
    return request_id == request && digest == asked;
  }
  void SetFile(const SessionState& state) {
    in_file = {state};
    has_file = true;
  }
};

using ModelSessions = std::map<std::string, ModelSession>;

}  // namespace oscarkv
