// A server in the test's own process, on a free port of the loopback, and calls to it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"
#include "oscarkv/v1/kv_cache.grpc.pb.h"
#include "server/config.h"
#include "server/server.h"
#include "tests/server/rpc/received_status.h"
#include "tests/server/rpc/test_requests.h"

namespace oscarkv::testing {

using Stub = v1::KvCacheService::Stub;

// Small, so that limits are near; quiet.
Config TestConfig();

// A connection of its own, without limits on the client's side.
std::shared_ptr<grpc::Channel> Connect(const std::string& address);

// A call of a method of the stub, with a deadline that only a hung server reaches.
template <typename Request, typename Response>
absl::Status Call(Stub& stub,
                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response& response,
                  std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  return FromGrpcStatus((stub.*method)(&context, request, &response));
}

// Any method by its full name, with bytes for messages; of a stream, the first reply.
absl::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& request, std::string& response);

class TestServer {
 public:
  explicit TestServer(const Config& config = TestConfig());

  Server& server() { return *server_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  Stub& stub() { return *stub_; }

 private:
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Stub> stub_;
};

// What its health service says of a service; "": of the process. An error's message otherwise.
std::string HealthOf(TestServer& server, const std::string& service);
inline constexpr char kServing[] = "\x08\x01";     // HealthCheckResponse{status: SERVING}
inline constexpr char kNotServing[] = "\x08\x02";  // HealthCheckResponse{status: NOT_SERVING}

// These fail the test unless the call, and its items, succeed.
v1::Session Create(Stub& stub, const std::string& id, const TestModel& model = {});
v1::Session Get(Stub& stub, const std::string& id);
v1::Session Truncate(Stub& stub, const v1::Session& session, std::int64_t length);
v1::AppendResponse Append(Stub& stub, const v1::AppendRequest& request);
v1::AttendResponse Attend(Stub& stub, const v1::AttendRequest& request);

}  // namespace oscarkv::testing
