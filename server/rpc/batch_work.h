// Append and attend as work of a queue: what a message asks is prepared as it arrives, applied
// together with that of other messages, and encoded.
//
// Thread-safety: none; as Work.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/queue/work.h"
#include "server/rpc/handlers.h"
#include "server/rpc/prepared_batch.h"
#include "server/rpc/rpc_scope.h"
#include "server/rpc/wire.h"

namespace oscarkv {

class BatchWork : public Work {
 public:
  virtual std::span<BatchItem* const> items() const = 0;
  virtual RpcScope& scope() = 0;
};

// Applies the items of all works: in one call of the store, but what fails there only because it
// shared a call of the backend, or memory, with others is applied again by itself. Works whose
// clients have given up are left out. The scope of each work tells how it went.
// REQUIRES: all are BatchWorks, of the same kind.
void ApplyTogether(SessionStore& store, std::span<Work* const> works);

// The messages of a method, and what in them is the request and its response proper.
struct AppendMessages {
  using Request = v1::AppendRequest;
  using Response = v1::AppendResponse;
  static const Request& In(const Request& request) { return request; }
  static Response& In(Response& response) { return response; }
};
struct AttendMessages {
  using Request = v1::AttendRequest;
  using Response = v1::AttendResponse;
  static const Request& In(const Request& request) { return request; }
  static Response& In(Response& response) { return response; }
};
struct AppendStreamMessages {
  using Request = v1::AppendStreamRequest;
  using Response = v1::AppendStreamResponse;
  static const v1::AppendRequest& In(const Request& request) { return request.append(); }
  static v1::AppendResponse& In(Response& response) { return *response.mutable_append(); }
};
struct DecodeMessages {
  using Request = v1::DecodeRequest;
  using Response = v1::DecodeResponse;
  static const v1::AttendRequest& In(const Request& request) { return request.attend(); }
  static v1::AttendResponse& In(Response& response) { return *response.mutable_attend(); }
};

// One message, from bytes to bytes.
template <typename Messages>
class BatchMessage {
 public:
  std::span<BatchItem* const> items() const { return prepared_->passed(); }
  WorkFacts Facts() const { return prepared_->Facts(); }

  // REQUIRES: to be called once.
  absl::Status Prepare(const Handlers& handlers, RpcScope& scope, grpc::ByteBuffer& bytes) {
    if (absl::Status s = ParseMessage(bytes, request_); !s.ok()) return s;
    const auto& request = Messages::In(request_);
    scope.set_request_id(request.request_id());
    absl::StatusOr<PreparedBatch> prepared = PreparedBatch::Prepare(
        handlers.store(), handlers.facts().max_message_bytes, request, Messages::In(response_));
    if (!prepared.ok()) return prepared.status();
    prepared_ = *std::move(prepared);
    return absl::OkStatus();
  }

  // REQUIRES: Prepare was OK, and the items are applied.
  absl::Status Encode(std::int64_t max_bytes, grpc::ByteBuffer& reply) {
    prepared_->Encode(Messages::In(response_));
    // In a stream each message has a status of its own.
    if constexpr (requires { response_.mutable_status(); }) response_.mutable_status();
    return SerializeMessage(response_, max_bytes, reply);
  }

 private:
  typename Messages::Request request_;
  typename Messages::Response response_;
  std::optional<PreparedBatch> prepared_;
};

}  // namespace oscarkv
