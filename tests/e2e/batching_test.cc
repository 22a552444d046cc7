// Requests of different clients, streams and tenants share calls of the backend, over real
// connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/backend_factory.h"
#include "server/rpc/kv_cache_service.h"
#include "tests/e2e/test_server.h"
#include "tests/server/support/faulty_backend.h"

namespace oscarkv::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

// Records how many items each call has, and holds calls up while it is told to.
class HeldBackend : public FaultyBackend {
 public:
  using FaultyBackend::FaultyBackend;

  KernelStatus Append(std::span<const AppendItem> items) override {
    Wait(&appends_, items.size());
    return FaultyBackend::Append(items);
  }
  KernelStatus Attend(std::span<const AttendItem> items) override {
    Wait(&attends_, items.size());
    if (items.size() > 1 && fails_shared_)
      return KernelStatus::ResourceExhausted("too much at once");
    return FaultyBackend::Attend(items);
  }

  void Hold() {
    MutexLock lock(&mutex_);
    held_ = true;
  }
  void GoOn() {
    MutexLock lock(&mutex_);
    held_ = false;
    changed_.SignalAll();
  }
  void WaitForHeld(int calls) {
    MutexLock lock(&mutex_);
    while (waiting_ < calls) changed_.Wait(&mutex_);
  }
  // Attend fails where it has more than one item.
  void FailShared() { fails_shared_ = true; }
  std::vector<std::size_t> appends() {
    MutexLock lock(&mutex_);
    return appends_;
  }
  std::vector<std::size_t> attends() {
    MutexLock lock(&mutex_);
    return attends_;
  }

 private:
  void Wait(std::vector<std::size_t>* calls, std::size_t items) {
    MutexLock lock(&mutex_);
    calls->push_back(items);
    ++waiting_;
    changed_.SignalAll();
    while (held_) changed_.Wait(&mutex_);
    --waiting_;
  }

  Mutex mutex_;
  CondVar changed_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::size_t> appends_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::size_t> attends_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> fails_shared_ = false;
};

class BatchingTest : public ::testing::Test {
 protected:
  BatchingTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::KvCacheService::NewStub(Connect("127.0.0.1:" + std::to_string(port)));
  }
  ~BatchingTest() override {
    backend_.GoOn();
    calls_.clear();
    EXPECT_TRUE(service_.Drain(absl::Now() + absl::Seconds(60)));
    server_->Shutdown();
  }

  struct Reply {
    absl::Status status;
    v1::AttendResponse response;
  };

  // A session with 40 tokens in each layer.
  v1::Session Fill(const std::string& id, const std::string& tenant = "") {
    v1::CreateSessionRequest request = CreateRequest(id, {});
    request.set_tenant(tenant);
    v1::CreateSessionResponse response;
    EXPECT_TRUE(Call(*stub_, &Stub::CreateSession, request, response).ok());
    v1::Session session = response.session();
    for (const int layer : {0, 1}) Append(*stub_, AppendRequestOf({}, session, layer, 0, 40));
    return session;
  }

  // Two batches are under way and stay so: what is sent now waits.
  void HoldAll() {
    holders_ = {Create(*stub_, "holder1"), Create(*stub_, "holder2")};
    backend_.Hold();
    for (int i = 0; i < 2; ++i) {
      calls_.push_back(std::async(std::launch::async, [this, i] {
        Append(*stub_, AppendRequestOf({}, holders_[static_cast<std::size_t>(i)], 0, 0, 1));
      }));
      backend_.WaitForHeld(i + 1);
    }
  }

  std::future<Reply> Send(const v1::AttendRequest& request,
                          std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    return std::async(std::launch::async, [this, request, timeout] {
      Reply reply;
      reply.status = Call(*stub_, &Stub::Attend, request, reply.response, timeout);
      return reply;
    });
  }

  void WaitUntilQueued(std::int64_t works) {
    while (service_.Stats().waiting < works) std::this_thread::yield();
  }

  static v1::AttendRequest Step(const v1::Session& session, int layer = 0) {
    return AttendRequestOf({}, session, layer, 40, 1, 1);
  }

  static constexpr int kPlaces = 64;

  const std::unique_ptr<Backend> cpu_ = MakeBackend({}).backend;
  HeldBackend backend_{cpu_.get()};
  SessionStore store_{&backend_, {.memory_budget_bytes = 64 << 20}};
  KvCacheService service_{
      &store_, {.max_message_bytes = 4 << 20}, {.threads = 4, .max_concurrent_requests = kPlaces}};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Stub> stub_;
  std::vector<v1::Session> holders_;
  std::vector<std::future<void>> calls_;
};

