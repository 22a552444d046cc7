// Sessions that move as files from server to server, and what becomes of transfers that end early.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/error.h"
#include "tests/e2e/test_server.h"

namespace oscarkv::testing {
namespace {

// 16 KiB a token, stored as sent: a thousand are more than a connection buffers.
constexpr TestModel kWide = {.layers = 1, .query_heads = 16, .kv_heads = 16, .dim = 256};
constexpr int kWideTokens = 1000;

v1::Session CreateWide(Stub& stub) {
  v1::CreateSessionRequest request = CreateRequest("wide", kWide);
  request.mutable_codec()->set_key_bits(16);
  request.mutable_codec()->set_value_bits(16);
  v1::CreateSessionResponse created;
  const absl::Status s = Call(stub, &Stub::CreateSession, request, created);
  EXPECT_TRUE(s.ok()) << s;
  for (int begin = 0; begin < kWideTokens; begin += 100) {
    Append(stub, AppendRequestOf(kWide, created.session(), 0, begin, 100));
  }
  return created.session();
}

v1::Session CreateWith(Stub& stub, const std::string& id, int tokens) {
  const v1::Session session = Create(stub, id);
  for (const int layer : {0, 1}) Append(stub, AppendRequestOf({}, session, layer, 0, tokens));
  return Get(stub, id);
}

v1::GetServerInfoResponse Info(Stub& stub) {
  v1::GetServerInfoResponse info;
  const absl::Status s = Call(stub, &Stub::GetServerInfo, v1::GetServerInfoRequest(), info);
  EXPECT_TRUE(s.ok()) << s;
  return info;
}

// Whether the server comes to hold what it held before: a client that leaves is noticed in time.
void ExpectHoldsAgain(Stub& stub, const v1::GetServerInfoResponse& before) {
  const absl::Time end = absl::Now() + absl::Seconds(30);
  v1::GetServerInfoResponse now = Info(stub);
  while ((now.block_bytes() != before.block_bytes() ||
          now.logical_bytes() != before.logical_bytes()) &&
         absl::Now() < end) {
    now = Info(stub);
  }
  EXPECT_EQ(now.block_bytes(), before.block_bytes());
  EXPECT_EQ(now.resident_bytes(), before.resident_bytes());
  EXPECT_EQ(now.logical_bytes(), before.logical_bytes());
  EXPECT_EQ(now.sessions(), before.sessions());
}

class Export {
 public:
  Export(Stub& stub, const std::string& session, std::uint64_t generation = 0,
         std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
    if (timeout) context_.set_deadline(std::chrono::system_clock::now() + *timeout);
    v1::ExportSessionRequest request;
    request.set_session(session);
    request.set_generation(generation);
    reader_ = stub.ExportSession(&context_, request);
  }

  // False at the end.
  bool ReadPiece() {
    v1::ExportSessionResponse piece;
    if (!reader_->Read(&piece)) return false;
    EXPECT_EQ(piece.has_header(), file_.empty());
    if (piece.has_header()) header_ = piece.header();
    EXPECT_LE(piece.data().size(), 1u << 20);
    file_ += piece.data();
    return true;
  }
  absl::Status Finish() {
    while (ReadPiece()) {
    }
    return FromGrpcStatus(reader_->Finish());
  }
  void Cancel() { context_.TryCancel(); }

  const std::string& file() const { return file_; }
  const v1::ExportSessionHeader& header() const { return header_; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::ExportSessionResponse>> reader_;
  v1::ExportSessionHeader header_;
  std::string file_;
};

std::string FileOf(Stub& stub, const std::string& session) {
  Export whole(stub, session);
  const absl::Status s = whole.Finish();
  EXPECT_TRUE(s.ok()) << s;
  return whole.file();
}

v1::ImportSessionHeader Header(const std::string& session, const std::string& request_id = "r") {
  v1::ImportSessionHeader header;
  header.set_session(session);
  header.set_request_id(request_id);
  return header;
}

class Import {
 public:
  explicit Import(Stub& stub, std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
    if (timeout) context_.set_deadline(std::chrono::system_clock::now() + *timeout);
    writer_ = stub.ImportSession(&context_, &response_);
  }

