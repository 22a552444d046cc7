#include "client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "client/error_info.h"
#include "tests/client/fake_service.h"

namespace oscarkv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

const grpc::Status kLost(grpc::UNAVAILABLE, "the connection was lost");

ClientOptions QuickRetries() {
  ClientOptions options;
  options.retry.initial_backoff = absl::Milliseconds(1);
  options.retry.max_backoff = absl::Milliseconds(2);
  return options;
}

class ClientTest : public testing::Test {
 protected:
  void SetUp() override {
    auto client = Client::Connect(service_.address(), QuickRetries());
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  static v1::AppendRequest OneAppend(bool with_expected_length) {
    v1::AppendRequest request;
    v1::Item& item = *request.add_items();
    item.set_session("s");
    item.set_num_tokens(1);
    if (with_expected_length) item.set_expected_length(0);
    return request;
  }
  static v1::AttendRequest OneAttend(int num_tokens, bool with_expected_length) {
    v1::AttendRequest request;
    v1::Item& item = *request.add_items();
    item.set_session("s");
    item.set_num_tokens(num_tokens);
    item.set_num_query_tokens(1);
    if (with_expected_length) item.set_expected_length(0);
    return request;
  }

  absl::StatusOr<v1::Session> Import(const std::string& file,
                                     const v1::ImportSessionHeader& header = {}) {
    return client_->ImportSession(header, [&file](std::int64_t offset, std::int64_t most) {
      return file.substr(static_cast<std::size_t>(offset), static_cast<std::size_t>(most));
    });
  }
  // Appends what comes to `file`.
  absl::StatusOr<v1::ExportSessionHeader> Export(std::string& file,
                                                 const CallOptions& options = {}) {
    return client_->ExportSession(
        "s", 5,
        [&file](std::string_view bytes) {
          file += bytes;
          return absl::OkStatus();
        },
        options);
  }

  FakeService service_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientTest, LearnsTheServersLimits) {
  EXPECT_EQ(client_->server_info().version(), "1.2.3");
  EXPECT_EQ(client_->max_send_message_bytes(), FakeService::kMaxReceiveBytes);
  EXPECT_EQ(client_->max_receive_message_bytes(), FakeService::kMaxSendBytes);
}

TEST_F(ClientTest, OptionsLowerTheLimitsButCannotRaiseWhatTheServerReceives) {
  ClientOptions options = QuickRetries();
  options.max_send_message_bytes = 1000;
  options.max_receive_message_bytes = 64 << 20;
  auto client = Client::Connect(service_.address(), options);
  ASSERT_TRUE(client.ok());
  EXPECT_EQ((*client)->max_send_message_bytes(), 1000);
  EXPECT_EQ((*client)->max_receive_message_bytes(), 64 << 20);
  v1::AppendRequest large = OneAppend(true);
  large.mutable_key()->set_raw(std::string(2000, 'x'));
  EXPECT_TRUE(absl::IsResourceExhausted((*client)->Append(large).status()));
  EXPECT_EQ(service_.calls("Append"), 0);

  options.max_send_message_bytes = 64 << 20;
  client = Client::Connect(service_.address(), options);
  ASSERT_TRUE(client.ok());
  EXPECT_EQ((*client)->max_send_message_bytes(), FakeService::kMaxReceiveBytes);
}

TEST_F(ClientTest, ConnectFailsWithTheAddressWhereNobodyListens) {
  ClientOptions options = QuickRetries();
  options.connect_timeout = absl::Milliseconds(200);
  const auto client = Client::Connect("unix:/nonexistent/socket", options);
  EXPECT_TRUE(absl::IsUnavailable(client.status())) << client.status();
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("unix:/nonexistent/socket"));
}

TEST_F(ClientTest, ConnectWaitsForAServerThatStarts) {
  service_.Fail("GetServerInfo", 3, kLost);
  EXPECT_TRUE(Client::Connect(service_.address(), QuickRetries()).ok());
}