TEST_F(BatchingTest, RequestsThatWaitShareOneCallAndGetWhatTheyWouldGetAlone) {
  constexpr int kSessions = 6;
  std::vector<v1::AttendResponse> alone;
  std::vector<v1::AttendRequest> requests;
  for (int i = 0; i < kSessions; ++i) {
    const v1::Session twin = Fill("alone" + std::to_string(i));
    alone.push_back(Attend(*stub_, Step(twin, i % 2)));
    requests.push_back(Step(Fill("together" + std::to_string(i)), i % 2));
    // Dtypes and masks need not be the same.
    if (i == 3) requests.back().set_output_dtype(v1::DATA_TYPE_FP32);
    if (i == 4) requests.back().set_mask(v1::MASK_NONE);
  }
  EXPECT_THAT(backend_.attends(), Contains(1).Times(kSessions));
  HoldAll();
  std::vector<std::future<Reply>> replies;
  for (const v1::AttendRequest& request : requests) replies.push_back(Send(request));
  WaitUntilQueued(kSessions);
  backend_.GoOn();
  for (int i = 0; i < kSessions; ++i) {
    const Reply reply = replies[static_cast<std::size_t>(i)].get();
    ASSERT_TRUE(reply.status.ok()) << reply.status;
    const v1::AttendResponse& expected = alone[static_cast<std::size_t>(i)];
    EXPECT_EQ(reply.response.log_sum_exp().raw(), expected.log_sum_exp().raw()) << i;
    EXPECT_EQ(reply.response.results(0).length(), 41);
    if (i == 3) continue;
    EXPECT_EQ(reply.response.output().raw(), expected.output().raw()) << i;
  }
  EXPECT_EQ(backend_.attends().size(), kSessions + 1U);
  EXPECT_EQ(backend_.attends().back(), static_cast<std::size_t>(kSessions));
  const KindStats stats = service_.Stats().of(WorkKind::kAttend);
  EXPECT_EQ(stats.batch_works.max, kSessions);
  EXPECT_EQ(stats.batch_works.count, kSessions + 1);
}

TEST_F(BatchingTest, StreamsShareCallsWithOtherRequests) {
  const v1::Session unary = Fill("unary");
  const v1::Session streamed = Fill("streamed");
  grpc::ClientContext context;
  const auto stream = stub_->Decode(&context);
  HoldAll();
  v1::DecodeRequest request;
  *request.mutable_attend() = Step(streamed);
  ASSERT_TRUE(stream->Write(request));
  *request.mutable_attend() = AttendRequestOf({}, streamed, 0, 41, 1, 1);  // sent ahead
  ASSERT_TRUE(stream->Write(request));
  std::future<Reply> reply = Send(Step(unary));
  WaitUntilQueued(2);
  backend_.GoOn();
  EXPECT_EQ(reply.get().response.results(0).length(), 41);
  for (const std::int64_t length : {41, 42}) {
    v1::DecodeResponse response;
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.attend().results(0).length(), length);
  }
  EXPECT_THAT(backend_.attends(), ElementsAre(2, 1));
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

// The end of its stream does not wait in the queue once more.
TEST_F(BatchingTest, AReadIsOneWorkForEachRun) {
  const v1::Session session = Fill("a");
  const std::int64_t before = service_.Stats().of(WorkKind::kOther).queue_microseconds.count;
  for (const int tokens : {40, 0}) {
    v1::ReadTokensRequest request;
    request.set_session(session.id());
    request.set_generation(session.generation());
    request.set_num_tokens(tokens);
    grpc::ClientContext context;
    const auto stream = stub_->ReadTokens(&context, request);
    v1::ReadTokensResponse run;
    EXPECT_EQ(stream->Read(&run), tokens > 0);
    EXPECT_FALSE(stream->Read(&run));
    EXPECT_TRUE(stream->Finish().ok());
  }
  EXPECT_EQ(service_.Stats().of(WorkKind::kOther).queue_microseconds.count - before, 2);
}

