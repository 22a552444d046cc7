// A worker that dies between two layers of a step, and the one that takes over.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/test_server.h"

namespace oscarkv::testing {
namespace {

constexpr TestModel kModel = {.layers = 3};
constexpr int kSteps = 24;

// A worker with a connection of its own. It knows what it computes at each position; all else it
// learns from the server.
class Worker {
 public:
  explicit Worker(const std::string& address)
      : stub_(v1::KvCacheService::NewStub(Connect(address))) {}

  Stub& stub() { return *stub_; }

  // Appends a context of `tokens` with its queries, as a prefill does.
  void Prefill(const v1::Session& session, int tokens) {
    for (int layer = 0; layer < kModel.layers; ++layer) {
      Attend(*stub_, AttendRequestOf(kModel, session, layer, 0, tokens, tokens));
    }
  }

  // One token through the first `layers` layers; returns all outputs.
  std::string Step(const v1::Session& session, std::int64_t position, int layers = kModel.layers) {
    std::string outputs;
    for (int layer = 0; layer < layers; ++layer) {
      const auto response = Attend(*stub_, AttendRequestOf(kModel, session, layer, position, 1, 1));
      outputs += response.output().raw() + response.log_sum_exp().raw();
    }
    return outputs;
  }

 private:
  std::unique_ptr<Stub> stub_;
};

class RecoveryTest : public ::testing::TestWithParam<int> {};

TEST_P(RecoveryTest, TheNextWorkerGetsTheAnswersOfAnUndisturbedRun) {
  const int prefill = GetParam();
  TestServer server;
  const std::string address = server.server().address();

  std::vector<std::string> expected;
  {
    Worker worker(address);
    const v1::Session session = Create(worker.stub(), "undisturbed", kModel);
    worker.Prefill(session, prefill);
    for (int step = 0; step < kSteps; ++step) {
      expected.push_back(worker.Step(session, prefill + step));
    }
  }

  {
    Worker worker(address);
    worker.Prefill(Create(worker.stub(), "disturbed", kModel), prefill);
  }
  for (int step = 0; step < kSteps; ++step) {
    // The first worker of each step dies after some of the layers.
    {
      Worker worker(address);
      worker.Step(Get(worker.stub(), "disturbed"), prefill + step, step % kModel.layers);
    }
    Worker worker(address);
    v1::Session session = Get(worker.stub(), "disturbed");
    ASSERT_EQ(session.committed_length(), prefill + step);
    session = Truncate(worker.stub(), session, session.committed_length());
    EXPECT_EQ(worker.Step(session, session.committed_length()),
              expected[static_cast<std::size_t>(step)])
        << "step " << step;
  }
}

// Contexts that leave the steps before, at and after the seal of a page.
INSTANTIATE_TEST_SUITE_P(Contexts, RecoveryTest, ::testing::Values(10, 250, 380, 1000));

}  // namespace
}  // namespace oscarkv::testing
