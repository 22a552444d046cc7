// A store over the CPU backend, and what its tests do with sessions.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/api/backend.h"
#include "server/session/session_store.h"

namespace oscarkv {

class StoreOnCpu : public ::testing::Test {
 protected:
  StoreOnCpu();

  // Another, empty, store in the place of the one that is there, which settles when it is told to.
  void MakeStore(std::int64_t budget);

  SessionInfo Info(const std::string& id) const { return *store_->Get(id); }

  // Appends tokens [begin, begin + count) to all layers and attends with the last `queries` of
  // them; returns outputs and log-sum-exps. Rows depend on the seed, the layer and the position.
  std::vector<float> Step(const std::string& id, std::int64_t begin, int count, int queries = 2,
                          std::uint64_t seed = 20);
  // Steps of `most` tokens, up to `end`.
  void Fill(const std::string& id, std::int64_t begin, std::int64_t end, int most = 50);

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<SessionStore> store_;
};

}  // namespace oscarkv
