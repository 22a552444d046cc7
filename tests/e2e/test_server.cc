#include "tests/e2e/test_server.h"

#include <gtest/gtest.h>

#include <future>

#include "grpcpp/generic/generic_stub.h"

namespace oscarkv::testing {
namespace {

grpc::ByteBuffer ToBytes(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::string ToText(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  if (!bytes.Valid() || !bytes.DumpToSingleSlice(&slice).ok()) return "";
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

template <typename Response>
void ExpectApplied(const absl::Status& status, const Response& response) {
  EXPECT_TRUE(status.ok()) << status;
  for (const v1::ItemResult& result : response.results()) {
    EXPECT_EQ(result.status().code(), 0) << result.status().message();
  }
}

}  // namespace

Config TestConfig() {
  Config config;
  config.address = "127.0.0.1:0";
  config.memory_budget_bytes = 256 << 20;
  config.max_message_bytes = 4 << 20;
  config.log_level = LogLevel::kError;
  InitLog(config.log_level, config.log_format);
  return config;
}

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

absl::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& request, std::string& response) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  const grpc::ByteBuffer sent = ToBytes(request);
  grpc::ByteBuffer received;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &sent, &received,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  const absl::Status status = FromGrpcStatus(done.get_future().get());
  response = ToText(received);
  return status;
}

TestServer::TestServer(const Config& config) {
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(config);
  if (!server.ok()) ADD_FAILURE() << server.status();
  server_ = *std::move(server);
  channel_ = Connect(server_->address());
  // On a loaded machine gRPC may fail a first attempt to connect, and with it the first request.
  EXPECT_TRUE(
      channel_->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30)));
  stub_ = v1::KvCacheService::NewStub(channel_);
}

std::string HealthOf(TestServer& server, const std::string& service) {
  // HealthCheckRequest{service}
  std::string request;
  if (!service.empty()) request = std::string("\x0a") + static_cast<char>(service.size()) + service;
  std::string response;
  const absl::Status s =
      CallRaw(server.channel(), "/grpc.health.v1.Health/Check", request, response);
  return s.ok() ? response : std::string(s.message());
}

v1::Session Create(Stub& stub, const std::string& id, const TestModel& model) {
  v1::CreateSessionResponse response;
  const absl::Status s = Call(stub, &Stub::CreateSession, CreateRequest(id, model), response);
  EXPECT_TRUE(s.ok()) << s;
  return response.session();
}

v1::Session Get(Stub& stub, const std::string& id) {
  v1::GetSessionRequest request;
  request.set_session(id);
  v1::GetSessionResponse response;
  const absl::Status s = Call(stub, &Stub::GetSession, request, response);
  EXPECT_TRUE(s.ok()) << s;
  return response.session();
}

v1::Session Truncate(Stub& stub, const v1::Session& session, std::int64_t length) {
  v1::TruncateSessionRequest request;
  request.set_session(session.id());
  request.set_generation(session.generation());
  request.set_length(length);
  v1::TruncateSessionResponse response;
  const absl::Status s = Call(stub, &Stub::TruncateSession, request, response);
  EXPECT_TRUE(s.ok()) << s;
  return response.session();
}

v1::AppendResponse Append(Stub& stub, const v1::AppendRequest& request) {
  v1::AppendResponse response;
  ExpectApplied(Call(stub, &Stub::Append, request, response), response);
  return response;
}

v1::AttendResponse Attend(Stub& stub, const v1::AttendRequest& request) {
  v1::AttendResponse response;
  ExpectApplied(Call(stub, &Stub::Attend, request, response), response);
  return response;
}

}  // namespace oscarkv::testing
