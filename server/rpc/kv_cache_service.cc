#include "server/rpc/kv_cache_service.h"

#include <memory>
#include <utility>

#include "server/rpc/grpc_status.h"
#include "server/rpc/read_tokens_stream.h"
#include "server/rpc/wire.h"

namespace oscarkv {
namespace {

// Lasts until the reply is on its way.
class UnaryCall : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(WorkQueue& queue, const char* method, const grpc::CallbackServerContext* context)
      : scope_(queue, method, context) {}

  RpcScope& scope() { return scope_; }

 private:
  void OnDone() override { delete this; }

  RpcScope scope_;
};

template <typename Request>
void NoteRequestId(RpcScope& scope, const Request& request) {
  if constexpr (requires { request.request_id(); }) scope.set_request_id(request.request_id());
}

// One message of a stream: its own error is in the reply. `part` is the request in the message,
// `answer` the response in the reply.
template <typename Request, typename Response, typename Handle>
grpc::ByteBuffer AnswerMessage(RpcScope& scope, std::int64_t max_bytes, grpc::ByteBuffer& bytes,
                               const Handle& handle) {
  grpc::ByteBuffer reply;
  absl::Status status = scope.admitted();
  if (status.ok()) {
    status = scope.Run([&]() -> absl::Status {
      Request request;
      Response response;
      if (absl::Status s = ParseMessage(bytes, request); !s.ok()) return s;
      if (absl::Status s = handle(request, response); !s.ok()) return s;
      response.mutable_status();
      return SerializeMessage(response, max_bytes, reply);
    });
  }
  if (status.ok()) return reply;
  Response response;
  *response.mutable_status() = EncodeStatus(status);
  const absl::Status written = SerializeMessage(response, max_bytes, reply);
  static_cast<void>(written);  // an error alone is always within the limit
  return reply;
}

}  // namespace

bool KvCacheService::Drain(absl::Time deadline) {
  queue_.Refuse();
  streams_.Drain();
  return queue_.WaitUntilIdle(deadline);
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* KvCacheService::Unary(
    const char* method, absl::Status (Handlers::*handle)(const Request&, Response&),
    Context* context, const Bytes* request, Bytes* reply) {
  auto* call = new UnaryCall(queue_, method, context);
  RpcScope& scope = call->scope();
  if (!scope.admitted().ok()) {
    call->Finish(ToGrpcStatus(scope.admitted()));
    return call;
  }
  queue_.Run([this, handle, call, &scope, request, reply] {
    const absl::Status status = scope.Run([&]() -> absl::Status {
      Request message;
      Response response;
      if (absl::Status s = ParseMessage(TakeRequest(request), message); !s.ok()) return s;
      NoteRequestId(scope, message);
      if (absl::Status s = (handlers_.*handle)(message, response); !s.ok()) return s;
      return SerializeMessage(response, handlers_.facts().max_message_bytes, *reply);
    });
    scope.EndWork();
    call->Finish(ToGrpcStatus(status));
  });
  return call;
}

grpc::ServerUnaryReactor* KvCacheService::GetServerInfo(Context* context, const Bytes* request,
                                                        Bytes* reply) {
  return Unary("GetServerInfo", &Handlers::GetServerInfo, context, request, reply);
}

grpc::ServerUnaryReactor* KvCacheService::CreateSession(Context* context, const Bytes* request,
                                                        Bytes* reply) {
  return Unary("CreateSession", &Handlers::CreateSession, context, request, reply);
}

grpc::ServerUnaryReactor* KvCacheService::GetSession(Context* context, const Bytes* request,
                                                     Bytes* reply) {
  return Unary("GetSession", &Handlers::GetSession, context, request, reply);
}

grpc::ServerUnaryReactor* KvCacheService::ListSessions(Context* context, const Bytes* request,
                                                       Bytes* reply) {
  return Unary("ListSessions", &Handlers::ListSessions, context, request, reply);
}

grpc::ServerUnaryReactor* KvCacheService::DeleteSession(Context* context, const Bytes* request,
                                                        Bytes* reply) {
  return Unary("DeleteSession", &Handlers::DeleteSession, context, request, reply);
}

grpc::ServerUnaryReactor* KvCacheService::TruncateSession(Context* context, const Bytes* request,
                                                          Bytes* reply) {
  return Unary("TruncateSession", &Handlers::TruncateSession, context, request, reply);
}

grpc::ServerUnaryReactor* KvCacheService::Append(Context* context, const Bytes* request,
                                                 Bytes* reply) {
  return Unary("Append", &Handlers::Append, context, request, reply);
}

grpc::ServerUnaryReactor* KvCacheService::Attend(Context* context, const Bytes* request,
                                                 Bytes* reply) {
  return Unary("Attend", &Handlers::Attend, context, request, reply);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* KvCacheService::AppendStream(
    Context* context) {
  const auto answer = [this](RpcScope& scope, Bytes& bytes) {
    return AnswerMessage<v1::AppendStreamRequest, v1::AppendStreamResponse>(
        scope, handlers_.facts().max_message_bytes, bytes,
        [&](const v1::AppendStreamRequest& request, v1::AppendStreamResponse& response) {
          NoteRequestId(scope, request.append());
          return handlers_.Append(request.append(), *response.mutable_append());
        });
  };
  return ExchangeStream::Start(streams_, queue_, "AppendStream", context, answer);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* KvCacheService::Decode(
    Context* context) {
  const auto answer = [this](RpcScope& scope, Bytes& bytes) {
    return AnswerMessage<v1::DecodeRequest, v1::DecodeResponse>(
        scope, handlers_.facts().max_message_bytes, bytes,
        [&](const v1::DecodeRequest& request, v1::DecodeResponse& response) {
          NoteRequestId(scope, request.attend());
          return handlers_.Attend(request.attend(), *response.mutable_attend());
        });
  };
  return ExchangeStream::Start(streams_, queue_, "Decode", context, answer);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* KvCacheService::ReadTokens(Context* context,
                                                                       const Bytes* request) {
  return new ReadTokensStream(handlers_, queue_, context, TakeRequest(request));
}

}  // namespace oscarkv
