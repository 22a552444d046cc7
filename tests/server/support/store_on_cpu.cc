#include "tests/server/support/store_on_cpu.h"

#include <algorithm>
#include <utility>

#include "kernels/backend_factory.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {

StoreOnCpu::StoreOnCpu() {
  BackendResult made = MakeBackend({.kind = BackendKind::kCpu, .threads = 1});
  EXPECT_TRUE(made.status.ok()) << made.status.message;
  backend_ = std::move(made.backend);
  MakeStore(std::int64_t{1} << 30);
}

void StoreOnCpu::MakeStore(std::int64_t budget) {
  store_.reset();
  store_ = std::make_unique<SessionStore>(
      backend_.get(),
      StoreOptions{.memory_budget_bytes = budget, .settle_after = absl::InfiniteDuration()});
}

std::vector<float> StoreOnCpu::Step(const std::string& id, std::int64_t begin, int count,
                                    int queries, std::uint64_t seed) {
  const SessionInfo info = Info(id);
  std::vector<float> answers;
  for (std::size_t i = 0; i < info.layers.size(); ++i) {
    const Source source{.spec = &info.config->layers[i], .seed = seed + i};
    Request request = AttendRequest(id, info.generation, source, begin, count, queries);
    const absl::Status status = Attend(store_.get(), info.layers[i].layer, &request);
    EXPECT_TRUE(status.ok()) << status;
    answers.insert(answers.end(), request.outputs.begin(), request.outputs.end());
    answers.insert(answers.end(), request.log_sum_exps.begin(), request.log_sum_exps.end());
  }
  return answers;
}

void StoreOnCpu::Fill(const std::string& id, std::int64_t begin, std::int64_t end, int most) {
  for (std::int64_t at = begin; at < end; at += most) {
    Step(id, at, static_cast<int>(std::min<std::int64_t>(most, end - at)));
  }
}

}  // namespace oscarkv
