#include "server/rpc/request_stream.h"

namespace oscarkv {

void StreamRegistry::Add(const std::shared_ptr<DrainableStream>& stream) {
  MutexLock lock(&mutex_);
  std::erase_if(streams_, [](const auto& known) { return known.expired(); });
  streams_.push_back(stream);
}

void StreamRegistry::Drain() {
  std::vector<std::weak_ptr<DrainableStream>> streams;
  {
    MutexLock lock(&mutex_);
    streams.swap(streams_);
  }
  for (const std::weak_ptr<DrainableStream>& weak : streams) {
    if (const std::shared_ptr<DrainableStream> stream = weak.lock()) stream->Drain();
  }
}

void ReadTurn::Begin() {
  MutexLock lock(&mutex_);
  state_ = State::kStarting;
}

bool ReadTurn::Started(bool draining) {
  // Drain leaves a stream that is starting to read alone, because Finish must not overtake
  // StartRead.
  MutexLock lock(&mutex_);
  if (state_ != State::kStarting) return false;
  const bool ends = draining_ || draining;
  state_ = ends ? State::kEnded : State::kReading;
  return ends;
}

bool ReadTurn::Arrived() {
  MutexLock lock(&mutex_);
  if (state_ == State::kEnded) return false;
  state_ = State::kWorking;
  return true;
}

void ReadTurn::End() {
  MutexLock lock(&mutex_);
  state_ = State::kEnded;
}

bool ReadTurn::Drain() {
  MutexLock lock(&mutex_);
  draining_ = true;
  if (state_ != State::kReading) return false;
  state_ = State::kEnded;
  return true;
}

}  // namespace oscarkv
