// The streams of the service: one reply for each request, in order.
//
// A request that fails leaves the stream open: Read returns its error and the next request goes on.
// A stream that broke (deadline, server gone, cancelled) says so from then on in every call, and
// broken() is true.
//
// Thread-safety: one thread may write while another reads; Cancel may be called by any.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "oscarkv/v1/kv_cache.pb.h"

namespace oscarkv {

// Implemented for the two instances named below. Client makes them.
template <typename Request, typename Response>
class MessageStream {
 public:
  class Transport;  // the gRPC stream, client/streams.cc

  explicit MessageStream(std::unique_ptr<Transport> transport);
  ~MessageStream();  // cancels a stream that was not finished

  // Sends a request; may wait for the server to take earlier ones. Several may be under way.
  absl::Status Write(Request request);
  // The reply to the oldest request that has none yet, waiting for it.
  absl::StatusOr<Response> Read();
  // Write, then Read. REQUIRES: no other request is under way.
  absl::StatusOr<Response> Call(Request request);

  // Says that no more requests come, reads past the replies not read, and returns the status of
  // the stream as a whole. REQUIRES: no other call is under way, nor comes later.
  absl::Status Finish();
  // Ends the stream: calls under way return CANCELLED.
  void Cancel();
  bool broken() const;

 private:
  std::unique_ptr<Transport> transport_;
};

using AppendStream = MessageStream<v1::AppendRequest, v1::AppendResponse>;
using DecodeStream = MessageStream<v1::AttendRequest, v1::AttendResponse>;

extern template class MessageStream<v1::AppendRequest, v1::AppendResponse>;
extern template class MessageStream<v1::AttendRequest, v1::AttendResponse>;

}  // namespace oscarkv
