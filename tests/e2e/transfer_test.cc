// Sessions that move as files from server to server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/transfers.h"

namespace oscarkv::testing {
namespace {

TEST(TransferRpcTest, ASessionMovesToAnotherServerAndAnswersTheSame) {
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

TEST(TransferRpcTest, ExportTellsErrorsInItsStatus) {
  TestServer server;
  const v1::Session session = Create(server.stub(), "a");
  EXPECT_EQ(FieldOf(Export(server.stub(), "not an id").Finish()), "session");
  EXPECT_EQ(ReasonOf(Export(server.stub(), "nobody").Finish()), "SESSION_NOT_FOUND");
  EXPECT_EQ(ReasonOf(Export(server.stub(), "a", session.generation() + 1).Finish()),
            "GENERATION_MISMATCH");
  EXPECT_EQ(Export(server.stub(), "a", session.generation()).Finish(), absl::OkStatus());
}

TEST(TransferRpcTest, UploadsThatAreNotRightAreRefusedAndLeaveNothing) {
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

TEST(TransferRpcTest, MessagesThatAreNotRightAreRefused) {
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

TEST(TransferRpcTest, AFileOfAnotherModelIsRefused) {
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
    EXPECT_EQ(FieldOf(s), std::string("header.") + field);
  }
}

TEST(TransferRpcTest, RepeatsAreKnownAndOthersRefused) {
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

TEST(TransferRpcTest, ABudgetWithoutRoomRefuses) {
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

TEST(TransferRpcTest, AnExportIsOfTheMomentItBeganWhateverIsDoneMeanwhile) {
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

TEST(TransferRpcTest, SessionsMoveWhileTheyGrow) {
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

}  // namespace
}  // namespace oscarkv::testing
