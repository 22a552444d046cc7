// Export and import of sessions, message by message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend_factory.h"
#include "server/rpc/decode_session.h"
#include "server/rpc/handlers.h"
#include "server/rpc/session_exporter.h"
#include "server/rpc/session_importer.h"
#include "tests/server/rpc/test_requests.h"

namespace oscarkv {
namespace {

using ::testing::ElementsAre;
using testing::FieldOf;
using testing::ReasonOf;

constexpr std::int64_t kMessage = 64 << 10;

class SessionTransferTest : public ::testing::Test {
 protected:
  SessionTransferTest()
      : backend_(MakeBackend({}).backend),
        store_(backend_.get(), {.memory_budget_bytes = 64 << 20}),
        handlers_(&store_, {.max_message_bytes = kMessage}) {
    v1::CreateSessionResponse created;
    EXPECT_TRUE(handlers_.CreateSession(testing::CreateRequest("a"), created).ok());
    for (const int layer : {0, 1}) {
      v1::AppendResponse appended;
      EXPECT_TRUE(handlers_
                      .Append(testing::AppendRequestOf({}, created.session(), layer, 0,
                                                       layer == 0 ? 700 : 500),
                              appended)
                      .ok());
    }
  }

  static v1::ExportSessionRequest ExportOf(const std::string& id, std::uint64_t generation = 0) {
    v1::ExportSessionRequest request;
    request.set_session(id);
    request.set_generation(generation);
    return request;
  }

  std::vector<v1::ExportSessionResponse> Messages(std::int64_t max_message_bytes) {
    absl::StatusOr<SessionExporter> exporter =
        SessionExporter::Open(store_, ExportOf("a"), max_message_bytes);
    EXPECT_TRUE(exporter.ok()) << exporter.status();
    std::vector<v1::ExportSessionResponse> messages;
    while (!exporter->done()) {
      EXPECT_EQ(exporter->Next(messages.emplace_back()), absl::OkStatus());
    }
    return messages;
  }
  std::string File() {
    std::string file;
    for (const v1::ExportSessionResponse& message : Messages(kMessage)) file += message.data();
    return file;
  }

  static v1::ImportSessionRequest HeaderFor(const std::string& id) {
    v1::ImportSessionRequest request;
    request.mutable_header()->set_session(id);
    request.mutable_header()->set_request_id("import");
    return request;
  }
  static v1::ImportSessionRequest DataOf(const std::string& bytes) {
    v1::ImportSessionRequest request;
    request.set_data(bytes);
    return request;
  }