// Every method that is safe to repeat succeeds after two failures; every other is called once.
TEST_F(ClientTest, RepeatsExactlyWhatIsSafeToRepeat) {
  struct Case {
    std::string method;
    std::function<absl::Status()> call;
    bool repeatable;
  };
  const std::vector<Case> cases = {
      {"GetServerInfo", [&] { return client_->GetServerInfo().status(); }, true},
      {"CreateSession", [&] { return client_->CreateSession({}).status(); }, true},
      {"GetSession", [&] { return client_->GetSession("s").status(); }, true},
      {"ListSessions", [&] { return client_->ListSessions().status(); }, true},
      {"DeleteSession", [&] { return client_->DeleteSession("s"); }, false},
      {"ForkSession", [&] { return client_->ForkSession({}).status(); }, true},
      {"TruncateSession", [&] { return client_->TruncateSession("s", 1, 0).status(); }, true},
      {"UpdateSession", [&] { return client_->UpdateSession("s", {}).status(); }, true},
      {"EvictSession", [&] { return client_->EvictSession("s").status(); }, true},
      {"RestoreSession", [&] { return client_->RestoreSession("s").status(); }, true},
      {"CheckpointSession", [&] { return client_->CheckpointSession("s").status(); }, true},
      {"Append", [&] { return client_->Append(OneAppend(true)).status(); }, true},
      {"Append", [&] { return client_->Append(OneAppend(false)).status(); }, false},
      {"Attend", [&] { return client_->Attend(OneAttend(1, true)).status(); }, true},
      {"Attend", [&] { return client_->Attend(OneAttend(0, false)).status(); }, true},
      {"Attend", [&] { return client_->Attend(OneAttend(1, false)).status(); }, false},
      {"ReadTokens",
       [&] { return client_->ReadTokens({}, [](const auto&) { return absl::OkStatus(); }); }, true},
      {"ImportSession", [&] { return Import("file").status(); }, true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.method);
    const int before = service_.calls(c.method);
    service_.Fail(c.method, 2, kLost);
    const absl::Status status = c.call();
    if (c.repeatable) {
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_GE(service_.calls(c.method) - before, 3);
    } else {
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_EQ(service_.calls(c.method) - before, 1);
      c.call().IgnoreError();  // takes the failure that is left
    }
  }
}

TEST_F(ClientTest, ARepeatedCreateKeepsItsRequestId) {
  service_.Fail("CreateSession", 2, kLost);
  v1::CreateSessionRequest request;
  request.set_session("s");
  ASSERT_TRUE(client_->CreateSession(request).ok());
  const std::vector<std::string> ids = service_.create_request_ids();
  ASSERT_THAT(ids, SizeIs(3));
  EXPECT_THAT(ids[0], testing::MatchesRegex("[0-9a-f-]{36}"));
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_EQ(ids[0], ids[2]);
  request.set_request_id("mine");
  ASSERT_TRUE(client_->CreateSession(request).ok());
  EXPECT_EQ(service_.create_request_ids().back(), "mine");
}

TEST_F(ClientTest, ARepeatedTruncateKeepsItsRequestIdAndAnotherHasItsOwn) {
  service_.Fail("TruncateSession", 2, kLost);
  ASSERT_TRUE(client_->TruncateSession("s", 1, 0).ok());
  ASSERT_TRUE(client_->TruncateSession("s", 2, 0).ok());
  const std::vector<std::string> ids = service_.truncate_request_ids();
  ASSERT_THAT(ids, SizeIs(4));
  EXPECT_THAT(ids[0], testing::MatchesRegex("[0-9a-f-]{36}"));
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_EQ(ids[0], ids[2]);
  EXPECT_NE(ids[0], ids[3]);
}

TEST_F(ClientTest, ARepeatedForkKeepsItsRequestIds) {
  service_.Fail("ForkSession", 1, kLost);
  v1::ForkSessionRequest request;
  request.add_forks()->set_session("a");
  request.add_forks()->set_request_id("mine");
  ASSERT_TRUE(client_->ForkSession(request).ok());
  const std::vector<std::string> ids = service_.fork_request_ids();
  ASSERT_THAT(ids, SizeIs(4));
  EXPECT_THAT(ids[0], testing::MatchesRegex("[0-9a-f-]{36}"));
  EXPECT_EQ(ids[0], ids[2]);
  EXPECT_EQ(ids[1], "mine");
  EXPECT_EQ(ids[3], "mine");
}

