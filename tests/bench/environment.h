// What rows share: a backend and an executor for each number of threads, and the arena that the
// baseline and the plain reads stream from.
//
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "kernels/api/backend.h"
#include "kernels/cpu/executor.h"
#include "tests/bench/huge_buffer.h"

namespace oscarkv::bench {

class Environment {
 public:
  // Every subject cycles through at least `working_set` bytes. `cpu_instructions`: as
  // BackendOptions has them.
  Environment(std::int64_t working_set, std::string cpu_instructions)
      : working_set_(working_set), cpu_instructions_(std::move(cpu_instructions)) {}

  std::int64_t working_set() const { return working_set_; }
  // Ends the program if there is no such backend.
  Backend& backend(int threads);
  cpu::Executor& executor(int threads);
  // Makes the arena `bytes` large at least. What arena() returned before is invalid.
  void Reserve(std::int64_t bytes);
  // Gaussian bf16 numbers in huge pages.
  const std::byte* arena() const { return arena_->data(); }

  // How many instances of `bytes` each make a working set.
  std::int64_t InstancesOf(std::int64_t bytes) const { return (working_set_ + bytes - 1) / bytes; }

 private:
  const std::int64_t working_set_;
  const std::string cpu_instructions_;
  std::map<int, std::unique_ptr<Backend>> backends_;
  std::map<int, std::unique_ptr<cpu::Executor>> executors_;
  std::unique_ptr<HugeBuffer> arena_;
};

}  // namespace oscarkv::bench
