#include "client/streams.h"

#include <utility>

#include "client/stream_transport.h"

namespace oscarkv {

template <typename Request, typename Response>
MessageStream<Request, Response>::MessageStream(std::unique_ptr<Transport> transport)
    : transport_(std::move(transport)) {}

template <typename Request, typename Response>
MessageStream<Request, Response>::~MessageStream() {
  transport_->Cancel();  // nothing, if the stream has ended
  transport_->Finish().IgnoreError();
}

template <typename Request, typename Response>
absl::Status MessageStream<Request, Response>::Write(Request request) {
  return transport_->Write(std::move(request));
}

template <typename Request, typename Response>
absl::StatusOr<Response> MessageStream<Request, Response>::Read() {
  return transport_->Read();
}

template <typename Request, typename Response>
absl::StatusOr<Response> MessageStream<Request, Response>::Call(Request request) {
  if (absl::Status status = Write(std::move(request)); !status.ok()) return status;
  return Read();
}

template <typename Request, typename Response>
absl::Status MessageStream<Request, Response>::Finish() {
  return transport_->Finish();
}

template <typename Request, typename Response>
void MessageStream<Request, Response>::Cancel() {
  transport_->Cancel();
}

template <typename Request, typename Response>
bool MessageStream<Request, Response>::broken() const {
  return transport_->broken();
}

template class MessageStream<v1::AppendRequest, v1::AppendResponse>;
template class MessageStream<v1::AttendRequest, v1::AttendResponse>;

}  // namespace oscarkv