TEST_F(ClientTest, GivesUpAfterTheLastTry) {
  service_.Fail("GetSession", 100, kLost);
  EXPECT_TRUE(absl::IsUnavailable(client_->GetSession("s").status()));
  EXPECT_EQ(service_.calls("GetSession"), RetryOptions().max_attempts);
}

TEST_F(ClientTest, DoesNotRepeatErrorsThatStay) {
  for (const grpc::StatusCode code :
       {grpc::INVALID_ARGUMENT, grpc::NOT_FOUND, grpc::FAILED_PRECONDITION, grpc::INTERNAL,
        grpc::DEADLINE_EXCEEDED, grpc::RESOURCE_EXHAUSTED, grpc::UNIMPLEMENTED}) {
    const int before = service_.calls("GetSession");
    service_.Fail("GetSession", 1, grpc::Status(code, "no"));
    EXPECT_EQ(static_cast<int>(client_->GetSession("s").status().code()), code);
    EXPECT_EQ(service_.calls("GetSession") - before, 1);
  }
}

TEST_F(ClientTest, WaitsAsLongAsTheServerAsks) {
  const absl::Duration wish = absl::Milliseconds(50);
  service_.Fail("GetSession", 1,
                MakeGrpcStatus(grpc::RESOURCE_EXHAUSTED, "TOO_MANY_REQUESTS", wish));
  const absl::Time start = absl::Now();
  EXPECT_TRUE(client_->GetSession("s").ok());
  EXPECT_GE(absl::Now() - start, wish);
}

TEST_F(ClientTest, DoesNotWaitBeyondTheDeadline) {
  service_.Fail("GetSession", 1, MakeGrpcStatus(grpc::UNAVAILABLE, "DRAINING", absl::Hours(1)));
  EXPECT_TRUE(absl::IsUnavailable(client_->GetSession("s").status()));
}

