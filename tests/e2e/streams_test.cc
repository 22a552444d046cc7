// Streams, deadlines and cancellation over a real connection.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "tests/e2e/test_server.h"

namespace oscarkv::testing {
namespace {

// 16 KiB a token: a few hundred are more than a connection buffers.
constexpr TestModel kWide = {.layers = 1, .query_heads = 16, .kv_heads = 16, .dim = 256};

v1::Session CreateWide(Stub& stub, int tokens) {
  const v1::Session session = Create(stub, "wide", kWide);
  for (int begin = 0; begin < tokens; begin += 100) {
    Append(stub, AppendRequestOf(kWide, session, 0, begin, 100));
  }
  return session;
}

v1::ReadTokensRequest ReadRequest(const v1::Session& session, int layer) {
  v1::ReadTokensRequest request;
  request.set_session(session.id());
  request.set_generation(session.generation());
  request.set_layer(layer);
  return request;
}

// Keeps a server busy: clients that ask for much, each again as soon as it is answered or refused.
// Many queries see a long session of one narrow kv head, so that a request takes far longer to
// compute than to send: whoever comes meanwhile finds its place taken.
class Load {
 public:
  explicit Load(const std::string& address) {
    constexpr TestModel kLong = {.layers = 1, .query_heads = 16, .kv_heads = 1, .dim = 64};
    constexpr int kTokens = 16384;
    const auto stub = v1::KvCacheService::NewStub(Connect(address));
    const v1::Session session = Create(*stub, "load", kLong);
    Append(*stub, AppendRequestOf(kLong, session, 0, 0, kTokens / 2));
    Append(*stub, AppendRequestOf(kLong, session, 0, kTokens / 2, kTokens / 2));
    v1::AttendRequest request = AttendRequestOf(kLong, session, 0, 0, 0, 400);
    request.mutable_items(0)->set_expected_length(kTokens);
    for (int i = 0; i < 2; ++i) {
      clients_.emplace_back([this, address, request] {
        const auto own_stub = v1::KvCacheService::NewStub(Connect(address));
        v1::AttendResponse response;
        while (!stopped_) Call(*own_stub, &Stub::Attend, request, response).IgnoreError();
      });
    }
  }
  void Stop() {
    stopped_ = true;
    for (std::thread& client : clients_) client.join();
    clients_.clear();
  }
  ~Load() { Stop(); }

