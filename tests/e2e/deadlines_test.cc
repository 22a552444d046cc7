// Deadlines of requests that wait for others, over a real connection.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "kernels/backend_factory.h"
#include "server/rpc/kv_cache_service.h"
#include "tests/e2e/test_server.h"
#include "tests/server/support/faulty_backend.h"

namespace oscarkv::testing {
namespace {

// Holds up the first append until it is told to go on.
class HeldBackend : public FaultyBackend {
 public:
  using FaultyBackend::FaultyBackend;

  KernelStatus Append(std::span<const AppendItem> items) override {
    if (!held_) {
      held_ = true;
      reached_.set_value();
      go_on_.get_future().wait();
    }
    return FaultyBackend::Append(items);
  }
  void WaitUntilHeld() { reached_.get_future().wait(); }
  void GoOn() { go_on_.set_value(); }

 private:
  bool held_ = false;
  std::promise<void> reached_;
  std::promise<void> go_on_;
};

TEST(DeadlinesTest, ARequestWhoseDeadlinePassesInTheQueueIsNotRun) {
  const std::unique_ptr<Backend> cpu = MakeBackend({}).backend;
  HeldBackend backend(cpu.get());
  SessionStore store(&backend, {.memory_budget_bytes = 64 << 20});
  KvCacheService service(&store, {.max_message_bytes = 4 << 20},
                         {.threads = 1, .max_concurrent_requests = 8});
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto stub = v1::KvCacheService::NewStub(Connect("127.0.0.1:" + std::to_string(port)));
  const v1::Session busy = Create(*stub, "busy");
  const v1::Session waiting = Create(*stub, "waiting");

  std::thread first([&] { Append(*stub, AppendRequestOf({}, busy, 0, 0, 5)); });
  backend.WaitUntilHeld();
  v1::AppendResponse response;
  constexpr std::chrono::milliseconds kTimeout(20);
  const absl::Status status =
      Call(*stub, &Stub::Append, AppendRequestOf({}, waiting, 0, 0, 5), response, kTimeout);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  // The server counts from when the request arrived.
  std::this_thread::sleep_for(5 * kTimeout);
  backend.GoOn();
  first.join();
  // There is one thread: what was ahead of these has been run, or has not.
  EXPECT_EQ(Get(*stub, "busy").layer_states(0).length(), 5);
  EXPECT_EQ(Get(*stub, "waiting").layer_states(0).length(), 0);
  EXPECT_TRUE(service.Drain(absl::Now() + absl::Seconds(60)));
  server->Shutdown();
}

}  // namespace
}  // namespace oscarkv::testing
