// A bidirectional stream with one reply for each request, in order: read, work, write, read again.
// One message of a stream is in flight at a time, so a client that does not read is not read from.
//
// Thread-safety: gRPC calls the reactions, the queue's threads do the work, Drain comes from
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
#include <functional>
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
  // Answers one request. Not admitted: tells so in the reply.
  using Answer = std::function<grpc::ByteBuffer(RpcScope& scope, grpc::ByteBuffer& request)>;

  static ExchangeStream* Start(StreamRegistry& registry, WorkQueue& queue, const char* method,
                               const grpc::CallbackServerContext* context, Answer answer);

  void Drain();

 private:
  enum class State : std::uint8_t { kStarting, kReading, kAnswering, kFinished };

  ExchangeStream(WorkQueue& queue, const char* method, const grpc::CallbackServerContext* context,
                 Answer answer);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  void ReadNext();
  void Work();
  void FinishWith(const absl::Status& status);

  WorkQueue& queue_;
  const char* method_;
  const grpc::CallbackServerContext* context_;
  const Answer answer_;
  std::shared_ptr<ExchangeStream> self_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer reply_;
  std::optional<RpcScope> scope_;  // of the message in flight

  Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kStarting;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace oscarkv