 private:
  std::atomic<bool> stopped_ = false;
  std::vector<std::thread> clients_;
};

// The server still answers, and does what it is asked.
void ExpectServes(Stub& stub) {
  const TestModel model;
  const v1::Session session = Create(stub, "after", model);
  Append(stub, AppendRequestOf(model, session, 0, 0, 5));
  EXPECT_EQ(Get(stub, "after").layer_states(0).length(), 5);
}

TEST(StreamsTest, AppendStreamAnswersEachMessageAndGoesOnAfterErrors) {
  TestServer server;
  const TestModel model;
  const v1::Session session = Create(server.stub(), "a", model);
  grpc::ClientContext context;
  const auto stream = server.stub().AppendStream(&context);
  const auto exchange = [&](const v1::AppendRequest& append) {
    v1::AppendStreamRequest request;
    *request.mutable_append() = append;
    EXPECT_TRUE(stream->Write(request));
    v1::AppendStreamResponse response;
    EXPECT_TRUE(stream->Read(&response));
    return response;
  };
  for (int begin = 0; begin < 600; begin += 100) {
    const auto reply = exchange(AppendRequestOf(model, session, 0, begin, 100));
    ASSERT_EQ(reply.status().code(), 0) << reply.status().message();
    EXPECT_EQ(reply.append().results(0).length(), begin + 100);

    v1::AppendRequest broken = AppendRequestOf(model, session, 0, begin + 100, 10);
    broken.mutable_key()->mutable_raw()->pop_back();
    const auto refused = exchange(broken);
    EXPECT_EQ(FieldOf(refused.status()), "key.raw");
    EXPECT_FALSE(refused.has_append());

    // Of the item, not of the message.
    const auto ahead = exchange(AppendRequestOf(model, session, 0, begin + 500, 10));
    EXPECT_EQ(ahead.status().code(), 0);
    EXPECT_EQ(ReasonOf(ahead.append().results(0).status()), "LENGTH_MISMATCH");
  }
  EXPECT_EQ(FieldOf(exchange({}).status()), "items");
  stream->WritesDone();
  v1::AppendStreamResponse none;
  EXPECT_FALSE(stream->Read(&none));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(Get(server.stub(), "a").layer_states(0).length(), 600);
}

TEST(StreamsTest, RequestsSentAheadAreAnsweredInOrder) {
  TestServer server;
  const TestModel model;
  const v1::Session session = Create(server.stub(), "a", model);
  grpc::ClientContext context;
  const auto stream = server.stub().AppendStream(&context);
  constexpr int kMessages = 50;
  for (int i = 0; i < kMessages; ++i) {
    v1::AppendStreamRequest request;
    *request.mutable_append() = AppendRequestOf(model, session, 0, i * 7, 7);
    ASSERT_TRUE(stream->Write(request));
  }
  stream->WritesDone();
  v1::AppendStreamResponse response;
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.append().results(0).length(), i * 7 + 7);
  }
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(StreamsTest, DecodeAnswersAsAttend) {
  TestServer server;
  Stub& stub = server.stub();
  const TestModel model;
  const v1::Session unary = Create(stub, "unary", model);
  const v1::Session streamed = Create(stub, "streamed", model);
  for (const v1::Session& session : {unary, streamed}) {
    for (const int layer : {0, 1}) Append(stub, AppendRequestOf(model, session, layer, 0, 400));
  }
  grpc::ClientContext context;
  const auto stream = stub.Decode(&context);
  for (int step = 400; step < 420; ++step) {
    for (const int layer : {0, 1}) {
      v1::DecodeRequest request;
      *request.mutable_attend() = AttendRequestOf(model, streamed, layer, step, 1, 1);
      ASSERT_TRUE(stream->Write(request));
      v1::DecodeResponse response;
      ASSERT_TRUE(stream->Read(&response));
      const auto expected = Attend(stub, AttendRequestOf(model, unary, layer, step, 1, 1));
      EXPECT_EQ(response.attend().output().raw(), expected.output().raw());
      EXPECT_EQ(response.attend().log_sum_exp().raw(), expected.log_sum_exp().raw());
    }
  }
  v1::DecodeRequest empty;
  ASSERT_TRUE(stream->Write(empty));
  v1::DecodeResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(FieldOf(response.status()), "items");
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(StreamsTest, ReadTokensGivesBackWhatTheWindowHolds) {
  TestServer server;
  const TestModel model;
  const v1::Session session = Create(server.stub(), "a", model);
  const v1::AppendRequest append = AppendRequestOf(model, session, 1, 0, 200);
  Append(server.stub(), append);
  grpc::ClientContext context;
  const auto stream = server.stub().ReadTokens(&context, ReadRequest(session, 1));
  v1::ReadTokensResponse run;
  std::string keys;
  while (stream->Read(&run)) keys += run.key().raw();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(keys, append.key().raw());
}

TEST(StreamsTest, ReadTokensTellsErrorsInItsStatus) {
  TestServer server;
  v1::Session session = Create(server.stub(), "a");
  session.set_generation(1);
  grpc::ClientContext context;
  const auto stream = server.stub().ReadTokens(&context, ReadRequest(session, 1));
  v1::ReadTokensResponse run;
  EXPECT_FALSE(stream->Read(&run));
  EXPECT_EQ(ReasonOf(FromGrpcStatus(stream->Finish())), "GENERATION_MISMATCH");
}

TEST(StreamsTest, CancellationInTheMiddleHarmsNothing) {
  TestServer server;
  Stub& stub = server.stub();
  const v1::Session wide = CreateWide(stub, 500);
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext reading;
    const auto tokens = stub.ReadTokens(&reading, ReadRequest(wide, 0));
    v1::ReadTokensResponse run;
    EXPECT_TRUE(i % 2 == 1 || tokens->Read(&run));
    reading.TryCancel();
    EXPECT_EQ(tokens->Finish().error_code(), grpc::StatusCode::CANCELLED);

    grpc::ClientContext appending;
    const auto stream = stub.AppendStream(&appending);
    v1::AppendStreamRequest request;
    *request.mutable_append() = AppendRequestOf(kWide, wide, 0, 500, 5);
    EXPECT_TRUE(i % 3 == 0 || stream->Write(request));
    appending.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  ExpectServes(stub);
  // Whether a cancelled message was applied is not known, but it was applied whole or not at all.
  const std::int64_t length = Get(stub, "wide").committed_length();
  EXPECT_TRUE(length == 500 || length == 505) << length;
}

TEST(StreamsTest, TheDeadlineOfAnIdleStreamPasses) {
  TestServer server;
  Stub& stub = server.stub();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(20));
  const auto stream = stub.Decode(&context);
  v1::DecodeResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectServes(stub);
}

TEST(StreamsTest, TooManyRequestsAreRefusedWithATimeToTryAgain) {
  Config config = TestConfig();
  config.max_concurrent_requests = 1;
  TestServer server(config);
  Stub& stub = server.stub();
  const v1::Session idle = Create(stub, "idle");
  grpc::ClientContext deciding;
  const auto decode = stub.Decode(&deciding);

  Load load(server.server().address());
  v1::GetServerInfoResponse info;
  absl::Status refused;
  while (refused.ok()) refused = Call(stub, &Stub::GetServerInfo, {}, info);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), "TOO_MANY_REQUESTS");
  ASSERT_TRUE(DetailsOf(refused).has_value());
  EXPECT_GT(DetailsOf(refused)->retry_after, absl::ZeroDuration());

  // An open stream is told in its reply, and goes on. What is answered meanwhile is a repeat.
  v1::DecodeRequest request;
  *request.mutable_attend() = AttendRequestOf({}, idle, 0, 0, 1, 1);
  v1::DecodeResponse response;
  while (response.status().code() == 0) {
    ASSERT_TRUE(decode->Write(request));
    ASSERT_TRUE(decode->Read(&response));
  }
  EXPECT_EQ(ReasonOf(response.status()), "TOO_MANY_REQUESTS");

  load.Stop();
  ASSERT_TRUE(decode->Write(request));
  ASSERT_TRUE(decode->Read(&response));
  ASSERT_EQ(response.status().code(), 0) << response.status().message();
  EXPECT_EQ(response.attend().results(0).length(), 1);
}