  // False once the server has ended the call.
  bool Send(const v1::ImportSessionHeader& header) {
    v1::ImportSessionRequest request;
    *request.mutable_header() = header;
    return writer_->Write(request);
  }
  bool Send(std::string_view file, std::size_t piece = 100'000) {
    v1::ImportSessionRequest request;
    for (; !file.empty(); file.remove_prefix(std::min(piece, file.size()))) {
      request.set_data(std::string(file.substr(0, piece)));
      if (!writer_->Write(request)) return false;
    }
    return true;
  }
  bool SendNothing() { return writer_->Write(v1::ImportSessionRequest()); }
  absl::Status Finish() {
    writer_->WritesDone();
    return FromGrpcStatus(writer_->Finish());
  }
  absl::Status WaitForEnd() { return FromGrpcStatus(writer_->Finish()); }
  void Cancel() { context_.TryCancel(); }

  const v1::Session& session() const { return response_.session(); }

 private:
  grpc::ClientContext context_;
  v1::ImportSessionResponse response_;
  std::unique_ptr<grpc::ClientWriter<v1::ImportSessionRequest>> writer_;
};

// `session`, where it is not null, becomes the answer.
absl::Status ImportFile(Stub& stub, const v1::ImportSessionHeader& header, std::string_view file,
                        v1::Session* session = nullptr) {
  Import import(stub);
  if (import.Send(header)) import.Send(file);
  const absl::Status s = import.Finish();
  if (session != nullptr) *session = import.session();
  return s;
}

TEST(TransferTest, ASessionMovesToAnotherServerAndAnswersTheSame) {
  TestServer from;
  TestServer to;
  const TestModel model;
  v1::CreateSessionRequest create = CreateRequest("a", model);
  create.set_tenant("one");
  create.set_model("m");
  create.set_position_base(77);
  v1::CreateSessionResponse created;
  ASSERT_TRUE(Call(from.stub(), &Stub::CreateSession, create, created).ok());
  const v1::Session& session = created.session();
  for (const int layer : {0, 1}) {
    for (int begin = 0; begin < 600; begin += 50) {
      Attend(from.stub(), AttendRequestOf(model, session, layer, begin, 50, 50));
    }
  }
  Append(from.stub(), AppendRequestOf(model, session, 1, 600, 10));

  Export whole(from.stub(), "a", session.generation());
  ASSERT_EQ(whole.Finish(), absl::OkStatus());
  EXPECT_EQ(whole.header().generation(), session.generation());
  EXPECT_EQ(whole.header().committed_length(), 600);
  EXPECT_THAT(whole.header().layer_lengths(), ::testing::ElementsAre(600, 610));

  v1::ImportSessionHeader header = Header("b");
  header.set_tenant("two");
  header.set_model("m");
  header.set_model_revision("");
  v1::Session moved;
  ASSERT_EQ(ImportFile(to.stub(), header, whole.file(), &moved), absl::OkStatus());
  EXPECT_EQ(moved.id(), "b");
  EXPECT_EQ(moved.tenant(), "two");
  EXPECT_EQ(moved.model(), "m");
  EXPECT_EQ(moved.position_base(), 77);
  EXPECT_EQ(moved.committed_length(), 600);
  ASSERT_EQ(moved.layers_size(), 2);
  const v1::Session source = Get(from.stub(), "a");
  for (const int i : {0, 1}) {
    EXPECT_EQ(moved.layers(i).SerializeAsString(), source.layers(i).SerializeAsString());
  }
  EXPECT_EQ(moved.DebugString(), Get(to.stub(), "b").DebugString());

  Append(from.stub(), AppendRequestOf(model, source, 0, 600, 10));
  Append(to.stub(), AppendRequestOf(model, moved, 0, 600, 10));
  for (int step = 610; step < 900; step += 10) {
    for (const int layer : {0, 1}) {
      const auto here = Attend(from.stub(), AttendRequestOf(model, source, layer, step, 10, 10));
      const auto there = Attend(to.stub(), AttendRequestOf(model, moved, layer, step, 10, 10));
      ASSERT_EQ(here.output().raw(), there.output().raw());
      ASSERT_EQ(here.log_sum_exp().raw(), there.log_sum_exp().raw());
    }
  }
  // What came back is exported as any session is; its id is the file's own if none is asked for.
  ASSERT_EQ(ImportFile(from.stub(), Header(""), FileOf(to.stub(), "b"), &moved), absl::OkStatus());
  EXPECT_EQ(moved.id(), "b");
  EXPECT_EQ(moved.tenant(), "two");
  EXPECT_EQ(moved.committed_length(), 900);
}

TEST(TransferTest, ExportTellsErrorsInItsStatus) {
  TestServer server;
  const v1::Session session = Create(server.stub(), "a");
  EXPECT_EQ(FieldOf(Export(server.stub(), "not an id").Finish()), "session");
  EXPECT_EQ(ReasonOf(Export(server.stub(), "nobody").Finish()), "SESSION_NOT_FOUND");
  EXPECT_EQ(ReasonOf(Export(server.stub(), "a", session.generation() + 1).Finish()),
            "GENERATION_MISMATCH");
  EXPECT_EQ(Export(server.stub(), "a", session.generation()).Finish(), absl::OkStatus());
}

TEST(TransferTest, UploadsThatAreNotRightAreRefusedAndLeaveNothing) {
  TestServer server;
  Stub& stub = server.stub();
  CreateWith(stub, "a", 500);
  const std::string file = FileOf(stub, "a");
  const v1::GetServerInfoResponse before = Info(stub);
  const auto expect_damaged = [&](const std::string& bytes) {
    const absl::Status s = ImportFile(stub, Header("b"), bytes);
    EXPECT_EQ(s.code(), absl::StatusCode::kDataLoss) << s;
    EXPECT_EQ(ReasonOf(s), "FILE_DAMAGED");
    const v1::GetServerInfoResponse after = Info(stub);
    ASSERT_EQ(after.block_bytes(), before.block_bytes());
    ASSERT_EQ(after.resident_bytes(), before.resident_bytes());
    ASSERT_EQ(after.sessions(), 1);
  };
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 20; ++trial) {
    expect_damaged(file.substr(0, random() % file.size()));
    std::string changed = file;
    // Behind the version of the file, which is another error.
    const std::size_t at = 64 + random() % (file.size() - 64);
    changed[at] = static_cast<char>(changed[at] ^ (1 << random() % 8));
    expect_damaged(changed);
  }
  expect_damaged("");
  expect_damaged(std::string(100'000, 'x'));
  expect_damaged(file + "more");
  expect_damaged(file + file);
}

TEST(TransferTest, MessagesThatAreNotRightAreRefused) {
  TestServer server;
  Stub& stub = server.stub();
  CreateWith(stub, "a", 100);
  const std::string file = FileOf(stub, "a");
  const auto refused = [&](const std::function<void(Import&)>& send) {
    Import import(stub);
    send(import);
    const absl::Status s = import.Finish();
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument) << s;
    EXPECT_EQ(ReasonOf(s), "INVALID_FIELD");
    return FieldOf(s);
  };
  EXPECT_EQ(refused([](Import&) {}), "header");
  EXPECT_EQ(refused([&](Import& import) { import.Send(file); }), "header");
  EXPECT_EQ(refused([](Import& import) { import.SendNothing(); }), "part");
  EXPECT_EQ(refused([](Import& import) {
              if (import.Send(Header("b"))) import.SendNothing();
            }),
            "part");
  EXPECT_EQ(refused([](Import& import) {
              if (import.Send(Header("b"))) import.Send(Header("b"));
            }),
            "header");
  EXPECT_EQ(refused([&](Import& import) {
              if (import.Send(Header("b")) && import.Send(file)) import.Send(Header("b"));
            }),
            "header");
  EXPECT_EQ(refused([](Import& import) { import.Send(Header("b", "")); }), "header.request_id");
  EXPECT_EQ(refused([](Import& import) { import.Send(Header("not an id")); }), "header.session");
  EXPECT_EQ(Info(stub).sessions(), 1);
}

TEST(TransferTest, AFileOfAnotherModelIsRefused) {
  TestServer server;
  CreateWith(server.stub(), "a", 100);
  const std::string file = FileOf(server.stub(), "a");
  for (const char* field : {"model", "model_revision", "rope_digest"}) {
    v1::ImportSessionHeader header = Header("b");
    header.GetReflection()->SetString(&header, header.GetDescriptor()->FindFieldByName(field),
                                      "another");
    const absl::Status s = ImportFile(server.stub(), header, file);
    EXPECT_EQ(s.code(), absl::StatusCode::kFailedPrecondition) << s;
    EXPECT_EQ(ReasonOf(s), "FILE_MISMATCH");
    EXPECT_EQ(FieldOf(s), field);
  }
}

TEST(TransferTest, RepeatsAreKnownAndOthersRefused) {
  TestServer server;
  Stub& stub = server.stub();
  CreateWith(stub, "a", 300);
  const std::string file = FileOf(stub, "a");
  v1::Session first;
  v1::Session again;
  ASSERT_EQ(ImportFile(stub, Header("b"), file, &first), absl::OkStatus());
  ASSERT_EQ(ImportFile(stub, Header("b"), file, &again), absl::OkStatus());
  EXPECT_EQ(first.generation(), again.generation());
  for (const absl::Status& s :
       {ImportFile(stub, Header("b", "another request"), file), ImportFile(stub, Header(""), file),
        ImportFile(stub, Header("b"), FileOf(stub, "b"))}) {
    EXPECT_EQ(s.code(), absl::StatusCode::kAlreadyExists) << s;
    EXPECT_EQ(ReasonOf(s), "SESSION_EXISTS");
  }
}

TEST(TransferTest, ABudgetWithoutRoomRefuses) {
  TestServer from;
  CreateWide(from.stub());
  const std::string file = FileOf(from.stub(), "wide");
  Config config = TestConfig();
  config.memory_budget_bytes = 4 << 20;
  TestServer to(config);
  const v1::GetServerInfoResponse before = Info(to.stub());
  const absl::Status s = ImportFile(to.stub(), Header(""), file);
  EXPECT_EQ(s.code(), absl::StatusCode::kResourceExhausted) << s;
  EXPECT_EQ(ReasonOf(s), "OUT_OF_MEMORY");
  ExpectHoldsAgain(to.stub(), before);
}

TEST(TransferTest, ClientsThatLeaveInTheMiddleLeaveNothing) {
  TestServer server;
  Stub& stub = server.stub();
  CreateWide(stub);
  const std::string file = FileOf(stub, "wide");
  const v1::GetServerInfoResponse before = Info(stub);
  for (int i = 0; i < 6; ++i) {
    Export reading(stub, "wide");
    EXPECT_TRUE(i % 2 == 1 || reading.ReadPiece());
    reading.Cancel();
    EXPECT_EQ(reading.Finish().code(), absl::StatusCode::kCancelled);
    Import writing(stub);
    EXPECT_TRUE(writing.Send(Header("b")));
    EXPECT_TRUE(i % 2 == 1 || writing.Send(std::string_view(file).substr(0, file.size() / 2)));
    writing.Cancel();
    EXPECT_EQ(writing.Finish().code(), absl::StatusCode::kCancelled);
  }
  ExpectHoldsAgain(stub, before);
}

TEST(TransferTest, DeadlinesThatPassInTheMiddleLeaveNothing) {
  TestServer server;
  Stub& stub = server.stub();
  CreateWide(stub);
  const std::string file = FileOf(stub, "wide");
  const v1::GetServerInfoResponse before = Info(stub);
  constexpr std::chrono::milliseconds kTimeout(200);
  Import idle(stub, kTimeout);
  Import halfway(stub, kTimeout);
  if (halfway.Send(Header("b"))) halfway.Send(std::string_view(file).substr(0, file.size() / 2));
  Export unread(stub, "wide", 0, kTimeout);
  EXPECT_EQ(idle.WaitForEnd().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(halfway.WaitForEnd().code(), absl::StatusCode::kDeadlineExceeded);
  // The server notices by itself, with no one reading.
  ExpectHoldsAgain(stub, before);
  EXPECT_EQ(unread.Finish().code(), absl::StatusCode::kDeadlineExceeded);
}

// With one place in all.
TEST(TransferTest, ClientsThatPauseKeepNoPlaceFromOthers) {
  TestServer from;
  CreateWide(from.stub());
  Config config = TestConfig();
  config.max_concurrent_requests = 1;
  TestServer server(config);
  Stub& stub = server.stub();
  const std::string file = FileOf(from.stub(), "wide");
  const auto expect_place = [&] {
    v1::GetServerInfoResponse info;
    absl::Status status = absl::UnknownError("not asked yet");
    while (!status.ok()) {
      status = Call(stub, &Stub::GetServerInfo, {}, info);
      ASSERT_TRUE(status.ok() || ReasonOf(status) == "TOO_MANY_REQUESTS") << status;
    }
  };
  Import import(stub);
  ASSERT_TRUE(import.Send(Header("")));
  ASSERT_TRUE(import.Send(std::string_view(file).substr(0, file.size() / 2)));
  expect_place();
  ASSERT_TRUE(import.Send(std::string_view(file).substr(file.size() / 2)));
  ASSERT_EQ(import.Finish(), absl::OkStatus());
  Export reading(stub, "wide");
  ASSERT_TRUE(reading.ReadPiece());
  expect_place();
  ASSERT_EQ(reading.Finish(), absl::OkStatus());
  EXPECT_EQ(reading.header().committed_length(), kWideTokens);
}

TEST(TransferTest, AnExportIsOfTheMomentItBeganWhateverIsDoneMeanwhile) {
  TestServer server;
  Stub& stub = server.stub();
  const v1::Session session = CreateWide(stub);
  const std::string file = FileOf(stub, "wide");
  Export reading(stub, "wide");
  ASSERT_TRUE(reading.ReadPiece());
  Append(stub, AppendRequestOf(kWide, session, 0, kWideTokens, 100));
  Truncate(stub, session, 500);
  v1::DeleteSessionRequest remove;
  remove.set_session("wide");
  v1::DeleteSessionResponse removed;
  ASSERT_TRUE(Call(stub, &Stub::DeleteSession, remove, removed).ok());
  ASSERT_EQ(reading.Finish(), absl::OkStatus());
  v1::Session before;
  v1::Session then;
  ASSERT_EQ(ImportFile(stub, Header("before"), file, &before), absl::OkStatus());
  ASSERT_EQ(ImportFile(stub, Header("then"), reading.file(), &then), absl::OkStatus());
  const auto attend = [&](const v1::Session& of) {
    return Attend(stub, AttendRequestOf(kWide, of, 0, kWideTokens, 1, 1)).output().raw();
  };
  EXPECT_EQ(attend(before), attend(then));
}

TEST(TransferTest, SessionsMoveWhileTheyGrow) {
  TestServer from;
  TestServer to;
  const TestModel model;
  const v1::Session session = CreateWith(from.stub(), "a", 200);
  std::atomic<bool> stopped = false;
  std::thread growing([&] {
    for (int length = 200; !stopped; length += 10) {
      for (const int layer : {0, 1}) {
        Attend(from.stub(), AttendRequestOf(model, session, layer, length, 10, 10));
      }
    }
  });
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back([&, i] {
      for (int round = 0; round < 5; ++round) {
        Export whole(from.stub(), "a");
        ASSERT_EQ(whole.Finish(), absl::OkStatus());
        v1::Session moved;
        const std::string id = absl::StrCat("copy-", i, "-", round);
        ASSERT_EQ(ImportFile(to.stub(), Header(id), whole.file(), &moved), absl::OkStatus());
        for (const int layer : {0, 1}) {
          EXPECT_EQ(moved.layer_states(layer).length(), whole.header().layer_lengths(layer));
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  stopped = true;
  growing.join();
  EXPECT_EQ(Info(to.stub()).sessions(), 15);
}

TEST(TransferTest, ADrainEndsImportsThatWaitAndLetsExportsEnd) {
  TestServer server;
  Stub& stub = server.stub();
  CreateWide(stub);
  const std::string file = FileOf(stub, "wide");
  Export reading(stub, "wide");
  ASSERT_TRUE(reading.ReadPiece());
  Import silent(stub);
  Import halfway(stub);
  ASSERT_TRUE(halfway.Send(Header("b")));
  ASSERT_TRUE(halfway.Send(std::string_view(file).substr(0, file.size() / 2)));
  std::future<bool> drained =
      std::async(std::launch::async, [&] { return server.server().Drain(absl::Seconds(60)); });
  EXPECT_EQ(ReasonOf(silent.WaitForEnd()), "DRAINING");
  EXPECT_EQ(ReasonOf(halfway.WaitForEnd()), "DRAINING");
  EXPECT_EQ(reading.Finish(), absl::OkStatus());
  EXPECT_EQ(reading.file().size(), file.size());
  EXPECT_TRUE(drained.get());
}

}  // namespace
}  // namespace oscarkv::testing
