// The fixture of the contract that every backend keeps, and what its tests share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend_factory.h"
#include "kernels/codec/oracle.h"
#include "kernels/cpu/instruction_set.h"
#include "tests/kernels/support/mini_session.h"
#include "tests/kernels/support/random_layer.h"

namespace oscarkv::testing {

struct BackendCase {
  std::string name;
  BackendKind kind;
  std::string instructions;  // of the CPU backend; empty: any

  std::string TestName() const {
    std::string out = instructions.empty() ? name : name + "_" + instructions;
    std::replace(out.begin(), out.end(), '-', '_');
    return out;
  }
};
inline std::ostream& operator<<(std::ostream& out, const BackendCase& backend) {
  return out << backend.TestName();
}

class BackendContract : public ::testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override {
    if (GetParam().instructions.empty()) return;
    ASSERT_TRUE(cpu::UseInstructionSet(GetParam().instructions));
  }

  static std::unique_ptr<Backend> Make(int threads) {
    BackendResult result = MakeBackend({GetParam().kind, threads});
    EXPECT_TRUE(result.status.ok()) << result.status.message;
    return std::move(result.backend);
  }
};

// What Attend gives, or ought to.
struct Answer {
  std::vector<float> outputs;
  std::vector<float> log_sum_exps;
};

// How queries look at a cache.
struct Look {
  std::int64_t query_begin = 0;
  bool causal = true;
  bool count_sink_logits = true;
};

// Attention of fp32 queries by the backend. `spec` may stand in for the view's own.
Answer Attend(Backend& backend, const LayerView& view, std::span<const float> queries, Look look);

// The same by the oracle over `tokens`, the first view.length positions.
oracle::Attention OracleAttend(const LayerSpec& spec, const oracle::Tokens& tokens,
                               std::span<const float> queries, Look look);

// Root mean square of a - b. Infinities of equal sign count as equal.
template <typename A, typename B>
double RmsDifference(const A& a, const B& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i];
    const double y = b[i];
    if (x != y) sum += (x - y) * (x - y);
  }
  return a.empty() ? 0 : std::sqrt(sum / static_cast<double>(a.size()));
}

template <typename A>
double Rms(const A& a) {
  return RmsDifference(a, std::vector<double>(a.size(), 0.0));
}

// Appends `tokens` random tokens in steps of random size up to `largest_step`, with queries
// sampled.
void Fill(MiniSession& session, int tokens, int largest_step, bool with_queries, Random& random);

}  // namespace oscarkv::testing
