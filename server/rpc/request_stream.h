// What all streams of requests have in common: read, work, read again. One message of a stream is
// in flight at a time, so the server reads no faster than it works.
//
// Thread-safety: gRPC calls the reactions, the queue's threads or gRPC's do the work, Drain comes
// from anywhere.
// Invariants:
//   1. Finish is called once, by whoever ends the turns (ReadTurn).
//   2. While the client has the turn, Drain may finish the stream; otherwise the step under way
//   does,
//      when it ends.
//   3. A stream keeps itself alive (self_) until OnDone; others hold it weakly.
//   4. There is no scope once OnDone returns: gRPC frees the context, which a scope uses, and Drain
//      may keep the stream longer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/base/mutex.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/rpc_scope.h"

namespace oscarkv {

class DrainableStream {
 public:
  virtual ~DrainableStream() = default;
  virtual void Drain() = 0;
};

// The streams that are open. Thread-safe.
class StreamRegistry {
 public:
  void Add(const std::shared_ptr<DrainableStream>& stream);
  // Ends each stream once it is done with what it has read.
  void Drain();

 private:
  Mutex mutex_;
  std::vector<std::weak_ptr<DrainableStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

// Whose turn it is: the client's, to send a message, or the server's, to work on it; and who
// finishes the stream. Thread-safe.
class ReadTurn {
 public:
  // Before a read is started.
  void Begin();
  // After it was started. True: a drain ends the turns, and the caller finishes the stream.
  bool Started(bool draining);
  // A message is there, or there are no more: it is the server's turn. False: the turns have ended.
  bool Arrived();
  // In the server's turn: the caller finishes the stream.
  void End();
  // As Started.
  bool Drain();

 private:
  enum class State : std::uint8_t { kStarting, kReading, kWorking, kEnded };

  Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kStarting;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

// `Reactor`: one of gRPC's that reads ByteBuffers.
template <typename Reactor>
class RequestStream : public Reactor, public DrainableStream {
 public:
  // Hands `stream` over to gRPC, to be returned from the service's method.
  template <typename Stream>
  static Reactor* Start(StreamRegistry& registry, std::shared_ptr<Stream> stream) {
    RequestStream* const started = stream.get();
    registry.Add(stream);
    started->self_ = std::move(stream);
    started->ReadNext();
    return started;
  }

  void Drain() final {
    if (turn_.Drain()) EndWith(DrainingError());
  }

 protected:
  // REQUIRES: the queue outlives the stream.
  RequestStream(WorkQueue& queue, const char* method, const grpc::CallbackServerContext* context)
      : queue_(queue), method_(method), context_(context) {}

  // Works on request_, sooner or later, and then calls ReadNext or FinishWith. `more`: it is a
  // message; otherwise the client has sent its last one, or is gone.
  virtual void Process(bool more) = 0;
  // Frees what the stream holds, before it is finished with `status`. Nothing is under way.
  virtual void Release(const absl::Status& status) = 0;

  void ReadNext() {
    const std::shared_ptr<DrainableStream> alive = self_;
    turn_.Begin();
    this->StartRead(&request_);
    // The read may be done already, and the stream well past it.
    if (turn_.Started(queue_.refuses())) EndWith(DrainingError());
  }
  void FinishWith(const absl::Status& status) {
    turn_.End();
    EndWith(status);
  }
  void NewScope() { scope_.emplace(queue_, method_, context_); }

  grpc::ByteBuffer request_;
  std::optional<RpcScope> scope_;

 private:
  void OnReadDone(bool ok) override {
    if (turn_.Arrived()) Process(ok);
  }
  void OnDone() override {
    scope_.reset();
    const std::shared_ptr<DrainableStream> last = std::move(self_);
  }
  void EndWith(const absl::Status& status) {
    Release(status);
    this->Finish(ToGrpcStatus(status));
  }

  WorkQueue& queue_;
  const char* method_;
  const grpc::CallbackServerContext* context_;
  std::shared_ptr<DrainableStream> self_;
  ReadTurn turn_;
};

}  // namespace oscarkv