TEST(StreamsTest, AReaderThatPausesKeepsNoPlaceFromOthers) {
  Config config = TestConfig();
  config.max_concurrent_requests = 1;
  TestServer server(config);
  Stub& stub = server.stub();
  const v1::Session wide = CreateWide(stub, 1000);
  grpc::ClientContext context;
  const auto tokens = stub.ReadTokens(&context, ReadRequest(wide, 0));
  v1::ReadTokensResponse run;
  ASSERT_TRUE(tokens->Read(&run));
  std::int64_t count = run.key().shape(0);

  // The runs that a connection buffers may still be decoded; then the place is free.
  v1::GetServerInfoResponse info;
  absl::Status status = absl::UnknownError("not asked yet");
  while (!status.ok()) {
    status = Call(stub, &Stub::GetServerInfo, {}, info);
    ASSERT_TRUE(status.ok() || ReasonOf(status) == "TOO_MANY_REQUESTS") << status;
  }
  {
    // Where others have the place the stream waits for it, and is not refused.
    Load load(server.server().address());
    while (tokens->Read(&run)) count += run.key().shape(0);
  }
  EXPECT_TRUE(tokens->Finish().ok());
  EXPECT_EQ(count, 1000);
}

TEST(StreamsTest, ManyClientsAtOnceGetTheAnswersOfOneAlone) {
  TestServer server;
  constexpr int kClients = 8;
  constexpr int kSteps = 150;
  const auto run = [&](const std::string& id, const TestModel& model) {
    const auto stub = v1::KvCacheService::NewStub(Connect(server.server().address()));
    const v1::Session session = Create(*stub, id, model);
    std::string outputs;
    for (int step = 0; step < kSteps; ++step) {
      for (int layer = 0; layer < model.layers; ++layer) {
        outputs +=
            Attend(*stub, AttendRequestOf(model, session, layer, 3 * step, 3, 2)).output().raw();
      }
    }
    return outputs;
  };
  std::vector<std::string> expected;
  std::vector<std::string> outputs(kClients);
  for (std::uint64_t i = 0; i < kClients; ++i) {
    expected.push_back(run(absl::StrCat("alone", i), {.seed = i}));
  }
  std::vector<std::thread> clients;
  for (std::uint64_t i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] { outputs[i] = run(absl::StrCat("together", i), {.seed = i}); });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(outputs, expected);
}

}  // namespace
}  // namespace oscarkv::testing
