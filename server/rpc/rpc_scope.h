// What surrounds the work of every request: a place in the queue, the client's deadline and
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
  // Takes a place in the queue; see status(). REQUIRES: `context` outlives the scope.
  RpcScope(WorkQueue& queue, const char* method, const grpc::CallbackServerContext* context);
  // Writes the line.
  ~RpcScope();
  RpcScope(const RpcScope&) = delete;
  RpcScope& operator=(const RpcScope&) = delete;

  // Of the last step; before the first one, whether there was a place: if not, the request is
  // refused, and none of its work must run. The last status is what the line tells.
  const absl::Status& status() const { return status_; }

  // The request is taken from the queue: not OK if its client has given up.
  absl::Status Take();
  // Runs a step; an exception becomes a status.
  absl::Status Guard(absl::FunctionRef<absl::Status()> step);
  // Take, and then Guard, where the client still waits.
  absl::Status Run(absl::FunctionRef<absl::Status()> work);

  // Leaves the place in the queue to another. To be called before the reply is sent.
  void EndWork() { ticket_.EndWork(); }
  // Runs more work of the request once there is a place for it. REQUIRES: EndWork was called.
  void Resume(Work* work) { ticket_.Resume(work); }

  void set_request_id(std::string_view id);

 private:
  absl::Status CheckClientWaits() const;

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
