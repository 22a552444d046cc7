#include "server/rpc/decode_batch.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/server/rpc/test_requests.h"

namespace oscarkv {
namespace {

using testing::FieldOf;
using testing::ReasonOf;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
constexpr int kHugeCount = std::numeric_limits<int>::max();

v1::Session SessionNamed(const std::string& id) {
  v1::Session session;
  session.set_id(id);
  session.set_generation(5);
  return session;
}

// Two items, with 3 and 2 tokens, 1 and 2 queries.
v1::AttendRequest ValidAttend() {
  v1::AttendRequest request;
  request.set_layer(1);
  testing::AddAttend({}, SessionNamed("a"), 10, 3, 1, request);
  testing::AddAttend({}, SessionNamed("b"), 20, 2, 2, request);
  return request;
}

v1::AppendRequest ValidAppend() {
  v1::AppendRequest request;
  request.set_layer(1);
  testing::AddAppend({}, SessionNamed("a"), 10, 3, request);
  testing::AddAppend({}, SessionNamed("b"), 20, 2, request);
  request.mutable_items(1)->set_num_query_tokens(1);
  testing::AddRows({}, testing::TensorKind::kQuery, 1, 20, 1, *request.mutable_query());
  return request;
}

template <typename Request>
struct Case {
  const char* field;
  std::function<void(Request&)> spoil;
};

template <typename Request, typename Decode>
void ExpectAllRefused(const Request& valid, const Decode& decode,
                      const std::vector<Case<Request>>& cases) {
  ASSERT_TRUE(decode(valid).ok()) << decode(valid).status();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Request request = valid;
    cases[i].spoil(request);
    const absl::Status status = decode(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << i << " " << cases[i].field;
    EXPECT_EQ(ReasonOf(status), "INVALID_FIELD") << i;
    EXPECT_EQ(FieldOf(status), cases[i].field) << i << " " << status;
  }
}

// What Append and Attend refuse alike.
template <typename Request>
std::vector<Case<Request>> CommonCases() {
  const auto item = [](Request& r) { return r.mutable_items(1); };
  std::vector<Case<Request>> cases = {
      {"request_id", [](Request& r) { r.set_request_id(std::string(129, 'a')); }},
      {"layer", [](Request& r) { r.set_layer(-1); }},
      {"layer", [](Request& r) { r.set_layer(65536); }},
      {"items", [](Request& r) { r.clear_items(); }},
      {"items",
       [](Request& r) {
         while (r.items_size() <= 4096) *r.add_items() = r.items(0);
       }},
      {"items[1].session", [=](Request& r) { item(r)->clear_session(); }},
      {"items[1].session", [=](Request& r) { item(r)->set_session("a b"); }},
      {"items[1].generation", [=](Request& r) { item(r)->set_generation(0); }},
      {"items[1].num_tokens", [=](Request& r) { item(r)->set_num_tokens(-1); }},
      {"items[1].num_query_tokens", [=](Request& r) { item(r)->set_num_query_tokens(-1); }},
      {"items[1].expected_length", [=](Request& r) { item(r)->clear_expected_length(); }},
      {"items[1].expected_length", [=](Request& r) { item(r)->set_expected_length(-1); }},
      {"items[1].expected_length", [=](Request& r) { item(r)->set_expected_length(kHuge); }},
      {"items[1].query_start", [=](Request& r) { item(r)->set_query_start(-1); }},
      {"items[1].query_start", [=](Request& r) { item(r)->set_query_start(kHuge); }},
      {"items[1].query_stride", [=](Request& r) { item(r)->set_query_stride(-1); }},
      // The sum of tokens that the items claim is more than there is.
      {"key.shape", [=](Request& r) { item(r)->set_num_tokens(3); }},
      {"key.shape", [=](Request& r) { item(r)->set_num_tokens(kHugeCount); }},
      {"query.shape", [=](Request& r) { item(r)->set_num_query_tokens(kHugeCount); }},
      {"key", [](Request& r) { r.clear_key(); }},
      {"value", [](Request& r) { r.clear_value(); }},
      {"query", [](Request& r) { r.clear_query(); }},
      {"value.shape",
       [](Request& r) {  // heads other than the keys'
         r.mutable_value()->set_shape(1, 1);
         r.mutable_value()->set_shape(2, 128);
       }},
      {"value.dtype", [](Request& r) { r.mutable_value()->set_dtype(v1::DATA_TYPE_FP16); }},
  };
  const auto add_tensor = [&](const std::string& name, auto tensor) {
    // Paths outlive the test.
    static std::vector<std::unique_ptr<std::string>> paths;
    const auto path = [&](const char* field) {
      paths.push_back(std::make_unique<std::string>(name + field));
      return paths.back()->c_str();
    };
    const auto set_shape = [tensor](std::vector<std::int64_t> shape) {
      return [tensor, shape](Request& r) {
        tensor(r)->mutable_shape()->Assign(shape.begin(), shape.end());
      };
    };
    cases.push_back({path(".dtype"), [=](Request& r) { tensor(r)->clear_dtype(); }});
    cases.push_back(
        {path(".dtype"), [=](Request& r) { tensor(r)->set_dtype(static_cast<v1::DataType>(7)); }});
    const std::vector<std::vector<std::int64_t>> shapes = {{},
                                                           {5},
                                                           {5, 2},
                                                           {5, 2, 64, 1},
                                                           {4, 2, 64},
                                                           {-5, 2, 64},
                                                           {5, -2, -64},
                                                           {5, 0, 64},
                                                           {5, 2, 0},
                                                           {5, 2, 257},
                                                           {5, 16385, 64},
                                                           {5, kHuge, 64},
                                                           {5, 2, kHuge},
                                                           {kHuge, 2, 64},
                                                           {5, 1LL << 62, 64}};
    for (const auto& shape : shapes) cases.push_back({path(".shape"), set_shape(shape)});
    cases.push_back({path(".raw"), [=](Request& r) { tensor(r)->mutable_raw()->pop_back(); }});
    cases.push_back({path(".raw"), [=](Request& r) { tensor(r)->mutable_raw()->push_back(0); }});
    cases.push_back({path(".raw"), [=](Request& r) { tensor(r)->clear_raw(); }});
    cases.push_back({path(".raw"), [=](Request& r) { tensor(r)->set_dtype(v1::DATA_TYPE_FP32); }});
  };
  add_tensor("key", [](Request& r) { return r.mutable_key(); });
  add_tensor("value", [](Request& r) { return r.mutable_value(); });
  add_tensor("query", [](Request& r) { return r.mutable_query(); });
  return cases;
}

TEST(DecodeBatchTest, AppendNamesWhatIsWrong) {
  using Request = v1::AppendRequest;
  std::vector<Case<Request>> cases = CommonCases<Request>();
  cases.push_back(
      {"items[0].num_tokens", [](Request& r) { r.mutable_items(0)->set_num_tokens(0); }});
  ExpectAllRefused(ValidAppend(), DecodeAppend, cases);
}

TEST(DecodeBatchTest, AttendNamesWhatIsWrong) {
  using Request = v1::AttendRequest;
  std::vector<Case<Request>> cases = CommonCases<Request>();
  cases.push_back({"items[0].num_query_tokens",
                   [](Request& r) { r.mutable_items(0)->clear_num_query_tokens(); }});
  cases.push_back(
      {"items[0].query_stride", [](Request& r) { r.mutable_items(0)->set_query_stride(1); }});
  cases.push_back({"mask", [](Request& r) { r.set_mask(static_cast<v1::Mask>(3)); }});
  cases.push_back(
      {"sink_logits", [](Request& r) { r.set_sink_logits(static_cast<v1::SinkLogits>(-1)); }});
  cases.push_back(
      {"output_dtype", [](Request& r) { r.set_output_dtype(static_cast<v1::DataType>(4)); }});
  ExpectAllRefused(ValidAttend(), DecodeAttend, cases);
}

// Sums of counts beyond 32 bits are refused by the size of what came, not computed with.
TEST(DecodeBatchTest, SumsOfCountsDoNotOverflow) {
  v1::AttendRequest request = ValidAttend();
  for (int i = 0; i < 5; ++i) *request.add_items() = request.items(0);
  for (v1::Item& item : *request.mutable_items()) item.set_num_tokens(kHugeCount);
  request.mutable_key()->set_shape(0, std::int64_t{7} * kHugeCount);
  EXPECT_EQ(FieldOf(DecodeAttend(request).status()), "key.raw");
}

TEST(DecodeBatchTest, RowsGoToItemsInOrder) {
  const v1::AttendRequest request = ValidAttend();
  const absl::StatusOr<DecodedBatch> batch = DecodeAttend(request);
  ASSERT_TRUE(batch.ok());
  ASSERT_EQ(batch->items.size(), 2u);
  const BatchItem& item = batch->items[1];
  EXPECT_EQ(item.session, "b");
  EXPECT_EQ(item.generation, 5u);
  EXPECT_EQ(item.expected_length, 20);
  EXPECT_FALSE(item.query_start.has_value());
  EXPECT_EQ(item.keys.data, request.key().raw().data() + 3 * 2 * 64 * 2);
  EXPECT_EQ(item.values.data, request.value().raw().data() + 3 * 2 * 64 * 2);
  EXPECT_EQ(item.queries.data, request.query().raw().data() + 1 * 4 * 64 * 2);
  EXPECT_EQ(item.queries.heads, 4);
  EXPECT_EQ(batch->num_queries, 3);
  EXPECT_EQ(batch->output_dtype, DType::kBF16);
  EXPECT_TRUE(batch->items[0].options.causal);
  EXPECT_TRUE(batch->items[0].options.count_sink_logits);
}

TEST(DecodeBatchTest, AttendNeedsNoTokens) {
  v1::AttendRequest request;
  testing::AddAttend({}, SessionNamed("a"), 10, 0, 1, request);
  request.mutable_items(0)->clear_expected_length();
  request.set_mask(v1::MASK_NONE);
  request.set_sink_logits(v1::SINK_LOGITS_OMIT);
  request.set_output_dtype(v1::DATA_TYPE_FP32);
  const absl::StatusOr<DecodedBatch> batch = DecodeAttend(request);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_FALSE(batch->items[0].options.causal);
  EXPECT_FALSE(batch->items[0].options.count_sink_logits);
  EXPECT_EQ(batch->output_dtype, DType::kFP32);
}

TEST(DecodeBatchTest, AppendNeedsNoQueries) {
  v1::AppendRequest request;
  testing::AddAppend({}, SessionNamed("a"), 10, 1, request);
  EXPECT_TRUE(DecodeAppend(request).ok());
}

}  // namespace
}  // namespace oscarkv