  std::unique_ptr<Backend> backend_;
  SessionStore store_;
  Handlers handlers_;
};

TEST_F(SessionTransferTest, MessagesAreWithinHalfOfTheLimitAndTheFirstHasTheHeader) {
  const v1::ExportSessionHeader header = Messages(kMessage)[0].header();
  EXPECT_EQ(header.generation(), store_.Get("a")->generation);
  EXPECT_EQ(header.committed_length(), 500);
  EXPECT_THAT(header.layer_lengths(), ElementsAre(700, 500));
  std::size_t bytes = 0;
  for (const std::int64_t limit : {kMessage, std::int64_t{4} << 10, std::int64_t{1} << 30}) {
    std::size_t sum = 0;
    const std::vector<v1::ExportSessionResponse> messages = Messages(limit);
    for (std::size_t i = 0; i < messages.size(); ++i) {
      EXPECT_EQ(messages[i].has_header(), i == 0);
      EXPECT_GT(messages[i].data().size(), 0);
      EXPECT_LE(messages[i].data().size(), static_cast<std::size_t>(limit / 2));
      EXPECT_LE(messages[i].data().size(), std::size_t{1} << 20);
      sum += messages[i].data().size();
    }
    EXPECT_TRUE(bytes == 0 || bytes == sum);
    bytes = sum;
  }
}

TEST_F(SessionTransferTest, WrongExportRequestsAreRefused) {
  const auto open = [&](const v1::ExportSessionRequest& request) {
    return SessionExporter::Open(store_, request, kMessage).status();
  };
  EXPECT_EQ(FieldOf(open(ExportOf(""))), "session");
  EXPECT_EQ(FieldOf(open(ExportOf("a b"))), "session");
  EXPECT_EQ(ReasonOf(open(ExportOf("nobody"))), "SESSION_NOT_FOUND");
  EXPECT_EQ(ReasonOf(open(ExportOf("a", 1234567))), "GENERATION_MISMATCH");
}

TEST_F(SessionTransferTest, PiecesOfAnySizeMakeTheSession) {
  const std::string file = File();
  for (const std::size_t piece : {std::size_t{100}, std::size_t{4097}, file.size()}) {
    const std::string id = absl::StrCat("b", piece);
    SessionImporter importer(store_);
    ASSERT_EQ(importer.Take(HeaderFor(id)), absl::OkStatus());
    ASSERT_EQ(importer.Take(DataOf("")), absl::OkStatus());
    for (std::size_t at = 0; at < file.size(); at += piece) {
      ASSERT_EQ(importer.Take(DataOf(file.substr(at, piece))), absl::OkStatus());
    }
    EXPECT_FALSE(store_.Get(id).ok());
    v1::ImportSessionResponse response;
    ASSERT_EQ(importer.Finish(response), absl::OkStatus());
    EXPECT_EQ(response.session().id(), id);
    EXPECT_EQ(response.session().committed_length(), 500);
    EXPECT_EQ(response.session().layer_states(0).length(), 700);
    EXPECT_EQ(response.session().layers_size(), 2);
  }
}

TEST_F(SessionTransferTest, TheHeaderComesOnceAndFirst) {
  v1::ImportSessionResponse response;
  EXPECT_EQ(FieldOf(SessionImporter(store_).Finish(response)), "header");
  EXPECT_EQ(FieldOf(SessionImporter(store_).Take(DataOf("x"))), "header");
  EXPECT_EQ(FieldOf(SessionImporter(store_).Take({})), "part");
  SessionImporter importer(store_);
  ASSERT_EQ(importer.Take(HeaderFor("b")), absl::OkStatus());
  EXPECT_EQ(FieldOf(importer.Take(HeaderFor("b"))), "header");
  SessionImporter empty(store_);
  ASSERT_EQ(empty.Take(HeaderFor("b")), absl::OkStatus());
  EXPECT_EQ(ReasonOf(empty.Finish(response)), "FILE_DAMAGED");
}

TEST_F(SessionTransferTest, AnImportThatIsGivenUpLeavesNothing) {
  const std::string file = File();
  const StoreTotals before = store_.Totals();
  {
    SessionImporter importer(store_);
    ASSERT_EQ(importer.Take(HeaderFor("b")), absl::OkStatus());
    ASSERT_EQ(importer.Take(DataOf(file.substr(0, file.size() - 1))), absl::OkStatus());
    EXPECT_GT(store_.Totals().resident_bytes, before.resident_bytes);
  }
  EXPECT_EQ(store_.Totals().resident_bytes, before.resident_bytes);
  EXPECT_EQ(store_.Totals().block_bytes, before.block_bytes);
}

TEST(DecodeImportHeaderTest, NamesTheFieldThatIsWrong) {
  v1::ImportSessionHeader header;
  header.set_request_id("r");
  const absl::StatusOr<ImportOptions> least = DecodeImportHeader(header);
  ASSERT_TRUE(least.ok()) << least.status();
  EXPECT_FALSE(least->tenant || least->model || least->model_revision || least->rope_digest);
  header.set_tenant("");
  header.set_model("");
  header.set_model_revision("m");
  EXPECT_EQ(DecodeImportHeader(header)->tenant, "");
  EXPECT_EQ(DecodeImportHeader(header)->model, "");
  EXPECT_EQ(DecodeImportHeader(header)->model_revision, "m");

  const auto field = [&](const char* name, const std::string& value) {
    v1::ImportSessionHeader wrong = header;
    wrong.GetReflection()->SetString(&wrong, wrong.GetDescriptor()->FindFieldByName(name), value);
    return FieldOf(DecodeImportHeader(wrong).status());
  };
  EXPECT_FALSE(least->retention);
  header.mutable_retention()->set_priority(3);
  EXPECT_EQ(DecodeImportHeader(header)->retention, Retention{.priority = 3});
  v1::ImportSessionHeader no_time = header;
  no_time.mutable_retention()->mutable_ttl();
  EXPECT_EQ(FieldOf(DecodeImportHeader(no_time).status()), "header.retention.ttl");

  EXPECT_EQ(field("session", "a b"), "header.session");
  EXPECT_EQ(field("session", std::string(129, 'x')), "header.session");
  EXPECT_EQ(field("request_id", ""), "header.request_id");
  EXPECT_EQ(field("request_id", std::string(129, 'x')), "header.request_id");
  EXPECT_EQ(field("tenant", "a b"), "header.tenant");
  EXPECT_EQ(field("model", std::string(257, 'x')), "header.model");
  EXPECT_EQ(field("model_revision", std::string(257, 'x')), "header.model_revision");
  EXPECT_EQ(field("rope_digest", std::string(257, 'x')), "header.rope_digest");
}

}  // namespace
}  // namespace oscarkv
