// Messages from and to bytes. The service takes bytes, not messages, from gRPC: so a request that
// cannot be parsed gets an error like any other, and none is parsed before it has a place.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"

namespace oscarkv {

// INVALID_ARGUMENT unless `bytes` is such a message. Frees the bytes.
absl::Status ParseMessage(grpc::ByteBuffer& bytes, google::protobuf::Message& message);

// The bytes of a request to a unary method or one that replies with a stream. gRPC shows them as
// const and would hold them until the reply is out, beside the message that they are parsed to; but
// they are an object of the call that is not const, and no one reads them again.
inline grpc::ByteBuffer& TakeRequest(const grpc::ByteBuffer* request) {
  return *const_cast<grpc::ByteBuffer*>(request);
}

// RESOURCE_EXHAUSTED, and `bytes` untouched, if the message is larger than `limit`.
absl::Status SerializeMessage(const google::protobuf::Message& message, std::int64_t limit,
                              grpc::ByteBuffer& bytes);

}  // namespace oscarkv