TEST_F(ClientTest, EveryUnaryCallHasADeadline) {
  ClientOptions options = QuickRetries();
  options.timeout = absl::Milliseconds(100);
  auto client = Client::Connect(service_.address(), options);
  ASSERT_TRUE(client.ok());
  for (const char* method :
       {"GetServerInfo", "CreateSession", "GetSession", "ListSessions", "DeleteSession",
        "ForkSession", "TruncateSession", "Append", "Attend"}) {
    service_.Delay(method, absl::Milliseconds(300));
  }
  Client& slow = **client;
  EXPECT_TRUE(absl::IsDeadlineExceeded(slow.GetServerInfo().status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(slow.CreateSession({}).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(slow.GetSession("s").status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(slow.ListSessions().status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(slow.DeleteSession("s")));
  EXPECT_TRUE(absl::IsDeadlineExceeded(slow.ForkSession({}).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(slow.TruncateSession("s", 1, 0).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(slow.Append(OneAppend(true)).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(slow.Attend(OneAttend(1, true)).status()));
  EXPECT_TRUE(slow.GetSession("s", {.timeout = absl::Seconds(20)}).ok());
}

TEST_F(ClientTest, ErrorsCarryTheServersDetails) {
  service_.Fail("GetSession", 1, MakeGrpcStatus(grpc::NOT_FOUND, "SESSION_NOT_FOUND"));
  const absl::Status status = client_->GetSession("s").status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(status.message(), "injected SESSION_NOT_FOUND");
  const auto info = ErrorInfoOf(status);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->reason(), "SESSION_NOT_FOUND");
  EXPECT_EQ(info->domain(), "oscarkv");
  EXPECT_EQ(info->metadata().at("field"), "items[0].session");
  EXPECT_FALSE(RetryDelayOf(status).has_value());
}

TEST_F(ClientTest, ItemsFailByThemselves) {
  v1::AppendRequest request = OneAppend(true);
  *request.add_items() = request.items(0);
  request.mutable_items(1)->set_session("missing");
  const auto response = client_->Append(request);
  ASSERT_TRUE(response.ok());
  EXPECT_TRUE(StatusOf(response->results(0)).ok());
  const absl::Status error = FirstItemError(*response);
  EXPECT_TRUE(absl::IsNotFound(error));
  EXPECT_EQ(ErrorInfoOf(error)->reason(), "SESSION_NOT_FOUND");
}

TEST_F(ClientTest, ListsAllPages) {
  const auto sessions = client_->ListSessions();
  ASSERT_TRUE(sessions.ok());
  std::vector<std::string> ids;
  for (const v1::Session& session : *sessions) ids.push_back(session.id());
  EXPECT_THAT(ids, ElementsAre("a", "b", "c"));
}

TEST_F(ClientTest, ManyThreadsMayCall) {
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string id = std::to_string(100 * t + i);
        const auto session = client_->GetSession(id);
        if (!session.ok() || session->id() != id) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
}

// ------------------------------------------------------------------------------------ ReadTokens

TEST_F(ClientTest, ReadsTokensInOrder) {
  std::vector<std::int64_t> begins;
  ASSERT_TRUE(client_
                  ->ReadTokens({},
                               [&](const v1::ReadTokensResponse& run) {
                                 begins.push_back(run.begin());
                                 return absl::OkStatus();
                               })
                  .ok());
  EXPECT_THAT(begins, ElementsAre(0, 4, 8));
}

TEST_F(ClientTest, ReadTokensGoesOnWhereItBroke) {
  v1::ReadTokensRequest request;
  request.set_begin(1);
  request.set_num_tokens(9);
  service_.BreakReadAfter(4);
  std::vector<std::int64_t> begins;
  ASSERT_TRUE(client_
                  ->ReadTokens(request,
                               [&](const v1::ReadTokensResponse& run) {
                                 begins.push_back(run.begin());
                                 return absl::OkStatus();
                               })
                  .ok());
  EXPECT_THAT(begins, ElementsAre(1, 5, 9));
  const auto reads = service_.reads();
  ASSERT_THAT(reads, SizeIs(2));
  EXPECT_EQ(reads[1].begin(), 5);
  EXPECT_EQ(reads[1].num_tokens(), 5);
}

TEST_F(ClientTest, ReadTokensReturnsTheCallersError) {
  int calls = 0;
  const absl::Status status = client_->ReadTokens({}, [&](const v1::ReadTokensResponse&) {
    ++calls;
    return absl::UnavailableError("enough");
  });
  EXPECT_EQ(status, absl::UnavailableError("enough"));
  EXPECT_EQ(calls, 1);
}

// ------------------------------------------------------------------------------ export and import

TEST_F(ClientTest, ExportsAFilePieceByPiece) {
  std::string file;
  const auto header = Export(file);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->generation(), 5);
  EXPECT_EQ(file, "onetwothree");
}

TEST_F(ClientTest, AnExportIsRepeatedOnlyWhereNothingHasCome) {
  std::string file;
  service_.BreakExportAfter(0);
  EXPECT_TRUE(Export(file).ok());
  EXPECT_EQ(file, "onetwothree");
  EXPECT_EQ(service_.calls("ExportSession"), 2);
  file.clear();
  service_.BreakExportAfter(2);
  EXPECT_TRUE(absl::IsUnavailable(Export(file).status()));
  EXPECT_EQ(file, "onetwo");
  EXPECT_EQ(service_.calls("ExportSession"), 3);
}

TEST_F(ClientTest, ExportReturnsTheCallersError) {
  int calls = 0;
  const absl::Status status = client_
                                  ->ExportSession("s", 0,
                                                  [&](std::string_view) {
                                                    ++calls;
                                                    return absl::UnavailableError("enough");
                                                  })
                                  .status();
  EXPECT_EQ(status, absl::UnavailableError("enough"));
  EXPECT_EQ(calls, 1);
}

TEST_F(ClientTest, ImportsAFileInMessagesThatTheServerTakes) {
  std::string file;
  for (int i = 0; file.size() < 3'000'000; ++i) file += std::to_string(i);
  v1::ImportSessionHeader header;
  header.set_session("s");
  const auto session = Import(file, header);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ(session->id(), "s");
  EXPECT_TRUE(service_.imported() == file);
  EXPECT_LT(service_.largest_piece(), FakeService::kMaxReceiveBytes);
}

TEST_F(ClientTest, ARepeatedImportKeepsItsRequestIdAndSendsTheFileAgain) {
  service_.Fail("ImportSession", 2, kLost);
  ASSERT_TRUE(Import("all of it").ok());
  EXPECT_EQ(service_.imported(), "all of it");
  const auto headers = service_.import_headers();
  ASSERT_THAT(headers, SizeIs(3));
  EXPECT_THAT(headers[0].request_id(), testing::MatchesRegex("[0-9a-f-]{36}"));
  EXPECT_EQ(headers[0].request_id(), headers[1].request_id());
  EXPECT_EQ(headers[0].request_id(), headers[2].request_id());
  v1::ImportSessionHeader header;
  header.set_request_id("mine");
  ASSERT_TRUE(Import("", header).ok());
  EXPECT_EQ(service_.import_headers().back().request_id(), "mine");
}

TEST_F(ClientTest, ImportReturnsTheReadersError) {
  int calls = 0;
  const absl::Status status =
      client_
          ->ImportSession({},
                          [&](std::int64_t, std::int64_t) -> absl::StatusOr<std::string> {
                            if (++calls == 2) return absl::UnavailableError("the disk is gone");
                            return std::string("bytes");
                          })
          .status();
  EXPECT_EQ(status, absl::UnavailableError("the disk is gone"));
  EXPECT_EQ(calls, 2);
}

TEST_F(ClientTest, ExportsAndImportsHaveDeadlines) {
  for (const char* method : {"ExportSession", "ImportSession"}) {
    service_.Delay(method, absl::Milliseconds(300));
  }
  std::string file;
  const CallOptions options{.timeout = absl::Milliseconds(50)};
  EXPECT_TRUE(absl::IsDeadlineExceeded(Export(file, options).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      client_
          ->ImportSession(
              {}, [](std::int64_t, std::int64_t) { return std::string(); }, options)
          .status()));
}

// --------------------------------------------------------------------------------------- streams

TEST_F(ClientTest, AStreamAnswersInOrderAndOutlivesErrors) {
  auto stream = client_->OpenAppendStream();
  v1::AppendRequest request = OneAppend(true);
  request.mutable_items(0)->set_expected_length(5);
  ASSERT_TRUE(stream->Write(request).ok());
  ASSERT_TRUE(stream->Write({}).ok());
  request.mutable_items(0)->set_expected_length(6);
  ASSERT_TRUE(stream->Write(request).ok());

  EXPECT_EQ(stream->Read()->results(0).length(), 6);
  const auto failed = stream->Read();
  EXPECT_TRUE(absl::IsInvalidArgument(failed.status()));
  EXPECT_EQ(ErrorInfoOf(failed.status())->reason(), "INVALID_FIELD");
  EXPECT_FALSE(stream->broken());
  EXPECT_EQ(stream->Read()->results(0).length(), 7);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ClientTest, ABrokenStreamSaysWhyAndKeepsEarlierReplies) {
  auto stream = client_->OpenAppendStream();
  v1::AppendRequest request = OneAppend(true);
  ASSERT_TRUE(stream->Write(request).ok());
  request.set_layer(13);
  ASSERT_TRUE(stream->Write(request).ok());
  absl::Status status;
  while (status.ok()) {
    absl::SleepFor(absl::Milliseconds(1));
    status = stream->Write(request);
  }
  EXPECT_EQ(ErrorInfoOf(status)->reason(), "DRAINING");
  EXPECT_TRUE(stream->broken());
  EXPECT_TRUE(stream->Read().ok());
  EXPECT_EQ(stream->Read().status(), status);
  EXPECT_EQ(stream->Read().status(), status);
  EXPECT_EQ(stream->Finish(), status);
}

TEST_F(ClientTest, CancelEndsAWaitingRead) {
  auto stream = client_->OpenDecodeStream();
  std::thread reader(
      [&] { EXPECT_TRUE(absl::IsCancelled(stream->Read().status())) << "not cancelled"; });
  stream->Cancel();
  reader.join();
  EXPECT_TRUE(absl::IsCancelled(stream->Write({})));
}

TEST_F(ClientTest, StreamsHaveDeadlines) {
  auto stream = client_->OpenDecodeStream({.timeout = absl::Milliseconds(50)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(stream->Read().status()));
}

TEST_F(ClientTest, DecodeStreamReturnsOutputs) {
  auto stream = client_->OpenDecodeStream();
  v1::AttendRequest request = OneAttend(1, true);
  request.mutable_query()->set_raw("abcd");
  const auto response = stream->Call(request);
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->output().raw(), "abcd");
}

}  // namespace
}  // namespace oscarkv
