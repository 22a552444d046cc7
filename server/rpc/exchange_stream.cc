#include "server/rpc/exchange_stream.h"

#include <utility>

#include "server/rpc/grpc_status.h"

namespace oscarkv {

void StreamRegistry::Add(const std::shared_ptr<ExchangeStream>& stream) {
  MutexLock lock(&mutex_);
  std::erase_if(streams_, [](const auto& known) { return known.expired(); });
  streams_.push_back(stream);
}

void StreamRegistry::Drain() {
  std::vector<std::weak_ptr<ExchangeStream>> streams;
  {
    MutexLock lock(&mutex_);
    streams.swap(streams_);
  }
  for (const std::weak_ptr<ExchangeStream>& weak : streams) {
    if (const std::shared_ptr<ExchangeStream> stream = weak.lock()) stream->Drain();
  }
}

ExchangeStream* ExchangeStream::Start(StreamRegistry& registry,
                                      std::shared_ptr<ExchangeStream> stream) {
  ExchangeStream* const started = stream.get();
  registry.Add(stream);
  started->self_ = std::move(stream);
  started->ReadNext();
  return started;
}

void ExchangeStream::ReadNext() {
  const std::shared_ptr<ExchangeStream> alive = self_;
  {
    MutexLock lock(&mutex_);
    state_ = State::kStarting;
  }
  StartRead(&request_);
  bool finish = false;
  {
    // The read may be done already, and the stream well past it. Drain leaves a stream that is
    // starting to read alone, because Finish must not overtake StartRead.
    MutexLock lock(&mutex_);
    if (state_ != State::kStarting) return;
    finish = draining_ || queue_.refuses();
    state_ = finish ? State::kFinished : State::kReading;
  }
  if (finish) Finish(ToGrpcStatus(DrainingError()));
}

void ExchangeStream::Drain() {
  {
    MutexLock lock(&mutex_);
    draining_ = true;
    if (state_ != State::kReading) return;
    state_ = State::kFinished;
  }
  Finish(ToGrpcStatus(DrainingError()));
}

void ExchangeStream::OnReadDone(bool ok) {
  {
    MutexLock lock(&mutex_);
    if (state_ == State::kFinished) return;
    state_ = State::kAnswering;
  }
  if (!ok) return FinishWith(absl::OkStatus());  // the client has sent its last request
  scope_.emplace(queue_, method_, context_);
  if (absl::IsUnavailable(scope_->status())) {
    const absl::Status draining = scope_->status();
    scope_.reset();
    return FinishWith(draining);
  }
  Answer(*scope_, request_);
}

void ExchangeStream::Send(grpc::ByteBuffer reply) {
  reply_.Swap(&reply);
  scope_->EndWork();
  StartWrite(&reply_);
}

void ExchangeStream::OnWriteDone(bool ok) {
  scope_.reset();
  reply_.Clear();
  if (!ok) return FinishWith(absl::CancelledError("the client is gone"));
  ReadNext();
}

void ExchangeStream::FinishWith(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    state_ = State::kFinished;
  }
  Finish(ToGrpcStatus(status));
}

void ExchangeStream::OnDone() {
  scope_.reset();
  const std::shared_ptr<ExchangeStream> last = std::move(self_);
}

}  // namespace oscarkv
