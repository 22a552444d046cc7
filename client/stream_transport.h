// What MessageStream does with gRPC's stream; private to the library.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <atomic>
#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/error_info.h"
#include "client/streams.h"

namespace oscarkv {

// How the messages of a stream wrap a request and a response.
template <typename Request>
struct StreamMessages;

template <>
struct StreamMessages<v1::AppendRequest> {
  using Sent = v1::AppendStreamRequest;
  using Received = v1::AppendStreamResponse;
  static v1::AppendRequest& RequestIn(Sent& sent) { return *sent.mutable_append(); }
  static v1::AppendResponse& ResponseIn(Received& received) { return *received.mutable_append(); }
};

template <>
struct StreamMessages<v1::AttendRequest> {
  using Sent = v1::DecodeRequest;
  using Received = v1::DecodeResponse;
  static v1::AttendRequest& RequestIn(Sent& sent) { return *sent.mutable_attend(); }
  static v1::AttendResponse& ResponseIn(Received& received) { return *received.mutable_attend(); }
};

// Thread-safety: as of MessageStream.
//
// Invariants: once ended_, gRPC has nothing more to read and status_ is that of the stream; unread_
// holds replies that a failed write read past on its way to that status.
template <typename Request, typename Response>
class MessageStream<Request, Response>::Transport {
 public:
  using Messages = StreamMessages<Request>;
  using Sent = typename Messages::Sent;
  using Received = typename Messages::Received;

  grpc::ClientContext& context() { return context_; }
  // REQUIRES: called once, before anything else, with a stream opened with context().
  void Start(std::unique_ptr<grpc::ClientReaderWriterInterface<Sent, Received>> stream) {
    stream_ = std::move(stream);
  }

  absl::Status Write(Request request) {
    Sent sent;
    Messages::RequestIn(sent) = std::move(request);
    if (stream_->Write(sent)) return absl::OkStatus();
    absl::MutexLock lock(&reading_);
    Received received;
    while (ReadNext(received)) unread_.push_back(std::move(received));
    return WhyBroken();
  }

  absl::StatusOr<Response> Read() {
    absl::MutexLock lock(&reading_);
    Received received;
    if (!unread_.empty()) {
      received = std::move(unread_.front());
      unread_.pop_front();
    } else if (!ReadNext(received)) {
      return WhyBroken();
    }
    if (absl::Status status = StatusFromProto(received.status()); !status.ok()) return status;
    return std::move(Messages::ResponseIn(received));
  }

  absl::Status Finish() {
    if (!writes_done_) stream_->WritesDone();
    writes_done_ = true;
    absl::MutexLock lock(&reading_);
    for (Received received; ReadNext(received);) {
    }
    return status_;
  }

  void Cancel() { context_.TryCancel(); }
  bool broken() const { return broken_; }

 private:
  bool ReadNext(Received& received) ABSL_EXCLUSIVE_LOCKS_REQUIRED(reading_) {
    if (ended_) return false;
    if (stream_->Read(&received)) return true;
    status_ = StatusFromGrpc(stream_->Finish());
    ended_ = true;
    broken_ = true;
    return false;
  }

  absl::Status WhyBroken() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reading_) {
    if (!status_.ok()) return status_;
    return absl::UnavailableError("the server has ended the stream");
  }

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriterInterface<Sent, Received>> stream_;
  std::atomic<bool> broken_ = false;
  bool writes_done_ = false;  // the writing thread's
  absl::Mutex reading_;
  std::deque<Received> unread_ ABSL_GUARDED_BY(reading_);
  bool ended_ ABSL_GUARDED_BY(reading_) = false;
  absl::Status status_ ABSL_GUARDED_BY(reading_);
};

}  // namespace oscarkv