TEST_F(BatchingTest, WhatIsWrongWithOneRequestIsItsOwnAffair) {
  const v1::Session good = Fill("good");
  const v1::Session ahead = Fill("ahead");
  v1::Session old = Fill("old");
  const v1::Session gone = Fill("gone");
  old.set_generation(1);
  HoldAll();
  std::future<Reply> good_reply = Send(Step(good));
  std::future<Reply> ahead_reply = Send(AttendRequestOf({}, ahead, 0, 50, 1, 1));
  std::future<Reply> old_reply = Send(Step(old));
  std::future<Reply> gone_reply = Send(Step(gone));
  WaitUntilQueued(4);
  ASSERT_TRUE(store_.Delete("gone", 0).ok());
  backend_.GoOn();
  const Reply reply = good_reply.get();
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_EQ(reply.response.results(0).status().code(), 0);
  const auto reason = [](std::future<Reply>& future) {
    return ReasonOf(future.get().response.results(0).status());
  };
  EXPECT_EQ(reason(ahead_reply), "LENGTH_MISMATCH");
  EXPECT_EQ(reason(old_reply), "GENERATION_MISMATCH");
  EXPECT_EQ(reason(gone_reply), "SESSION_NOT_FOUND");
  EXPECT_THAT(backend_.attends(), ElementsAre(1));
  EXPECT_EQ(service_.Stats().of(WorkKind::kAttend).batch_works.max, 4);
}

// What a call cannot do for all of them it may do for each.
TEST_F(BatchingTest, ACallThatFailsForAllIsMadeForEach) {
  const std::vector<v1::Session> sessions = {Fill("a"), Fill("b"), Fill("c")};
  HoldAll();
  std::vector<std::future<Reply>> replies;
  for (const v1::Session& session : sessions) replies.push_back(Send(Step(session)));
  WaitUntilQueued(3);
  backend_.FailShared();
  backend_.GoOn();
  for (std::future<Reply>& future : replies) {
    const Reply reply = future.get();
    EXPECT_TRUE(reply.status.ok()) << reply.status;
    EXPECT_EQ(reply.response.results(0).status().code(), 0);
    EXPECT_EQ(reply.response.results(0).length(), 41);
    EXPECT_FALSE(reply.response.results(0).repeated());
  }
  EXPECT_THAT(backend_.attends(), ElementsAre(3, 1, 1, 1));
}

TEST_F(BatchingTest, OneSessionsRequestsWaitForEachOther) {
  const v1::Session session = Fill("a");
  HoldAll();
  std::future<Reply> first = Send(Step(session, 0));
  WaitUntilQueued(1);
  std::future<Reply> second = Send(AttendRequestOf({}, session, 0, 41, 1, 1));
  WaitUntilQueued(2);
  std::future<Reply> other_layer = Send(Step(session, 1));
  WaitUntilQueued(3);
  backend_.GoOn();
  EXPECT_EQ(first.get().response.results(0).length(), 41);
  EXPECT_EQ(second.get().response.results(0).length(), 42);
  EXPECT_EQ(other_layer.get().response.results(0).length(), 41);
  EXPECT_THAT(backend_.attends(), ElementsAre(1, 1, 1));
}

// They wait in the queue, not on its threads.
TEST_F(BatchingTest, RequestsThatWaitForASessionKeepNoOtherWaiting) {
  const v1::Session busy = Fill("busy");
  const v1::Session other = Fill("other");
  backend_.Hold();
  std::future<Reply> step = Send(Step(busy));
  backend_.WaitForHeld(1);
  std::vector<std::future<void>> waiting;
  constexpr int kEach = 8;
  for (int i = 0; i < kEach; ++i) {
    waiting.push_back(std::async(std::launch::async, [&] {
      v1::ReadTokensRequest request;
      request.set_session(busy.id());
      request.set_generation(busy.generation());
      grpc::ClientContext context;
      const auto reader = stub_->ReadTokens(&context, request);
      v1::ReadTokensResponse run;
      while (reader->Read(&run)) {
      }
      static_cast<void>(reader->Finish());  // the session may have been truncated before
    }));
    waiting.push_back(std::async(std::launch::async, [&] {
      v1::TruncateSessionRequest request;
      request.set_session(busy.id());
      request.set_generation(busy.generation());
      request.set_length(20);
      v1::TruncateSessionResponse response;
      static_cast<void>(Call(*stub_, &Stub::TruncateSession, request, response));  // one succeeds
    }));
  }
  WaitUntilQueued(2 * kEach);
  EXPECT_EQ(Get(*stub_, "busy").layer_states(0).length(), 40);
  std::future<Reply> other_step = Send(Step(other));
  backend_.WaitForHeld(2);
  backend_.GoOn();
  EXPECT_EQ(step.get().response.results(0).length(), 41);
  EXPECT_EQ(other_step.get().response.results(0).length(), 41);
  waiting.clear();
  EXPECT_EQ(Get(*stub_, "busy").layer_states(0).length(), 20);
}

