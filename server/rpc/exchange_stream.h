// A bidirectional stream with one reply for each request, in order: read, work, write, read again.
// One message of a stream is in flight at a time, so a client that does not read is not read from.
//
// Thread-safety: gRPC calls the reactions, the queue's threads or gRPC's answer, Drain comes from
// anywhere.
// Invariants:
//   1. Finish is called once, by whoever sets state_ to kFinished.
//   2. While nothing is under way (kReading), Drain may finish the stream; otherwise the step under
//      way does, when it ends.
//   3. A stream keeps itself alive (self_) until OnDone; others hold it weakly.
//   4. There is no scope when Finish is called: gRPC frees the context, which a scope uses, as soon
//      as OnDone returns, and Drain may keep the stream longer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/base/mutex.h"
#include "server/rpc/rpc_scope.h"

namespace oscarkv {

class ExchangeStream;

// The streams that are open. Thread-safe.
class StreamRegistry {
 public:
  void Add(const std::shared_ptr<ExchangeStream>& stream);
  // Ends each stream once it has answered what it has read.
  void Drain();

 private:
  Mutex mutex_;
  std::vector<std::weak_ptr<ExchangeStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

class ExchangeStream : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // Hands `stream` over to gRPC, to be returned from the service's method.
  static ExchangeStream* Start(StreamRegistry& registry, std::shared_ptr<ExchangeStream> stream);

  void Drain();

 protected:
  ExchangeStream(WorkQueue& queue, const char* method, const grpc::CallbackServerContext* context)
      : queue_(queue), method_(method), context_(context) {}

  // Answers `request`, sooner or later, by Send. scope.status() may be that there is no place for
  // it, which is told in the reply. The scope lasts until Send.
  virtual void Answer(RpcScope& scope, grpc::ByteBuffer& request) = 0;
  void Send(grpc::ByteBuffer reply);

 private:
  enum class State : std::uint8_t { kStarting, kReading, kAnswering, kFinished };

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  void ReadNext();
  void FinishWith(const absl::Status& status);

  WorkQueue& queue_;
  const char* method_;
  const grpc::CallbackServerContext* context_;
  std::shared_ptr<ExchangeStream> self_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer reply_;
  std::optional<RpcScope> scope_;  // of the message in flight

  Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kStarting;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace oscarkv
