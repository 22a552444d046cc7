#include "server/rpc/token_reader.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kernels/backend_factory.h"
#include "server/rpc/handlers.h"
#include "tests/server/rpc/test_requests.h"

namespace oscarkv {
namespace {

using testing::FieldOf;
using testing::ReasonOf;
using testing::TestModel;

constexpr std::int64_t kTokens = 700;

class TokenReaderTest : public ::testing::Test {
 protected:
  TokenReaderTest() : backend_(MakeBackend({}).backend), store_(backend_.get(), Options()) {
    Handlers handlers(&store_, {.max_message_bytes = 64 << 20});
    v1::CreateSessionResponse created;
    EXPECT_TRUE(handlers.CreateSession(testing::CreateRequest("a", model_), created).ok());
    session_ = created.session();
    v1::AppendResponse appended;
    request_ = testing::AppendRequestOf(model_, session_, 1, 0, kTokens);
    EXPECT_TRUE(handlers.Append(request_, appended).ok());
  }

  static StoreOptions Options() {
    return {.memory_budget_bytes = 64 << 20, .settle_after = absl::Hours(1)};
  }

  v1::ReadTokensRequest Request() const {
    v1::ReadTokensRequest request;
    request.set_session("a");
    request.set_generation(session_.generation());
    request.set_layer(1);
    return request;
  }

  absl::Status Open(const v1::ReadTokensRequest& request) {
    return TokenReader::Open(store_, request, 64 << 20).status();
  }

  TestModel model_;
  std::unique_ptr<Backend> backend_;
  SessionStore store_;
  v1::Session session_;
  v1::AppendRequest request_;
};

TEST_F(TokenReaderTest, RunsFollowEachOtherAndFit) {
  constexpr std::int64_t kMessage = 32 << 10;  // 63 tokens of 512 bytes
  absl::StatusOr<TokenReader> reader = TokenReader::Open(store_, Request(), kMessage);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::string keys;
  std::string values;
  std::int64_t next = 0;
  while (!reader->done()) {
    v1::ReadTokensResponse run;
    ASSERT_TRUE(reader->Next(run).ok());
    EXPECT_EQ(run.begin(), next);
    EXPECT_LE(run.ByteSizeLong(), static_cast<std::size_t>(kMessage));
    EXPECT_EQ(run.key().shape(1), 2);
    EXPECT_EQ(run.key().dtype(), v1::DATA_TYPE_BF16);
    next += run.key().shape(0);
    keys += run.key().raw();
    values += run.value().raw();
  }
  EXPECT_EQ(next, kTokens);
  // Nothing is sealed before the next append, so all is as it was sent.
  EXPECT_EQ(keys, request_.key().raw());
  EXPECT_EQ(values, request_.value().raw());
}

TEST_F(TokenReaderTest, ARangeIsWhatWasAskedFor) {
  v1::ReadTokensRequest request = Request();
  request.set_begin(690);
  request.set_num_tokens(3);
  absl::StatusOr<TokenReader> reader = TokenReader::Open(store_, request, 64 << 20);
  ASSERT_TRUE(reader.ok());
  v1::ReadTokensResponse run;
  ASSERT_TRUE(reader->Next(run).ok());
  EXPECT_TRUE(reader->done());
  EXPECT_EQ(run.begin(), 690);
  EXPECT_EQ(run.key().raw(), request_.key().raw().substr(690 * 256, 3 * 256));
}

TEST_F(TokenReaderTest, AnEmptyRangeHasNoRuns) {
  v1::ReadTokensRequest request = Request();
  request.set_begin(kTokens);
  const absl::StatusOr<TokenReader> reader = TokenReader::Open(store_, request, 64 << 20);
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE(reader->done());
}

TEST_F(TokenReaderTest, NamesWhatIsWrong) {
  v1::ReadTokensRequest request = Request();
  request.clear_session();
  EXPECT_EQ(FieldOf(Open(request)), "session");
  request = Request();
  request.set_session("nobody");
  EXPECT_EQ(ReasonOf(Open(request)), "SESSION_NOT_FOUND");
  request = Request();
  request.clear_generation();
  EXPECT_EQ(FieldOf(Open(request)), "generation");
  request.set_generation(77);
  EXPECT_EQ(ReasonOf(Open(request)), "GENERATION_MISMATCH");
  request = Request();
  request.set_layer(-1);
  EXPECT_EQ(FieldOf(Open(request)), "layer");
  request.set_layer(4);
  EXPECT_EQ(ReasonOf(Open(request)), "LAYER_NOT_FOUND");
  for (const std::int64_t begin : {std::int64_t{-1}, kTokens + 1, INT64_MAX}) {
    request = Request();
    request.set_begin(begin);
    EXPECT_EQ(FieldOf(Open(request)), "begin") << begin;
  }
  for (const std::int64_t tokens : {std::int64_t{-1}, kTokens, INT64_MAX}) {
    request = Request();
    request.set_begin(1);
    request.set_num_tokens(tokens);
    EXPECT_EQ(FieldOf(Open(request)), "num_tokens") << tokens;
  }
}

TEST_F(TokenReaderTest, ATruncationMeanwhileEndsTheReading) {
  absl::StatusOr<TokenReader> reader = TokenReader::Open(store_, Request(), 32 << 10);
  ASSERT_TRUE(reader.ok());
  v1::ReadTokensResponse run;
  ASSERT_TRUE(reader->Next(run).ok());
  ASSERT_TRUE(store_.Truncate("a", "", session_.generation(), 600).ok());
  v1::ReadTokensResponse other_run;
  EXPECT_EQ(ReasonOf(reader->Next(other_run)), "GENERATION_MISMATCH");
}

TEST_F(TokenReaderTest, AnotherSessionOfThatIdMeanwhileEndsTheReading) {
  absl::StatusOr<TokenReader> reader = TokenReader::Open(store_, Request(), 32 << 10);
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE(store_.Delete("a", 0).ok());
  Handlers handlers(&store_, {.max_message_bytes = 64 << 20});
  v1::CreateSessionResponse created;
  TestModel wide = model_;
  wide.dim = 256;
  ASSERT_TRUE(handlers.CreateSession(testing::CreateRequest("a", wide), created).ok());
  v1::AppendResponse appended;
  const auto append = testing::AppendRequestOf(wide, created.session(), 1, 0, kTokens);
  ASSERT_TRUE(handlers.Append(append, appended).ok());
  v1::ReadTokensResponse run;
  EXPECT_EQ(ReasonOf(reader->Next(run)), "GENERATION_MISMATCH");
}

}  // namespace
}  // namespace oscarkv