TEST_F(BatchingTest, WhoGivesUpWhileWaitingIsLeftOut) {
  const v1::Session hurried = Fill("hurried");
  const v1::Session patient = Fill("patient");
  HoldAll();
  constexpr std::chrono::milliseconds kTimeout(20);
  std::future<Reply> late = Send(Step(hurried), kTimeout);
  std::future<Reply> reply = Send(Step(patient));
  WaitUntilQueued(2);
  EXPECT_EQ(late.get().status.code(), absl::StatusCode::kDeadlineExceeded);
  std::this_thread::sleep_for(5 * kTimeout);  // the server counts from when the request arrived
  backend_.GoOn();
  EXPECT_EQ(reply.get().response.results(0).length(), 41);
  EXPECT_THAT(backend_.attends(), ElementsAre(1));
  EXPECT_EQ(Get(*stub_, "hurried").layer_states(0).length(), 40);
}

// Whether the deadline passed or the client cancelled, of a call or a stream.
TEST_F(BatchingTest, WhoHasGivenUpTakesNothingOfABatch) {
  const v1::Session hurried = Fill("hurried");
  const v1::Session streamed = Fill("streamed");
  const v1::Session patient = Fill("patient");
  HoldAll();
  std::future<Reply> late = Send(Step(hurried), std::chrono::milliseconds(20));
  grpc::ClientContext decoding;
  const auto decode = stub_->Decode(&decoding);
  v1::DecodeRequest request;
  *request.mutable_attend() = Step(streamed);
  ASSERT_TRUE(decode->Write(request));
  v1::ReadTokensRequest read;
  read.set_session("holder1");
  grpc::ClientContext reading;
  const auto tokens = stub_->ReadTokens(&reading, read);
  WaitUntilQueued(3);
  decoding.TryCancel();
  reading.TryCancel();
  EXPECT_EQ(late.get().status.code(), absl::StatusCode::kDeadlineExceeded);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the server is told a little later
  std::future<Reply> reply = Send(Step(patient));
  WaitUntilQueued(1);
  backend_.GoOn();
  EXPECT_EQ(reply.get().response.results(0).length(), 41);
  EXPECT_FALSE(decode->Finish().ok() || tokens->Finish().ok());
  EXPECT_EQ(service_.Stats().of(WorkKind::kAttend).batch_works.count, 1);
  EXPECT_EQ(service_.Stats().of(WorkKind::kAttend).batch_works.max, 1);
  EXPECT_EQ(Get(*stub_, "streamed").layer_states(0).length(), 40);
}

TEST_F(BatchingTest, ATenantThatHasAllItsPlacesLeavesOneToAnother) {
  const v1::Session many = Fill("many", "many");
  const v1::Session one = Fill("one", "one");
  HoldAll();
  std::vector<std::future<Reply>> replies;
  for (int i = 0; i < kPlaces + 10; ++i) replies.push_back(Send(Step(many)));
  const auto refused = [&] {
    return std::count_if(replies.begin(), replies.end(), [](const std::future<Reply>& reply) {
      return reply.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    });
  };
  while (refused() < 10) std::this_thread::yield();

  // A stream is told in its reply, and goes on.
  grpc::ClientContext context;
  const auto stream = stub_->Decode(&context);
  v1::DecodeRequest request;
  *request.mutable_attend() = Step(many);
  v1::DecodeResponse response;
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(ReasonOf(response.status()), "TOO_MANY_REQUESTS");

  const std::int64_t waiting = service_.Stats().waiting;
  std::future<Reply> reply = Send(Step(one));
  WaitUntilQueued(waiting + 1);
  backend_.GoOn();
  EXPECT_EQ(reply.get().response.results(0).length(), 41);
  for (std::future<Reply>& other : replies) {
    const absl::Status status = other.get().status;
    EXPECT_TRUE(status.ok() || ReasonOf(status) == "TOO_MANY_REQUESTS") << status;
  }
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status().code(), 0) << response.status().message();
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(BatchingTest, ADrainLetsThoseThatWaitEnd) {
  const v1::Session session = Fill("a");
  HoldAll();
  std::future<Reply> reply = Send(Step(session));
  WaitUntilQueued(1);
  std::future<bool> drained = std::async(
      std::launch::async, [&] { return service_.Drain(absl::Now() + absl::Seconds(60)); });
  // Calls that do not wait behind those that are held.
  const auto info = [&] {
    v1::GetServerInfoResponse response;
    return Call(*stub_, &Stub::GetServerInfo, v1::GetServerInfoRequest(), response).code();
  };
  while (info() != absl::StatusCode::kUnavailable) {
  }
  backend_.GoOn();
  EXPECT_TRUE(reply.get().status.ok());
  EXPECT_TRUE(drained.get());
}

}  // namespace
}  // namespace oscarkv::testing
