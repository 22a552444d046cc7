// Which layers and sessions are taken by works that need them alone.
//
// Thread-safety: none.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "server/queue/work.h"

namespace oscarkv {

// By works under way.
class KeysInUse {
 public:
  // Whether a work with these facts would have to wait for one of those.
  bool HasAnyOf(const WorkFacts& facts) const;

  void Add(const WorkFacts& facts);
  // REQUIRES: the same were added.
  void Remove(const WorkFacts& facts);

 private:
  absl::flat_hash_set<std::uint64_t> layers_;
  absl::flat_hash_map<std::uint64_t, int> sessions_;  // how many of a session's layers
  absl::flat_hash_set<std::uint64_t> whole_sessions_;
};

// By works that are looked at one after the other, whatever layers of a session they need.
class SessionsSeen {
 public:
  bool HasAnyOf(const WorkFacts& facts) const;
  void Add(const WorkFacts& facts);

 private:
  absl::flat_hash_set<std::uint64_t> sessions_;
};

}  // namespace oscarkv
