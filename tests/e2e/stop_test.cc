// How a server stops, seen by its clients and, for the program, by whoever started it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <string>
#include <thread>

#include "kernels/backend_factory.h"
#include "tests/e2e/server_process.h"
#include "tests/e2e/test_server.h"

namespace oscarkv::testing {
namespace {

constexpr TestModel kWide = {.layers = 1, .query_heads = 16, .kv_heads = 16, .dim = 256};
TEST(StopTest, HealthAndReflectionAnswer) {
  TestServer server;
  EXPECT_EQ(HealthOf(server, ""), kServing);
  EXPECT_EQ(HealthOf(server, "oscarkv.v1.KvCacheService"), kServing);
  EXPECT_THAT(HealthOf(server, "no.such.Service"), ::testing::HasSubstr("unknown"));
  std::string services;
  // ServerReflectionRequest{list_services: ""}
  const absl::Status s =
      CallRaw(server.channel(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              std::string("\x3a\x00", 2), services);
  EXPECT_TRUE(s.ok()) << s;
  EXPECT_THAT(services, ::testing::HasSubstr("oscarkv.v1.KvCacheService"));
}

// A server with a stream of tokens under way: its first run is read, the rest waits.
class StopWithStreamTest : public ::testing::Test {
 protected:
  StopWithStreamTest() {
    const v1::Session session = Create(server_.stub(), "wide", kWide);
    for (int begin = 0; begin < 1000; begin += 100) {
      Append(server_.stub(), AppendRequestOf(kWide, session, 0, begin, 100));
    }
    v1::ReadTokensRequest request;
    request.set_session("wide");
    request.set_generation(session.generation());
    tokens_ = server_.stub().ReadTokens(&context_, request);
    EXPECT_TRUE(tokens_->Read(&run_));
  }

  TestServer server_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::ReadTokensResponse>> tokens_;
  v1::ReadTokensResponse run_;
};

TEST_F(StopWithStreamTest, DrainRefusesWhatIsNewAndEndsWhatIsUnderWay) {
  grpc::ClientContext deciding;
  const auto idle = server_.stub().Decode(&deciding);
  v1::DecodeResponse response;
  ASSERT_TRUE(idle->Write(v1::DecodeRequest()));
  ASSERT_TRUE(idle->Read(&response));  // an error in the reply: the stream is open

  std::future<bool> drained =
      std::async(std::launch::async, [&] { return server_.server().Drain(absl::Seconds(60)); });
  EXPECT_FALSE(idle->Read(&response));
  EXPECT_EQ(ReasonOf(FromGrpcStatus(idle->Finish())), "DRAINING");
  EXPECT_EQ(HealthOf(server_, ""), kNotServing);
  EXPECT_EQ(HealthOf(server_, "oscarkv.v1.KvCacheService"), kNotServing);
  v1::GetServerInfoResponse info;
  const absl::Status refused =
      Call(server_.stub(), &Stub::GetServerInfo, v1::GetServerInfoRequest(), info);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), "DRAINING");
  grpc::ClientContext late;
  const auto late_stream = server_.stub().AppendStream(&late);
  EXPECT_EQ(ReasonOf(FromGrpcStatus(late_stream->Finish())), "DRAINING");

