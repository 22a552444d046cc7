#include "client/session_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "client/error_info.h"
#include "client/tensors.h"
#include "tests/client/fake_service.h"

namespace oscarkv {
namespace {

constexpr int kKvHeads = 2;
constexpr int kQueryHeads = 6;
constexpr int kKeyDim = 64;
constexpr int kValueDim = 80;
constexpr int kStride = 24;

v1::Session MakeSession(std::int64_t position_base, std::int64_t length) {
  v1::Session session;
  session.set_id("s");
  session.set_generation(7);
  session.set_position_base(position_base);
  v1::LayerSpec& spec = *session.add_layers();
  spec.set_layer(3);
  spec.set_kv_heads(kKvHeads);
  spec.set_query_heads(kQueryHeads);
  spec.set_key_dim(kKeyDim);
  spec.set_value_dim(kValueDim);
  v1::LayerState& state = *session.add_layer_states();
  state.set_layer(3);
  state.set_length(length);
  state.set_query_sample_stride(kStride);
  return session;
}

// Tokens whose every element is the token's index.
struct Fixture {
  explicit Fixture(int tokens)
      : key(Fill(tokens, kKvHeads * kKeyDim)),
        value(Fill(tokens, kKvHeads * kValueDim)),
        query(FillFloats(tokens, kQueryHeads * kKeyDim)) {
    layer = {.tokens = tokens,
             .dtype = v1::DATA_TYPE_BF16,
             .key = Bytes(key),
             .value = Bytes(value),
             .query_dtype = v1::DATA_TYPE_FP32,
             .query = Bytes(query)};
  }
  static std::vector<std::uint16_t> Fill(int tokens, int row) {
    std::vector<std::uint16_t> values;
    for (int t = 0; t < tokens; ++t) values.insert(values.end(), row, t);
    return values;
  }
  static std::vector<float> FillFloats(int tokens, int row) {
    std::vector<float> values;
    for (int t = 0; t < tokens; ++t) values.insert(values.end(), row, t);
    return values;
  }
  template <typename T>
  static std::string_view Bytes(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }

  std::vector<std::uint16_t> key, value;
  std::vector<float> query;
  LayerTokens layer;
};

class SessionWriterTest : public testing::Test {
 protected:
  void SetUp() override { client_ = Client::Connect(service_.address()).value(); }

  FakeService service_;
  std::unique_ptr<Client> client_;
};

// Whatever the chunks and the start: every token once and in order, expected lengths that follow
// each other, queries exactly at the sampled positions, and no message over its limit.
TEST_F(SessionWriterTest, SplitsWithoutLosingAnything) {
  const int tokens = 200;
  const Fixture data(tokens);
  for (const std::int64_t base : {0, 24, 1000, -1000}) {
    for (const std::int64_t length : {0, 1, 23, 24, 130}) {
      for (const std::int64_t limit : {1, 8'000, 20'000, 50'000, 1 << 30}) {
        SCOPED_TRACE(testing::Message() << base << " " << length << " " << limit);
        const std::size_t before = service_.appends().size();
        SessionWriter writer(client_.get(), MakeSession(base, length), limit);
        std::int64_t progress = 0;
        ASSERT_TRUE(
            writer.Append(3, data.layer, [&](std::int64_t count) { progress += count; }).ok());
        EXPECT_EQ(writer.length(3), length + tokens);
        EXPECT_EQ(progress, tokens);

        std::string key, value;
        std::vector<std::int64_t> positions;
        const auto appends = service_.appends();
        for (std::size_t i = before; i < appends.size(); ++i) {
          const v1::AppendRequest& request = appends[i];
          const v1::Item& item = request.items(0);
          EXPECT_LE(request.ByteSizeLong(), std::max<std::int64_t>(limit, 8'000));
          EXPECT_EQ(request.layer(), 3);
          EXPECT_EQ(item.session(), "s");
          EXPECT_EQ(item.generation(), 7u);
          EXPECT_EQ(item.expected_length(),
                    length + static_cast<std::int64_t>(key.size() / (2 * kKvHeads * kKeyDim)));
          EXPECT_TRUE(CheckTensor(request.key()).ok());
          EXPECT_TRUE(CheckTensor(request.value()).ok());
          EXPECT_EQ(request.key().shape(0), item.num_tokens());
          key += request.key().raw();
          value += request.value().raw();
          if (item.num_query_tokens() == 0) {
            EXPECT_FALSE(request.has_query());
            continue;
          }
          const auto rows = ViewFloats(request.query());
          ASSERT_TRUE(rows.ok());
          ASSERT_EQ(rows->size(),
                    static_cast<std::size_t>(item.num_query_tokens()) * kQueryHeads * kKeyDim);
          for (int row = 0; row < item.num_query_tokens(); ++row) {
            const std::int64_t position = item.query_start() + row * item.query_stride();
            EXPECT_EQ((*rows)[row * kQueryHeads * kKeyDim], position - base - length);
            positions.push_back(position);
          }
        }
        EXPECT_EQ(key, data.layer.key);
        EXPECT_EQ(value, data.layer.value);
        std::vector<std::int64_t> expected;
        for (std::int64_t p = base + length; p < base + length + tokens; ++p) {
          if (p % kStride == 0) expected.push_back(p);
        }
        EXPECT_EQ(positions, expected);
      }
    }
  }
}

TEST_F(SessionWriterTest, GoesOnAfterAnInterruption) {
  const Fixture data(10);
  SessionWriter writer(client_.get(), MakeSession(0, 0));
  service_.Fail("Append", 1, grpc::Status(grpc::INTERNAL, "defect"));
  EXPECT_FALSE(writer.Append(3, data.layer).ok());
  EXPECT_EQ(writer.length(3), 0);
  EXPECT_TRUE(writer.Append(3, data.layer).ok());
  EXPECT_TRUE(writer.Append(3, data.layer).ok());
  EXPECT_EQ(service_.appends().back().items(0).expected_length(), 10);
}

TEST_F(SessionWriterTest, ReturnsItemErrors) {
  v1::Session session = MakeSession(0, 0);
  session.set_id("missing");
  SessionWriter writer(client_.get(), session);
  const absl::Status status = writer.Append(3, Fixture(1).layer);
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(ErrorInfoOf(status)->reason(), "SESSION_NOT_FOUND");
}

TEST_F(SessionWriterTest, RefusesWhatDoesNotFit) {
  SessionWriter writer(client_.get(), MakeSession(0, 0));
  const Fixture data(4);
  EXPECT_TRUE(absl::IsNotFound(writer.Append(4, data.layer)));
  for (int field = 0; field < 4; ++field) {
    LayerTokens wrong = data.layer;
    if (field == 0) wrong.key.remove_suffix(2);
    if (field == 1) wrong.value.remove_suffix(2);
    if (field == 2) wrong.query.remove_suffix(4);
    if (field == 3) wrong.dtype = v1::DATA_TYPE_FP32;
    EXPECT_TRUE(absl::IsInvalidArgument(writer.Append(3, wrong)));
  }
  EXPECT_EQ(service_.calls("Append"), 0);
}

TEST_F(SessionWriterTest, SendsNoQueriesIfThereAreNone) {
  SessionWriter writer(client_.get(), MakeSession(0, 0));
  const Fixture data(100);
  LayerTokens layer = data.layer;
  layer.query = {};
  ASSERT_TRUE(writer.Append(3, layer).ok());
  EXPECT_FALSE(service_.appends().back().has_query());
  EXPECT_EQ(service_.appends().back().items(0).num_query_tokens(), 0);
}

}  // namespace
}  // namespace oscarkv
