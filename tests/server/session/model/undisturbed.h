// A store of its own in which a layer of a model goes through what was done to it, and nothing
// else: no other sessions, no files, nothing that is sealed ahead or freed. What it answers is what
// any store must.
//
// Thread-safety: none.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "kernels/api/backend.h"
#include "server/session/session_store.h"
#include "tests/server/session/model/layer_history.h"
#include "tests/server/session/model/model_session.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {

// The rows of one layer of a model's sessions.
Source SourceOf(const SessionConfig& config, std::size_t layer, std::uint64_t seed);
// The request of an append or an attend. REQUIRES: its tokens have one seed.
Request RequestOf(const LayerEvent& event, const Source& source, const std::string& session,
                  std::uint64_t generation);

class Undisturbed {
 public:
  Undisturbed();

  // Makes the layer anew.
  void Replay(const ModelShape& shape, std::size_t layer, const LayerHistory& history);
  // One more request, to the layer that was made last; its answer is in `request`.
  absl::Status Attend(const LayerEvent& event, std::uint64_t seed, Request* request);

  // Whether the layer that was made last is this one of `store`, in all that a client can see of
  // it; where it is not, says what differs.
  ::testing::AssertionResult IsLike(const SessionStore& store, const std::string& session) const;

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<SessionStore> store_;
  SessionConfig config_;  // of the layer alone
  std::size_t layer_ = 0;
  std::uint64_t generation_ = 0;
};

}  // namespace oscarkv
