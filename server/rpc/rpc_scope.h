// What surrounds the work of every request: its place in the queue, the client's deadline and
// cancellation, exceptions, and a line in the log. One for a unary call, for a message of a stream
// of exchanges, and for a whole stream of tokens. It lasts until the reply is on its way, so that a
// drain waits for replies.
//
// Thread-safety: none; its users hand it from thread to thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "server/queue/work_queue.h"

namespace oscarkv {

class RpcScope {
 public:
  // Asks the queue for admission; see status(). REQUIRES: `context` outlives the scope.
  RpcScope(WorkQueue& queue, const char* method, const grpc::CallbackServerContext* context);
  // Writes the line.
  ~RpcScope();
  RpcScope(const RpcScope&) = delete;
  RpcScope& operator=(const RpcScope&) = delete;

  // Of the last step; before the first one, whether the request is admitted: if not, it is refused,
  // and none of its work must run. The last status is what the line tells.
  const absl::Status& status() const { return status_; }

  // Has the queue run `work`, the request's. False if there is no place for it: status() tells.
  // Otherwise the work may have run on return, and the scope be gone.
  bool Submit(Work* work);
  // The request is taken from the queue: not OK if its client has given up.
  absl::Status Take();
  // Runs a step; an exception becomes a status.
  absl::Status Guard(absl::FunctionRef<absl::Status()> step);
  // Take, and then Guard, where the client still waits.
  absl::Status Run(absl::FunctionRef<absl::Status()> work);

  // Whether the client has cancelled, or its deadline has passed.
  bool IsGivenUp() const;
  // The request is dropped by the queue: status() tells why.
  void Drop(WhyDropped why);

  // Leaves the place in the queue to another. To be called before the reply is sent.
  void EndWork() { ticket_.EndWork(); }
  // Has the queue run more work of the request; as Submit, but there always is a place for it.
  // REQUIRES: EndWork was called.
  bool Resume(Work* work);

  void set_request_id(std::string_view id);

 private:
  bool Queue(absl::FunctionRef<absl::Status()> submit);
  absl::Status GivenUpError() const;

  const char* method_;
  const grpc::CallbackServerContext* context_;
  WorkQueue::Ticket ticket_;
  absl::Status status_;
  absl::Time arrived_;
  absl::Time began_ = absl::InfiniteFuture();
  absl::Time ended_ = absl::InfiniteFuture();
  std::string request_id_;
};

}  // namespace oscarkv