  std::int64_t tokens = run_.key().shape(0);
  while (tokens_->Read(&run_)) tokens += run_.key().shape(0);
  EXPECT_TRUE(tokens_->Finish().ok());
  EXPECT_EQ(tokens, 1000);
  EXPECT_TRUE(drained.get());
}

TEST_F(StopWithStreamTest, AfterTheGraceTheRestIsCutOff) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(server_.server().Drain(absl::Milliseconds(300)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  while (tokens_->Read(&run_)) {
  }
  EXPECT_FALSE(tokens_->Finish().ok());
}

// Clients that keep at it while the server stops see answers, or are refused.
TEST(StopTest, StoppingUnderLoadLosesNothingThatWasAcknowledged) {
  for (int round = 0; round < 5; ++round) {
    auto server = std::make_unique<TestServer>();
    std::vector<std::thread> clients;
    std::atomic<int> answered = 0;
    for (int i = 0; i < 4; ++i) {
      clients.emplace_back([&answered, i, address = server->server().address()] {
        const auto stub = v1::KvCacheService::NewStub(Connect(address));
        const TestModel model;
        const v1::Session session = Create(*stub, std::string(1, static_cast<char>('a' + i)));
        for (int step = 0;; ++step) {
          v1::AttendResponse response;
          const absl::Status status =
              Call(*stub, &Stub::Attend, AttendRequestOf(model, session, 0, step, 1, 1), response);
          if (!status.ok()) {
            // CANCELLED: the call met a connection that was closing.
            EXPECT_TRUE(status.code() == absl::StatusCode::kUnavailable ||
                        status.code() == absl::StatusCode::kCancelled)
                << status;
            return;
          }
          EXPECT_EQ(response.results(0).length(), step + 1);
          ++answered;
        }
      });
    }
    while (answered < 40) std::this_thread::yield();
    EXPECT_TRUE(server->server().Drain(absl::Seconds(60)));
    for (std::thread& client : clients) client.join();
  }
}

// The same with streams, whose messages may arrive at any moment of the stop. With a log, since
// what a message of a stream leaves behind is a line in it.
TEST(StopTest, StreamsUnderLoadAreAnsweredOrRefused) {
  Config config = TestConfig();
  InitLog(LogLevel::kInfo, config.log_format);
  for (int round = 0; round < 10; ++round) {
    TestServer server(config);
    std::vector<std::thread> clients;
    std::atomic<int> answered = 0;
    for (int i = 0; i < 4; ++i) {
      clients.emplace_back([&answered, i, address = server.server().address()] {
        const auto stub = v1::KvCacheService::NewStub(Connect(address));
        const v1::Session session = Create(*stub, std::string(1, static_cast<char>('a' + i)));
        grpc::ClientContext context;
        const auto stream = stub->Decode(&context);
        v1::DecodeRequest request;
        v1::DecodeResponse response;
        for (int step = 0;; ++step) {
          *request.mutable_attend() = AttendRequestOf({}, session, 0, step, 1, 1);
          if (!stream->Write(request) || !stream->Read(&response)) break;
          EXPECT_EQ(response.attend().results(0).length(), step + 1);
          ++answered;
        }
        EXPECT_EQ(ReasonOf(FromGrpcStatus(stream->Finish())), "DRAINING");
      });
    }
    while (answered < 40) std::this_thread::yield();
    EXPECT_TRUE(server.server().Drain(absl::Seconds(60)));
    for (std::thread& client : clients) client.join();
  }
  InitLog(config.log_level, config.log_format);
}

TEST(StopTest, AServerThatIsDestroyedStops) {
  TestServer server;
  Create(server.stub(), "a");
}

TEST(ProgramTest, StopsWithZeroOnSigtermAndSigint) {
  for (const int signal : {SIGTERM, SIGINT}) {
    ServerProcess process({});
    const auto stub = v1::KvCacheService::NewStub(Connect(process.address()));
    Create(*stub, "a");
    process.Kill(signal);
    EXPECT_EQ(process.WaitForExit(), 0);
  }
}

TEST(ProgramTest, ASecondSignalEndsItAtOnce) {
  ServerProcess process({"--shutdown-grace=1h"});
  const auto stub = v1::KvCacheService::NewStub(Connect(process.address()));
  const v1::Session session = Create(*stub, "wide", kWide);
  for (int begin = 0; begin < 1000; begin += 100) {
    Append(*stub, AppendRequestOf(kWide, session, 0, begin, 100));
  }
  v1::ReadTokensRequest request;
  request.set_session("wide");
  request.set_generation(session.generation());
  grpc::ClientContext context;
  const auto tokens = stub->ReadTokens(&context, request);
  v1::ReadTokensResponse run;
  ASSERT_TRUE(tokens->Read(&run));
  process.Kill(SIGTERM);
  v1::GetServerInfoResponse info;
  while (Call(*stub, &Stub::GetServerInfo, v1::GetServerInfoRequest(), info).ok()) {
  }
  process.Kill(SIGTERM);
  EXPECT_EQ(process.WaitForExit(), 128 + SIGTERM);
  context.TryCancel();
}

TEST(ProgramTest, AnAddressInUseIsToldWithExitCodeOne) {
  ServerProcess first({});
  ServerProcess second({"--address=" + first.address()}, ServerProcess::kDoNotWait);
  EXPECT_EQ(second.WaitForExit(), 1);
  EXPECT_THAT(second.Log(), ::testing::HasSubstr("cannot listen on " + first.address()));
}

TEST(ProgramTest, ASocketOfTheFileSystemServesAndIsNotTakenOver) {
  const std::string address = "unix:" + ::testing::TempDir() + "oscarkv_stop_test.sock";
  ServerProcess first({"--address=" + address});
  EXPECT_EQ(first.address(), address);
  ServerProcess second({"--address=" + address}, ServerProcess::kDoNotWait);
  EXPECT_EQ(second.WaitForExit(), 1);
  EXPECT_THAT(second.Log(), ::testing::HasSubstr("another server listens there"));
  const auto stub = v1::KvCacheService::NewStub(Connect(address));
  EXPECT_EQ(Create(*stub, "a").id(), "a");
}

TEST(ProgramTest, NonsenseIsToldWithExitCodeTwo) {
  ServerProcess process({"--threads=many"}, ServerProcess::kDoNotWait);
  EXPECT_EQ(process.WaitForExit(), 2);
  EXPECT_THAT(process.Log(), ::testing::HasSubstr("--threads (OSCARKV_THREADS) is `many`"));
}

TEST(ProgramTest, RunsTheInstructionsThatItIsTold) {
  for (const std::string& name : CpuInstructionSets()) {
    ServerProcess process({"--cpu-instructions=" + name, "--threads=1"});
    const auto stub = v1::KvCacheService::NewStub(Connect(process.address()));
    v1::GetServerInfoResponse info;
    const absl::Status s = Call(*stub, &Stub::GetServerInfo, v1::GetServerInfoRequest(), info);
    EXPECT_TRUE(s.ok()) << s;
    EXPECT_THAT(info.device(), ::testing::EndsWith(", " + name));
    EXPECT_THAT(process.Log(),
                ::testing::HasSubstr("backend=\"cpu, " + info.device() + ", 1 thread\""));
  }
}

TEST(ProgramTest, ABudgetBeyondTheMemoryIsToldWithExitCodeOne) {
  ServerProcess process({"--memory-budget=1000TiB"}, ServerProcess::kDoNotWait);
  EXPECT_EQ(process.WaitForExit(), 1);
  EXPECT_THAT(process.Log(), ::testing::HasSubstr("--memory-budget"));
}

}  // namespace
}  // namespace oscarkv::testing
