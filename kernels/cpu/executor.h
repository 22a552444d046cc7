// Runs independent pieces of work on a fixed number of threads. CMake chooses the implementation:
// oneTBB, or plain std::thread where a thread sanitizer has to see every lock.
//
// Thread-safety: ParallelFor may be called from several threads at once, and from within a piece.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace oscarkv::cpu {

class Executor {
 public:
  virtual ~Executor() = default;

  virtual int threads() const = 0;

  // Calls piece(i) once for each i in [0, count), in any order, on any threads, and returns when
  // all have returned. The caller's thread takes part, and while it waits it picks up pieces of
  // this call only: locks that it holds are never met again further up its stack.
  //
  // If a piece throws, pieces that have not begun need not run any more; when all others have
  // returned, the first exception is thrown here.
  virtual void ParallelFor(std::int64_t count, const std::function<void(std::int64_t)>& piece) = 0;
};

// `threads` computing threads at most, the caller's included; 0: one per processor that this
// process may use.
std::unique_ptr<Executor> MakeExecutor(int threads);

}  // namespace oscarkv::cpu
