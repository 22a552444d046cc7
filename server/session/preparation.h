// Pages of one layer that are sealed ahead of the append that installs them. A layer and the
// preparer hold it together: the one takes the sealing back, the other works on it until then.
//
// Thread-safety: all functions may be called at once, Advance from one thread at a time.
//
// Invariants: while a piece is under way only its thread touches the sealing; at other times
// nobody does. The layer's window stays as the sealing requires until it is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "kernels/api/backend.h"
#include "server/base/mutex.h"
#include "server/session/sealing.h"

namespace oscarkv {

class Preparation {
 public:
  // REQUIRES: the sealing's queries are its own.
  explicit Preparation(std::unique_ptr<Sealing> sealing);
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  enum class State : std::uint8_t {
    kBegun,   // there is more to do
    kDone,    // all is sealed
    kFailed,  // the last piece was not done; whoever takes the sealing does it
    kTaken,
  };

  // Does the next piece, if there is one.
  State Advance(Backend* backend) noexcept;
  // Waits for the piece under way. Null if it was taken before.
  std::unique_ptr<Sealing> Take() noexcept;

  // As of the sealing when it came.
  std::size_t pages() const { return pages_; }
  std::int64_t bytes() const { return bytes_; }  // of pages and copied queries
  std::int64_t inputs_end() const { return inputs_end_; }

 private:
  const std::size_t pages_;
  const std::int64_t bytes_;
  const std::int64_t inputs_end_;

  Mutex mutex_;
  CondVar idle_;
  std::unique_ptr<Sealing> sealing_ ABSL_GUARDED_BY(mutex_);  // null: taken
  State state_ ABSL_GUARDED_BY(mutex_) = State::kBegun;
  bool under_way_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace oscarkv
