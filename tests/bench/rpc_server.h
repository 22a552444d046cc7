// The service and an echo of bytes beside it, on the loopback, in this process.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "kernels/backend_factory.h"
#include "oscarkv/v1/kv_cache.grpc.pb.h"
#include "server/rpc/kv_cache_service.h"
#include "tests/bench/raw_calls.h"
#include "tests/server/rpc/test_requests.h"

namespace oscarkv::bench {

// Answers whatever is asked of Attend, and of Decode, with the same bytes.
class EchoService final
    : public v1::KvCacheService::WithRawCallbackMethod_Attend<
          v1::KvCacheService::WithRawCallbackMethod_Decode<v1::KvCacheService::Service>> {
 public:
  void set_replies(const std::string& attend, const std::string& decode) {
    attend_reply_ = ToBytes(attend);
    decode_reply_ = ToBytes(decode);
  }

  grpc::ServerUnaryReactor* Attend(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* /*request*/,
                                   grpc::ByteBuffer* reply) override {
    *reply = attend_reply_;
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Decode(
      grpc::CallbackServerContext* /*context*/) override {
    return new Stream(decode_reply_);
  }

 private:
  class Stream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
   public:
    explicit Stream(const grpc::ByteBuffer& reply) : reply_(reply) { StartRead(&request_); }

   private:
    void OnReadDone(bool ok) override {
      if (ok) {
        StartWrite(&reply_);
      } else {
        Finish(grpc::Status::OK);
      }
    }
    void OnWriteDone(bool ok) override {
      if (ok) StartRead(&request_);
    }
    void OnDone() override { delete this; }

    const grpc::ByteBuffer& reply_;
    grpc::ByteBuffer request_;
  };

  grpc::ByteBuffer attend_reply_;
  grpc::ByteBuffer decode_reply_;
};

class Listening {
 public:
  explicit Listening(grpc::Service* service) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(kMaxMessage);
    builder.RegisterService(service);
    server_ = builder.BuildAndStart();
    Require(server_ != nullptr, "listen on the loopback");
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                         grpc::InsecureChannelCredentials(), arguments);
  }
  ~Listening() { server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5)); }

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  static constexpr int kMaxMessage = 64 << 20;

 private:
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

// A server of the default profile, and what a client does before it decodes.
class RpcServer {
 public:
  explicit RpcServer(int threads)
      : backend_(MakeBackend({.threads = threads}).backend),
        store_(backend_.get(), {.memory_budget_bytes = std::int64_t{2} << 30}),
        service_(&store_, {.max_message_bytes = Listening::kMaxMessage},
                 {.threads = 4, .max_concurrent_requests = 256}),
        listening_(&service_),
        stub_(v1::KvCacheService::NewStub(listening_.channel())) {}

  // A session whose layers have `length` tokens, appended in chunks with the queries to sample.
  v1::Session Create(const std::string& id, const testing::TestModel& model, int length) {
    return Create(testing::CreateRequest(id, model), model, length);
  }
  // The same, as `request` says. REQUIRES: it is one for the model.
  v1::Session Create(const v1::CreateSessionRequest& request, const testing::TestModel& model,
                     int length) {
    grpc::ClientContext context;
    v1::CreateSessionResponse created;
    Require(stub_->CreateSession(&context, request, &created).ok(), "CreateSession");
    // At last tokens alone: they seal what the chunks have left in 16 bits.
    for (int layer = 0; layer < model.layers; ++layer) {
      int tokens = 0;
      for (int begin = 0; begin < length; begin += tokens) {
        tokens = std::clamp(length - kSinglyAtLast - begin, 1, kChunk);
        Append(Chunk(model, created.session(), layer, begin, tokens));
      }
    }
    return created.session();
  }

  Backend& backend() { return *backend_; }
  SessionStore& store() { return store_; }
  KvCacheService& service() { return service_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return listening_.channel(); }

 private:
  static constexpr int kChunk = 512;
  static constexpr int kSinglyAtLast = 16;

  // Tokens [begin, begin + tokens), with queries of those that are sampled.
  static v1::AppendRequest Chunk(const testing::TestModel& model, const v1::Session& session,
                                 int layer, int begin, int tokens) {
    v1::AppendRequest request = testing::AppendRequestOf(model, session, layer, begin, tokens);
    const int stride = session.layer_states(layer).query_sample_stride();
    const int first = (begin + stride - 1) / stride * stride;
    int queries = 0;
    for (int position = first; position < begin + tokens; position += stride, ++queries) {
      testing::AddRows(model, testing::TensorKind::kQuery, layer, position, 1,
                       *request.mutable_query());
    }
    if (queries == 0) return request;
    v1::Item& item = *request.mutable_items(0);
    item.set_num_query_tokens(queries);
    item.set_query_start(first);
    item.set_query_stride(stride);
    return request;
  }

  void Append(const v1::AppendRequest& request) {
    grpc::ClientContext context;
    v1::AppendResponse response;
    Require(stub_->Append(&context, request, &response).ok() &&
                response.results(0).status().code() == 0,
            "Append of a chunk");
  }

  std::unique_ptr<Backend> backend_;
  SessionStore store_;
  KvCacheService service_;
  Listening listening_;
  std::unique_ptr<v1::KvCacheService::Stub> stub_;
};

}  // namespace oscarkv::bench
