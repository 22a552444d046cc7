// Which layers and sessions are taken by works that need them alone.
//
// Standard containers: they are whole after std::bad_alloc.
//
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>

#include "server/queue/work.h"

namespace oscarkv {

// By works under way.
class KeysInUse {
 public:
  // Whether a work with these facts would have to wait for one of those.
  bool HasAnyOf(const WorkFacts& facts) const;

  // Changes nothing if it throws std::bad_alloc. REQUIRES: !HasAnyOf(facts).
  void Add(const WorkFacts& facts);
  // REQUIRES: the same were added.
  void Remove(const WorkFacts& facts);

 private:
  // Of the layers, those that are counted by session.
  void Remove(const WorkFacts& facts, std::size_t counted);

  std::unordered_set<std::uint64_t> layers_;
  std::unordered_map<std::uint64_t, int> sessions_;  // how many of a session's layers
  std::unordered_set<std::uint64_t> whole_sessions_;
};

// By works that are looked at one after the other, whatever layers of a session they need.
class SessionsSeen {
 public:
  bool HasAnyOf(const WorkFacts& facts) const;
  void Add(const WorkFacts& facts);

 private:
  std::unordered_set<std::uint64_t> sessions_;
};

}  // namespace oscarkv
