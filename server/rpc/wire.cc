#include "server/rpc/wire.h"

#include "absl/strings/str_cat.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/proto_buffer_writer.h"
#include "server/base/error.h"
#include "server/rpc/encode_reply.h"

namespace oscarkv {

absl::Status ParseMessage(grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  const std::size_t size = bytes.Length();
  const grpc::Status parsed =
      grpc::GenericDeserialize<grpc::ProtoBufferReader, google::protobuf::Message>(&bytes,
                                                                                   &message);
  bytes.Clear();
  if (parsed.ok()) return absl::OkStatus();
  return InvalidField("request", absl::StrCat(size, " bytes that cannot be parsed"),
                      message.GetTypeName());
}

absl::Status SerializeMessage(const google::protobuf::Message& message, std::int64_t limit,
                              grpc::ByteBuffer& bytes) {
  const std::size_t size = message.ByteSizeLong();
  if (size > static_cast<std::size_t>(limit)) {
    return ReplyTooLarge("", static_cast<std::int64_t>(size), limit);
  }
  bool own_buffer = false;
  const grpc::Status written =
      grpc::GenericSerialize<grpc::ProtoBufferWriter, google::protobuf::Message>(message, &bytes,
                                                                                 &own_buffer);
  if (written.ok()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInternal, "the reply cannot be serialized",
                   {.reason = "INTERNAL"});
}

}  // namespace oscarkv
