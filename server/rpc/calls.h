// The reactors of unary methods and of streams of exchanges: each takes its messages from gRPC as
// bytes, prepares them on gRPC's thread, has a queue run them, and replies.
//
// Thread-safety: gRPC calls the reactions and the queue runs the work, one after the other.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/queue/work_queue.h"
#include "server/rpc/batch_work.h"
#include "server/rpc/exchange_stream.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/handlers.h"
#include "server/rpc/limits.h"
#include "server/rpc/rpc_scope.h"
#include "server/rpc/wire.h"
#include "server/rpc/work_keys.h"

namespace oscarkv {

// What a call needs of its service. All outlive it.
struct CallContext {
  Handlers& handlers;
  WorkQueue& queue;
  const char* method;
  const grpc::CallbackServerContext* context;
};

// The tenant that a request counts for.
template <typename Request>
std::string TenantOf(const Handlers& handlers, const Request& request) {
  if constexpr (requires { request.tenant(); }) {
    return request.tenant().substr(0, limits::kIdCharacters);  // not checked yet
  } else {
    std::string_view session;
    if constexpr (requires { request.session(); }) {
      session = request.session();
    } else if constexpr (requires { request.forks(); }) {
      if (!request.forks().empty()) session = request.forks(0).source();
    }
    const auto config = handlers.store().ConfigOf(session);
    return config.ok() ? (*config)->tenant : "";
  }
}

template <typename Request, typename... Others>
inline constexpr bool kIsOneOf = (std::is_same_v<Request, Others> || ...);

// The sessions that the store serves a request on when no other one is inside them.
template <typename Request>
std::vector<std::uint64_t> WholeSessionsOf(const Request& request) {
  if constexpr (kIsOneOf<Request, v1::TruncateSessionRequest, v1::DeleteSessionRequest,
                         v1::UpdateSessionRequest, v1::EvictSessionRequest,
                         v1::RestoreSessionRequest, v1::CheckpointSessionRequest>) {
    return {KeyOfSession(request.session())};
  } else if constexpr (std::is_same_v<Request, v1::ForkSessionRequest>) {
    return KeysOfForks(request);
  } else {
    return {};
  }
}

// Lasts until the reply is on its way.
template <typename Request, typename Response>
class UnaryCall final : public grpc::ServerUnaryReactor, private Work {
 public:
  using Handle = absl::Status (Handlers::*)(const Request&, Response&);

  // Deletes itself. REQUIRES: the bytes outlive the call.
  UnaryCall(const CallContext& context, Handle handle, grpc::ByteBuffer& request,
            grpc::ByteBuffer& reply)
      : handlers_(context.handlers),
        handle_(handle),
        reply_(reply),
        scope_(context.queue, context.method, context.context) {
    if (scope_.status().ok()) {
      scope_.Guard([&] { return Prepare(request); }).IgnoreError();
    }
    if (scope_.status().ok() && scope_.Submit(this)) return;
    End();
  }

 private:
  absl::Status Prepare(grpc::ByteBuffer& bytes) {
    if (absl::Status s = ParseMessage(bytes, request_); !s.ok()) return s;
    if constexpr (requires { request_.request_id(); }) {
      scope_.set_request_id(request_.request_id());
    }
    tenant_ = TenantOf(handlers_, request_);
    set_facts({.tenant = tenant_, .whole_sessions = WholeSessionsOf(request_)});
    return absl::OkStatus();
  }

  void Run() override {
    // Not members within the lambda: g++ 12 reads them through a null pointer under sanitizers.
    auto& handlers = handlers_;
    const auto handle = handle_;
    scope_
        .Run([this, &handlers, handle]() -> absl::Status {
          Response response;
          absl::Status status = (handlers.*handle)(request_, response);
          if (!status.ok()) return status;
          return SerializeMessage(response, handlers.facts().max_message_bytes, reply_);
        })
        .IgnoreError();
    End();
  }

  bool IsGivenUp() const override { return scope_.IsGivenUp(); }

