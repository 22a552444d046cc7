#include "tests/bench/environment.h"

#include <cstdio>
#include <cstdlib>

#include "kernels/backend_factory.h"
#include "tests/bench/gaussian.h"

namespace oscarkv::bench {

Backend& Environment::backend(int threads) {
  std::unique_ptr<Backend>& backend = backends_[threads];
  if (backend == nullptr) {
    BackendResult result = MakeBackend(
        {.kind = BackendKind::kAuto, .threads = threads, .cpu_instructions = cpu_instructions_});
    if (!result.status.ok()) {
      std::fprintf(stderr, "error: no backend: %s\n", result.status.message.c_str());
      std::exit(1);
    }
    backend = std::move(result.backend);
  }
  return *backend;
}

cpu::Executor& Environment::executor(int threads) {
  std::unique_ptr<cpu::Executor>& executor = executors_[threads];
  if (executor == nullptr) executor = cpu::MakeExecutor(threads);
  return *executor;
}

void Environment::Reserve(std::int64_t bytes) {
  if (arena_ != nullptr && static_cast<std::int64_t>(arena_->bytes()) >= bytes) return;
  arena_.reset();
  arena_ = std::make_unique<HugeBuffer>(bytes);
  FillGaussian(executor(0), arena_->as<std::uint16_t>(), bytes / 2, 4);
}

}  // namespace oscarkv::bench
