// oscarkv.v1.KvCacheService on gRPC's callback API. Requests arrive as bytes and are parsed and
// checked on gRPC's threads, which never wait for a session; the queue's threads run them and
// serialize the replies (work_queue.h).
#pragma once

#include "absl/time/time.h"
#include "oscarkv/v1/kv_cache.grpc.pb.h"
#include "server/queue/work_queue.h"
#include "server/rpc/handlers.h"
#include "server/rpc/request_stream.h"

namespace oscarkv {

namespace internal {

template <typename Base>
using RawSessionMethods = v1::KvCacheService::WithRawCallbackMethod_GetServerInfo<
    v1::KvCacheService::WithRawCallbackMethod_CreateSession<
        v1::KvCacheService::WithRawCallbackMethod_GetSession<
            v1::KvCacheService::WithRawCallbackMethod_ListSessions<
                v1::KvCacheService::WithRawCallbackMethod_DeleteSession<
                    v1::KvCacheService::WithRawCallbackMethod_ForkSession<
                        v1::KvCacheService::WithRawCallbackMethod_TruncateSession<Base>>>>>>>;

template <typename Base>
using RawTokenMethods = v1::KvCacheService::WithRawCallbackMethod_Append<
    v1::KvCacheService::WithRawCallbackMethod_AppendStream<
        v1::KvCacheService::WithRawCallbackMethod_Attend<
            v1::KvCacheService::WithRawCallbackMethod_Decode<
                v1::KvCacheService::WithRawCallbackMethod_ReadTokens<Base>>>>>;

template <typename Base>
using RawFileMethods = v1::KvCacheService::WithRawCallbackMethod_UpdateSession<
    v1::KvCacheService::WithRawCallbackMethod_EvictSession<
        v1::KvCacheService::WithRawCallbackMethod_RestoreSession<
            v1::KvCacheService::WithRawCallbackMethod_CheckpointSession<
                v1::KvCacheService::WithRawCallbackMethod_ExportSession<
                    v1::KvCacheService::WithRawCallbackMethod_ImportSession<Base>>>>>>;

}  // namespace internal

struct ServiceOptions {
  int threads = 1;  // that run requests
  int max_concurrent_requests = 1;
};

class KvCacheService final
    : public internal::RawSessionMethods<
          internal::RawTokenMethods<internal::RawFileMethods<v1::KvCacheService::Service>>> {
 public:
  // REQUIRES: store outlives this.
  KvCacheService(SessionStore* store, ServerFacts facts, const ServiceOptions& options);

  QueueStats Stats() const { return queue_.Stats(); }

  // Refuses new requests, and waits for those under way. False if `deadline` came first.
  bool Drain(absl::Time deadline);

  using Bytes = grpc::ByteBuffer;
  using Context = grpc::CallbackServerContext;

  grpc::ServerUnaryReactor* GetServerInfo(Context* context, const Bytes* request,
                                          Bytes* reply) override;
  grpc::ServerUnaryReactor* CreateSession(Context* context, const Bytes* request,
                                          Bytes* reply) override;
  grpc::ServerUnaryReactor* GetSession(Context* context, const Bytes* request,
                                       Bytes* reply) override;
  grpc::ServerUnaryReactor* ListSessions(Context* context, const Bytes* request,
                                         Bytes* reply) override;
  grpc::ServerUnaryReactor* DeleteSession(Context* context, const Bytes* request,
                                          Bytes* reply) override;
  grpc::ServerUnaryReactor* ForkSession(Context* context, const Bytes* request,
                                        Bytes* reply) override;
  grpc::ServerUnaryReactor* TruncateSession(Context* context, const Bytes* request,
                                            Bytes* reply) override;
  grpc::ServerUnaryReactor* UpdateSession(Context* context, const Bytes* request,
                                          Bytes* reply) override;
  grpc::ServerUnaryReactor* EvictSession(Context* context, const Bytes* request,
                                         Bytes* reply) override;
  grpc::ServerUnaryReactor* RestoreSession(Context* context, const Bytes* request,
                                           Bytes* reply) override;
  grpc::ServerUnaryReactor* CheckpointSession(Context* context, const Bytes* request,
                                              Bytes* reply) override;
  grpc::ServerUnaryReactor* Append(Context* context, const Bytes* request, Bytes* reply) override;
  grpc::ServerUnaryReactor* Attend(Context* context, const Bytes* request, Bytes* reply) override;
  grpc::ServerBidiReactor<Bytes, Bytes>* AppendStream(Context* context) override;
  grpc::ServerBidiReactor<Bytes, Bytes>* Decode(Context* context) override;
  grpc::ServerWriteReactor<Bytes>* ReadTokens(Context* context, const Bytes* request) override;
  grpc::ServerWriteReactor<Bytes>* ExportSession(Context* context, const Bytes* request) override;
  grpc::ServerReadReactor<Bytes>* ImportSession(Context* context, Bytes* reply) override;

 private:
  // Runs Handlers::`handle` on the queue.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Unary(const char* method,
                                  absl::Status (Handlers::*handle)(const Request&, Response&),
                                  Context* context, const Bytes* request, Bytes* reply);

  Handlers handlers_;
  StreamRegistry streams_;
  WorkQueue queue_;
};

}  // namespace oscarkv
