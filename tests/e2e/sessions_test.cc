// Sessions over a real connection.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/api/dtype.h"
#include "tests/e2e/test_server.h"

namespace oscarkv::testing {
namespace {

std::vector<float> FloatsOf(const v1::Tensor& tensor) {
  const DType dtype = tensor.dtype() == v1::DATA_TYPE_FP32   ? DType::kFP32
                      : tensor.dtype() == v1::DATA_TYPE_FP16 ? DType::kFP16
                                                             : DType::kBF16;
  std::vector<float> values(tensor.raw().size() / SizeOf(dtype));
  ToFloats(dtype, tensor.raw().data(), values.size(), values.data());
  return values;
}

TEST(SessionsTest, TheServerTellsWhatItIs) {
  TestServer server;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(Call(server.stub(), &Stub::GetServerInfo, v1::GetServerInfoRequest(), info).ok());
  EXPECT_EQ(info.version(), ServerVersion());
  EXPECT_EQ(info.backend(), "cpu");
  EXPECT_GT(info.threads(), 0);
  EXPECT_GT(info.boot_epoch(), 0u);
  EXPECT_EQ(info.default_profile(), v1::PROFILE_DENSE);
  EXPECT_EQ(info.max_receive_message_bytes(), 4 << 20);
  EXPECT_EQ(info.max_send_message_bytes(), 4 << 20);
  EXPECT_EQ(info.memory_budget_bytes(), 256 << 20);
  EXPECT_EQ(info.sessions(), 0);
  EXPECT_EQ(info.resident_bytes(), 0);
  EXPECT_THAT(info.head_dims(), ::testing::ElementsAre(64, 80, 96, 112, 128, 192, 256));
}

TEST(SessionsTest, ASessionLives) {
  TestServer server;
  Stub& stub = server.stub();
  const TestModel model;
  const v1::Session session = Create(stub, "a", model);
  EXPECT_NE(session.generation(), 0u);
  EXPECT_EQ(session.layers_size(), 2);
  EXPECT_EQ(session.layers(0).codec().window(), 128);
  EXPECT_GT(session.create_time().seconds(), 1'600'000'000);

  for (int layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(Append(stub, AppendRequestOf(model, session, layer, 0, 500)).results(0).length(),
              500);
    for (int step = 0; step < 2; ++step) {
      const auto attended = Attend(stub, AttendRequestOf(model, session, layer, 500 + step, 1, 1));
      EXPECT_EQ(attended.results(0).length(), 501 + step);
      EXPECT_EQ(attended.output().shape(0), 1);
    }
  }
  const v1::Session full = Get(stub, "a");
  EXPECT_EQ(full.committed_length(), 502);
  EXPECT_EQ(full.layer_states(1).length(), 502);
  EXPECT_GT(full.layer_states(1).sealed_tokens(), 0);
  EXPECT_EQ(full.logical_bytes(), 2 * 502 * 2 * 2 * 64 * 2);
  EXPECT_GT(full.resident_bytes(), 0);
  EXPECT_EQ(full.layer_states(1).query_sample_stride(), 16);

  v1::GetServerInfoResponse info;
  ASSERT_TRUE(Call(stub, &Stub::GetServerInfo, v1::GetServerInfoRequest(), info).ok());
  EXPECT_EQ(info.sessions(), 1);
  EXPECT_GT(info.block_bytes(), 0);
  EXPECT_LE(info.block_bytes(), info.resident_bytes());
  EXPECT_GE(info.held_bytes(), info.block_bytes());

  const v1::Session shorter = Truncate(stub, full, 77);
  EXPECT_NE(shorter.generation(), full.generation());
  EXPECT_EQ(shorter.committed_length(), 77);

  v1::DeleteSessionRequest remove;
  remove.set_session("a");
  v1::DeleteSessionResponse removed;
  EXPECT_TRUE(Call(stub, &Stub::DeleteSession, remove, removed).ok());
  ASSERT_TRUE(Call(stub, &Stub::GetServerInfo, v1::GetServerInfoRequest(), info).ok());
  EXPECT_EQ(info.sessions(), 0);
  EXPECT_EQ(info.resident_bytes(), 0);
  EXPECT_EQ(info.block_bytes(), 0);
  EXPECT_EQ(info.held_bytes(), 0);
}

// Whatever the clock says: a client of one boot must not be taken for one of another.
TEST(SessionsTest, GenerationsOfEveryBootAreFarFromThoseOfOthers) {
  std::vector<std::uint64_t> generations;
  for (int boot = 0; boot < 4; ++boot) {
    TestServer server;
    const std::uint64_t first = Create(server.stub(), "a").generation();
    EXPECT_EQ(Create(server.stub(), "b").generation(), first + 1);
    for (const std::uint64_t other : generations) {
      EXPECT_GT(std::max(first, other) - std::min(first, other), std::uint64_t{1} << 20);
    }
    generations.push_back(first);
  }
}

TEST(SessionsTest, CreateMayBeRepeatedButNotChanged) {
  TestServer server;
  Stub& stub = server.stub();
  const v1::Session session = Create(stub, "a");
  EXPECT_EQ(Create(stub, "a").generation(), session.generation());
  v1::CreateSessionResponse response;
  v1::CreateSessionRequest other = CreateRequest("a");
  other.set_request_id("other");
  absl::Status status = Call(stub, &Stub::CreateSession, other, response);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReasonOf(status), "SESSION_EXISTS");
  other = CreateRequest("a");
  other.set_model("another");
  status = Call(stub, &Stub::CreateSession, other, response);
  EXPECT_EQ(ReasonOf(status), "SESSION_EXISTS");
}

TEST(SessionsTest, ListsInPagesAndByTenant) {
  TestServer server;
  Stub& stub = server.stub();
  std::vector<std::string> expected;
  for (int i = 0; i < 7; ++i) {
    v1::CreateSessionRequest request = CreateRequest(absl::StrCat("s", i));
    request.set_tenant(i % 2 == 0 ? "even" : "");
    v1::CreateSessionResponse created;
    ASSERT_TRUE(Call(stub, &Stub::CreateSession, request, created).ok());
    expected.push_back(request.session());
  }
  const auto list = [&](int page_size, std::optional<std::string> tenant) {
    std::vector<std::string> ids;
    v1::ListSessionsRequest request;
    request.set_page_size(page_size);
    if (tenant) request.set_tenant(*tenant);
    do {
      v1::ListSessionsResponse page;
      EXPECT_TRUE(Call(stub, &Stub::ListSessions, request, page).ok());
      EXPECT_TRUE(page_size == 0 || page.sessions_size() <= page_size);
      for (const v1::Session& session : page.sessions()) {
        EXPECT_EQ(session.layers_size(), 0);
        ids.push_back(session.id());
      }
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return ids;
  };
  for (const int page_size : {0, 1, 3, 7, 100'000}) EXPECT_EQ(list(page_size, {}), expected);
  EXPECT_THAT(list(2, "even"), ::testing::ElementsAre("s0", "s2", "s4", "s6"));
  EXPECT_THAT(list(0, ""), ::testing::ElementsAre("s1", "s3", "s5"));
  EXPECT_TRUE(list(0, "nobody").empty());
}

// A short context is all in 16 bits: attention is exact, and checked against its definition.
TEST(SessionsTest, AttentionIsThatOfItsDefinition) {
  TestServer server;
  const TestModel model;
  constexpr int kTokens = 40;
  const v1::Session session = Create(server.stub(), "a", model);
  v1::AttendRequest request = AttendRequestOf(model, session, 0, 0, kTokens, kTokens);
  request.set_output_dtype(v1::DATA_TYPE_FP32);
  const v1::AttendResponse response = Attend(server.stub(), request);
  const std::vector<float> keys = FloatsOf(request.key());
  const std::vector<float> values = FloatsOf(request.value());
  const std::vector<float> queries = FloatsOf(request.query());
  const std::vector<float> outputs = FloatsOf(response.output());
  const std::vector<float> log_sum_exps = FloatsOf(response.log_sum_exp());
  ASSERT_EQ(outputs.size(), queries.size());
  const auto at = [&](const std::vector<float>& rows, int heads, int row, int head) {
    return rows.data() + (row * heads + head) * model.dim;
  };
  for (int row = 0; row < kTokens; ++row) {
    for (int head = 0; head < model.query_heads; ++head) {
      double sum = 0;
      std::vector<double> expected(static_cast<std::size_t>(model.dim));
      for (int token = 0; token <= row; ++token) {
        double dot = 0;
        for (int c = 0; c < model.dim; ++c) {
          dot += static_cast<double>(at(queries, model.query_heads, row, head)[c]) *
                 static_cast<double>(at(keys, model.kv_heads, token, head / 2)[c]);
        }
        const double weight = std::exp(dot / 8);
        sum += weight;
        for (int c = 0; c < model.dim; ++c) {
          expected[static_cast<std::size_t>(c)] +=
              weight * static_cast<double>(at(values, model.kv_heads, token, head / 2)[c]);
        }
      }
      const std::size_t index = static_cast<std::size_t>(row * model.query_heads + head);
      EXPECT_NEAR(log_sum_exps[index], std::log(sum), 1e-4);
      for (int c = 0; c < model.dim; ++c) {
        EXPECT_NEAR(at(outputs, model.query_heads, row, head)[c],
                    expected[static_cast<std::size_t>(c)] / sum, 1e-4);
      }
    }
  }
}

TEST(SessionsTest, RepeatsChangeNothingAndAnswerTheSame) {
  TestServer server;
  Stub& stub = server.stub();
  const TestModel model;
  const v1::Session session = Create(stub, "a", model);
  const v1::AppendRequest append = AppendRequestOf(model, session, 0, 0, 700);
  EXPECT_FALSE(Append(stub, append).results(0).repeated());
  EXPECT_TRUE(Append(stub, append).results(0).repeated());
  EXPECT_EQ(Append(stub, append).results(0).length(), 700);
  for (int step = 0; step < 3; ++step) {
    const v1::AttendRequest attend = AttendRequestOf(model, session, 0, 700 + step, 1, 1);
    const v1::AttendResponse first = Attend(stub, attend);
    EXPECT_FALSE(first.results(0).repeated());
    for (int i = 0; i < 3; ++i) {
      const v1::AttendResponse again = Attend(stub, attend);
      EXPECT_TRUE(again.results(0).repeated());
      EXPECT_EQ(again.results(0).length(), 701 + step);
      EXPECT_EQ(again.output().raw(), first.output().raw());
      EXPECT_EQ(again.log_sum_exp().raw(), first.log_sum_exp().raw());
    }
  }
  v1::AttendRequest other = AttendRequestOf(model, session, 0, 702, 1, 1);
  other.mutable_key()->mutable_raw()->front() ^= 1;
  v1::AttendResponse refused;
  ASSERT_TRUE(Call(stub, &Stub::Attend, other, refused).ok());
  EXPECT_EQ(ReasonOf(refused.results(0).status()), "REPEAT_MISMATCH");
}

TEST(SessionsTest, ABatchAnswersAsItsItemsAlone) {
  TestServer server;
  Stub& stub = server.stub();
  std::vector<TestModel> models;
  std::vector<v1::Session> sessions;
  v1::AttendRequest batch;
  std::string outputs;
  for (int i = 0; i < 4; ++i) {
    models.push_back({.seed = static_cast<std::uint64_t>(i) + 10});
    const int length = 50 + 150 * i;
    for (const std::string kind : {"alone", "batched"}) {
      sessions.push_back(Create(stub, absl::StrCat(kind, i), models.back()));
      Append(stub, AppendRequestOf(models.back(), sessions.back(), 0, 0, length));
    }
    AddAttend(models.back(), sessions.back(), length, 2, 2, batch);
    outputs +=
        Attend(stub, AttendRequestOf(models.back(), sessions[sessions.size() - 2], 0, length, 2, 2))
            .output()
            .raw();
  }
  EXPECT_EQ(Attend(stub, batch).output().raw(), outputs);
}

TEST(SessionsTest, BytesThatAreNoMessageAreRefusedLikeAnyWrongRequest) {
  TestServer server;
  const std::string service = "/oscarkv.v1.KvCacheService/";
  std::string response;
  for (const char* method :
       {"CreateSession", "GetSession", "ListSessions", "DeleteSession", "ForkSession",
        "TruncateSession", "Append", "Attend", "ReadTokens", "ExportSession", "ImportSession"}) {
    // A length-delimited field that is longer than the message; text that is no UTF-8.
    for (const std::string bytes : {"\x0a\x7f", "\x0a\x01\xff"}) {
      const absl::Status status =
          CallRaw(server.channel(), absl::StrCat(service, method), bytes, response);
      if (method == std::string("ListSessions") && bytes[1] == 1) continue;  // field 1 is no text
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << method;
      EXPECT_EQ(ReasonOf(status), "INVALID_FIELD") << method;
    }
  }
  EXPECT_EQ(CallRaw(server.channel(), service + "NoSuchMethod", "", response).code(),
            absl::StatusCode::kUnimplemented);
}

TEST(SessionsTest, AMessageBeyondTheLimitIsRefused) {
  TestServer server;
  const TestModel model;
  const v1::Session session = Create(server.stub(), "a", model);
  v1::AppendResponse response;
  const v1::AppendRequest request = AppendRequestOf(model, session, 0, 0, 9000);
  EXPECT_EQ(Call(server.stub(), &Stub::Append, request, response).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Get(server.stub(), "a").committed_length(), 0);
}

TEST(SessionsTest, ABudgetThatIsUsedUpIsToldPerItem) {
  Config config = TestConfig();
  config.memory_budget_bytes = 1 << 20;
  TestServer server(config);
  const TestModel model;
  const v1::Session session = Create(server.stub(), "a", model);
  v1::AppendResponse response;
  ASSERT_TRUE(
      Call(server.stub(), &Stub::Append, AppendRequestOf(model, session, 0, 0, 5000), response)
          .ok());
  EXPECT_EQ(ReasonOf(response.results(0).status()), "OUT_OF_MEMORY");
  EXPECT_EQ(response.results(0).length(), 0);
  EXPECT_EQ(Append(server.stub(), AppendRequestOf(model, session, 0, 0, 50)).results(0).length(),
            50);
}

}  // namespace
}  // namespace oscarkv::testing
