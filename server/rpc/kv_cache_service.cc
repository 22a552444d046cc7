#include "server/rpc/kv_cache_service.h"

#include <memory>
#include <utility>

#include "server/rpc/batch_work.h"
#include "server/rpc/calls.h"
#include "server/rpc/export_session_stream.h"
#include "server/rpc/import_session_stream.h"
#include "server/rpc/read_tokens_stream.h"
#include "server/rpc/wire.h"

namespace oscarkv {

KvCacheService::KvCacheService(SessionStore* store, ServerFacts facts,
                               const ServiceOptions& options)
    : handlers_(store, std::move(facts)),
      queue_(options.threads, options.max_concurrent_requests,
             [store](std::span<Work* const> works) { ApplyTogether(*store, works); }) {}

bool KvCacheService::Drain(absl::Time deadline) {
  queue_.Refuse();
  streams_.Drain();
  return queue_.WaitUntilIdle(deadline);
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* KvCacheService::Unary(
    const char* method, absl::Status (Handlers::*handle)(const Request&, Response&),
    Context* context, const Bytes* request, Bytes* reply) {
  return new UnaryCall<Request, Response>({handlers_, queue_, method, context}, handle,
                                          TakeRequest(request), *reply);
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

grpc::ServerUnaryReactor* KvCacheService::ForkSession(Context* context, const Bytes* request,
                                                      Bytes* reply) {
  return Unary("ForkSession", &Handlers::ForkSession, context, request, reply);
}

grpc::ServerUnaryReactor* KvCacheService::TruncateSession(Context* context, const Bytes* request,
                                                          Bytes* reply) {
  return Unary("TruncateSession", &Handlers::TruncateSession, context, request, reply);
}

grpc::ServerUnaryReactor* KvCacheService::UpdateSession(Context* context, const Bytes* request,
                                                        Bytes* reply) {
  return Unary("UpdateSession", &Handlers::UpdateSession, context, request, reply);
}

grpc::ServerUnaryReactor* KvCacheService::EvictSession(Context* context, const Bytes* request,
                                                       Bytes* reply) {
  return Unary("EvictSession", &Handlers::EvictSession, context, request, reply);
}

grpc::ServerUnaryReactor* KvCacheService::RestoreSession(Context* context, const Bytes* request,
                                                         Bytes* reply) {
  return Unary("RestoreSession", &Handlers::RestoreSession, context, request, reply);
}

grpc::ServerUnaryReactor* KvCacheService::CheckpointSession(Context* context, const Bytes* request,
                                                            Bytes* reply) {
  return Unary("CheckpointSession", &Handlers::CheckpointSession, context, request, reply);
}

grpc::ServerUnaryReactor* KvCacheService::Append(Context* context, const Bytes* request,
                                                 Bytes* reply) {
  return new UnaryBatchCall<AppendMessages>({handlers_, queue_, "Append", context},
                                            TakeRequest(request), *reply);
}

grpc::ServerUnaryReactor* KvCacheService::Attend(Context* context, const Bytes* request,
                                                 Bytes* reply) {
  return new UnaryBatchCall<AttendMessages>({handlers_, queue_, "Attend", context},
                                            TakeRequest(request), *reply);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* KvCacheService::AppendStream(
    Context* context) {
  return ExchangeStream::Start(streams_,
                               std::make_shared<BatchStream<AppendStreamMessages>>(
                                   CallContext{handlers_, queue_, "AppendStream", context}));
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* KvCacheService::Decode(
    Context* context) {
  return ExchangeStream::Start(streams_, std::make_shared<BatchStream<DecodeMessages>>(
                                             CallContext{handlers_, queue_, "Decode", context}));
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* KvCacheService::ReadTokens(Context* context,
                                                                       const Bytes* request) {
  return ReplyStream::Start(std::make_unique<ReadTokensStream>(handlers_, queue_, context),
                            TakeRequest(request));
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* KvCacheService::ExportSession(Context* context,
                                                                          const Bytes* request) {
  return ReplyStream::Start(std::make_unique<ExportSessionStream>(handlers_, queue_, context),
                            TakeRequest(request));
}

grpc::ServerReadReactor<grpc::ByteBuffer>* KvCacheService::ImportSession(Context* context,
                                                                         Bytes* reply) {
  return ImportSessionStream::Start(
      streams_, std::make_shared<ImportSessionStream>(handlers_, queue_, context, *reply));
}

}  // namespace oscarkv