  void Drop(WhyDropped why) override {
    scope_.Drop(why);
    End();
  }

  void End() {
    const grpc::Status status = ToGrpcStatus(scope_.status());
    scope_.EndWork();
    this->Finish(status);
  }

  void OnDone() override { delete this; }

  Handlers& handlers_;
  const Handle handle_;
  grpc::ByteBuffer& reply_;
  RpcScope scope_;
  Request request_;
  std::string tenant_;
};

// The same for a batch.
template <typename Messages>
class UnaryBatchCall final : public grpc::ServerUnaryReactor, private BatchWork {
 public:
  // Deletes itself. REQUIRES: the bytes outlive the call.
  UnaryBatchCall(const CallContext& context, grpc::ByteBuffer& request, grpc::ByteBuffer& reply)
      : handlers_(context.handlers),
        reply_(reply),
        scope_(context.queue, context.method, context.context) {
    if (scope_.status().ok()) {
      scope_
          .Guard([&]() -> absl::Status {
            if (absl::Status s = message_.Prepare(handlers_, scope_, request); !s.ok()) return s;
            set_facts(message_.Facts());
            return absl::OkStatus();
          })
          .IgnoreError();
    }
    if (scope_.status().ok() && !message_.items().empty() && scope_.Submit(this)) return;
    Run();
  }

 private:
  std::span<BatchItem* const> items() const override { return message_.items(); }
  RpcScope& scope() override { return scope_; }

  bool IsGivenUp() const override { return scope_.IsGivenUp(); }

  void Drop(WhyDropped why) override {
    scope_.Drop(why);
    Run();
  }

  void Run() override {
    if (scope_.status().ok()) {
      scope_.Guard([&] { return message_.Encode(handlers_.facts().max_message_bytes, reply_); })
          .IgnoreError();
    }
    const grpc::Status status = ToGrpcStatus(scope_.status());
    scope_.EndWork();
    this->Finish(status);
  }

  void OnDone() override { delete this; }

  Handlers& handlers_;
  grpc::ByteBuffer& reply_;
  RpcScope scope_;
  BatchMessage<Messages> message_;
};

// A stream of batches: a message's own error is in its reply.
template <typename Messages>
class BatchStream final : public ExchangeStream, private BatchWork {
 public:
  explicit BatchStream(const CallContext& context)
      : ExchangeStream(context.queue, context.method, context.context),
        handlers_(context.handlers) {}

 private:
  std::span<BatchItem* const> items() const override { return message_->items(); }
  RpcScope& scope() override { return *scope_; }

  void Answer(RpcScope& scope, grpc::ByteBuffer& request) override {
    scope_ = &scope;
    message_.emplace();
    if (scope.status().ok()) {
      scope
          .Guard([&]() -> absl::Status {
            if (absl::Status s = message_->Prepare(handlers_, scope, request); !s.ok()) return s;
            set_facts(message_->Facts());
            return absl::OkStatus();
          })
          .IgnoreError();
    }
    if (scope.status().ok() && !message_->items().empty() && scope.Submit(this)) return;
    Run();
  }

  bool IsGivenUp() const override { return scope_->IsGivenUp(); }

  void Drop(WhyDropped why) override {
    scope_->Drop(why);
    Run();
  }

  void Run() override {
    const std::int64_t max_bytes = handlers_.facts().max_message_bytes;
    grpc::ByteBuffer reply;
    if (scope_->status().ok()) {
      scope_->Guard([&] { return message_->Encode(max_bytes, reply); }).IgnoreError();
    }
    if (!scope_->status().ok()) {
      typename Messages::Response response;
      *response.mutable_status() = EncodeStatus(scope_->status());
      // An error alone is always within the limit.
      SerializeMessage(response, max_bytes, reply).IgnoreError();
    }
    message_.reset();
    Send(std::move(reply));
  }

  Handlers& handlers_;
  RpcScope* scope_ = nullptr;  // of the message in flight
  std::optional<BatchMessage<Messages>> message_;
};

}  // namespace oscarkv
