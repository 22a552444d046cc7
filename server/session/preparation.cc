#include "server/session/preparation.h"

#include <exception>
#include <utility>

namespace oscarkv {

Preparation::Preparation(std::unique_ptr<Sealing> sealing)
    : pages_(sealing->size()),
      bytes_(sealing->page_bytes() + sealing->host_memory()->bytes()),
      inputs_end_(sealing->inputs_end()),
      sealing_(std::move(sealing)) {}

Preparation::State Preparation::Advance(Backend* backend) noexcept {
  Sealing* sealing = nullptr;
  {
    MutexLock lock(&mutex_);
    if (state_ != State::kBegun) return state_;
    sealing = sealing_.get();
    under_way_ = true;
  }
  State state = State::kFailed;
  try {
    if (sealing->DoPiece(backend).ok()) state = sealing->done() ? State::kDone : State::kBegun;
  } catch (const std::exception&) {
    // Of host memory there was none left.
  }
  {
    MutexLock lock(&mutex_);
    under_way_ = false;
    state_ = state;
  }
  idle_.SignalAll();
  return state;
}

std::unique_ptr<Sealing> Preparation::Take() noexcept {
  MutexLock lock(&mutex_);
  while (under_way_) idle_.Wait(&mutex_);
  state_ = State::kTaken;
  return std::move(sealing_);
}

}  // namespace oscarkv
