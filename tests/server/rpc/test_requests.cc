#include "tests/server/rpc/test_requests.h"

#include <cstring>
#include <vector>

#include "absl/types/optional.h"
#include "kernels/api/dtype.h"
#include "server/base/error.h"
#include "server/rpc/tensors.h"
#include "tests/server/rpc/received_status.h"

namespace oscarkv::testing {
namespace {

// In [-1, 1), from a position in a stream of hashes (SplitMix64).
float Element(std::uint64_t stream, std::uint64_t index) {
  std::uint64_t x = stream + (index + 1) * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  x ^= x >> 31;
  return static_cast<float>(static_cast<std::int64_t>(x) >> 40) / static_cast<float>(1 << 23);
}

template <typename Request>
void AddTokens(const TestModel& model, int layer, std::int64_t begin, int tokens,
               Request& request) {
  if (tokens == 0) return;
  AddRows(model, TensorKind::kKey, layer, begin, tokens, *request.mutable_key());
  AddRows(model, TensorKind::kValue, layer, begin, tokens, *request.mutable_value());
}

v1::Item MakeItem(const v1::Session& session, std::int64_t begin, int tokens) {
  v1::Item item;
  item.set_session(session.id());
  item.set_generation(session.generation());
  item.set_num_tokens(tokens);
  item.set_expected_length(begin);
  return item;
}

}  // namespace

v1::CreateSessionRequest CreateRequest(const std::string& session, const TestModel& model) {
  v1::CreateSessionRequest request;
  request.set_session(session);
  request.set_request_id("create " + session);
  request.set_storage_dtype(model.dtype);
  for (int i = 0; i < model.layers; ++i) {
    v1::LayerSpec& layer = *request.add_layers();
    layer.set_layer(i);
    layer.set_query_heads(model.query_heads);
    layer.set_kv_heads(model.kv_heads);
    layer.set_key_dim(model.dim);
  }
  return request;
}

void AddRows(const TestModel& model, TensorKind kind, int layer, std::int64_t begin,
             std::int64_t tokens, v1::Tensor& tensor) {
  const int heads = kind == TensorKind::kQuery ? model.query_heads : model.kv_heads;
  if (tensor.shape().empty()) {
    tensor.set_dtype(model.dtype);
    for (const int size : {0, heads, model.dim}) tensor.add_shape(size);
  }
  tensor.set_shape(0, tensor.shape(0) + tokens);
  const DType dtype = DecodeDType("dtype", model.dtype).value();
  const std::int64_t row = static_cast<std::int64_t>(heads) * model.dim;
  const std::uint64_t stream = (model.seed << 32) + static_cast<std::uint64_t>(layer) * 4 +
                               static_cast<std::uint64_t>(kind) + 1;
  std::vector<float> values(static_cast<std::size_t>(tokens * row));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = Element(stream << 16, static_cast<std::uint64_t>(begin * row) + i);
  }
  v1::Tensor rows;
  ShapeTensor({tokens, heads, model.dim}, dtype, rows);
  RoundFloats(values, dtype, rows);
  tensor.mutable_raw()->append(rows.raw());
}

void AddAppend(const TestModel& model, const v1::Session& session, std::int64_t begin, int tokens,
               v1::AppendRequest& request) {
  *request.add_items() = MakeItem(session, begin, tokens);
  AddTokens(model, request.layer(), begin, tokens, request);
}

void AddAttend(const TestModel& model, const v1::Session& session, std::int64_t begin, int tokens,
               int queries, v1::AttendRequest& request) {
  v1::Item& item = *request.add_items();
  item = MakeItem(session, begin, tokens);
  item.set_num_query_tokens(queries);
  AddTokens(model, request.layer(), begin, tokens, request);
  AddRows(model, TensorKind::kQuery, request.layer(), begin + tokens - queries, queries,
          *request.mutable_query());
}

v1::AppendRequest AppendRequestOf(const TestModel& model, const v1::Session& session, int layer,
                                  std::int64_t begin, int tokens) {
  v1::AppendRequest request;
  request.set_layer(layer);
  AddAppend(model, session, begin, tokens, request);
  return request;
}

v1::AttendRequest AttendRequestOf(const TestModel& model, const v1::Session& session, int layer,
                                  std::int64_t begin, int tokens, int queries) {
  v1::AttendRequest request;
  request.set_layer(layer);
  AddAttend(model, session, begin, tokens, queries, request);
  return request;
}

std::string FieldOf(const absl::Status& status) { return DetailOf(status, "field"); }

std::string ReasonOf(const google::rpc::Status& status) { return ReasonOf(DecodeStatus(status)); }
std::string FieldOf(const google::rpc::Status& status) { return FieldOf(DecodeStatus(status)); }

}  // namespace oscarkv::testing
