#include "client/session_writer.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/error_info.h"
#include "client/tensors.h"

namespace oscarkv {
namespace {

// Of a message, beside the elements of its tensors: ids, shapes, tags. Generous.
constexpr std::int64_t kEnvelopeBytes = 4096;

absl::Status CheckBytes(const char* name, std::string_view bytes, std::int64_t tokens,
                        std::size_t row_bytes) {
  const std::size_t expected = static_cast<std::size_t>(tokens) * row_bytes;
  if (bytes.size() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " has ", bytes.size(), " bytes; ", tokens,
                                                 " tokens of this layer take ", expected));
}

// The least multiple of `stride` that is not below `position`.
std::int64_t RoundUp(std::int64_t position, std::int64_t stride) {
  const std::int64_t above = position % stride;  // negative below 0
  return above <= 0 ? position - above : position - above + stride;
}

}  // namespace

SessionWriter::SessionWriter(Client* client, const v1::Session& session,
                             std::int64_t max_message_bytes)
    : client_(client),
      max_message_bytes_(client->max_send_message_bytes() > 0
                             ? std::min(max_message_bytes, client->max_send_message_bytes())
                             : max_message_bytes),
      session_(session.id()),
      generation_(session.generation()),
      position_base_(session.position_base()) {
  for (int i = 0; i < session.layers_size() && i < session.layer_states_size(); ++i) {
    const v1::LayerSpec& spec = session.layers(i);
    const v1::LayerState& state = session.layer_states(i);
    layers_[spec.layer()] = {.kv_heads = spec.kv_heads(),
                             .query_heads = spec.query_heads(),
                             .key_dim = spec.key_dim(),
                             .value_dim = spec.value_dim(),
                             .query_sample_stride = std::max(state.query_sample_stride(), 1),
                             .length = state.length()};
  }
}

absl::Status SessionWriter::Append(int layer_id, const LayerTokens& tokens,
                                   const std::function<void(std::int64_t)>& on_progress) {
  const auto found = layers_.find(layer_id);
  if (found == layers_.end()) {
    return absl::NotFoundError(absl::StrCat("session ", session_, " has no layer ", layer_id));
  }
  Layer& layer = found->second;
  const std::size_t element = ElementBytes(tokens.dtype);
  const std::size_t key_row = element * layer.kv_heads * layer.key_dim;
  const std::size_t value_row = element * layer.kv_heads * layer.value_dim;
  const std::size_t query_row =
      ElementBytes(tokens.query_dtype) * layer.query_heads * layer.key_dim;
  absl::Status status = CheckBytes("key", tokens.key, tokens.tokens, key_row);
  status.Update(CheckBytes("value", tokens.value, tokens.tokens, value_row));
  if (!tokens.query.empty()) {
    status.Update(CheckBytes("query", tokens.query, tokens.tokens, query_row));
  }
  if (!status.ok()) return status;

  const std::int64_t step = TokensPerMessage(layer, tokens);
  for (std::int64_t begin = 0; begin < tokens.tokens; begin += step) {
    const std::int64_t end = std::min(begin + step, tokens.tokens);
    const auto response = client_->Append(MakeRequest(layer_id, layer, tokens, begin, end));
    if (!response.ok()) return response.status();
    if (absl::Status error = FirstItemError(*response); !error.ok()) return error;
    layer.length += end - begin;
    if (on_progress) on_progress(end - begin);
  }
  return absl::OkStatus();
}

std::int64_t SessionWriter::TokensPerMessage(const Layer& layer, const LayerTokens& tokens) const {
  const std::int64_t token_bytes =
      static_cast<std::int64_t>(tokens.key.size() + tokens.value.size()) /
      std::max<std::int64_t>(tokens.tokens, 1);
  const std::int64_t query_bytes =
      static_cast<std::int64_t>(tokens.query.size()) / std::max<std::int64_t>(tokens.tokens, 1);
  // n tokens hold at most n / stride + 1 sampled queries.
  const std::int64_t room = max_message_bytes_ - kEnvelopeBytes - query_bytes;
  const std::int64_t stride = layer.query_sample_stride;
  const std::int64_t fitting =
      room * stride / std::max<std::int64_t>(token_bytes * stride + query_bytes, 1);
  return std::max<std::int64_t>(fitting, 1);
}

v1::AppendRequest SessionWriter::MakeRequest(int id, const Layer& layer, const LayerTokens& tokens,
                                             std::int64_t begin, std::int64_t end) const {
  const auto rows = [&](std::string_view bytes) {
    const std::size_t row = bytes.size() / static_cast<std::size_t>(tokens.tokens);
    return bytes.substr(begin * row, (end - begin) * row);
  };
  v1::AppendRequest request;
  request.set_layer(id);
  v1::Item& item = *request.add_items();
  item.set_session(session_);
  item.set_generation(generation_);
  item.set_num_tokens(static_cast<std::int32_t>(end - begin));
  item.set_expected_length(layer.length);
  *request.mutable_key() =
      MakeTensor(tokens.dtype, {end - begin, layer.kv_heads, layer.key_dim}, rows(tokens.key));
  *request.mutable_value() =
      MakeTensor(tokens.dtype, {end - begin, layer.kv_heads, layer.value_dim}, rows(tokens.value));

  const std::int64_t stride = layer.query_sample_stride;
  const std::int64_t start = position_base_ + layer.length;  // position of the token `begin`
  const std::int64_t stop = start + end - begin;
  const std::int64_t first = RoundUp(start, stride);
  if (tokens.query.empty() || first >= stop) return request;
  const std::size_t row = tokens.query.size() / static_cast<std::size_t>(tokens.tokens);
  std::string sampled;
  for (std::int64_t position = first; position < stop; position += stride) {
    sampled.append(tokens.query.substr((begin + position - start) * row, row));
  }
  const auto count = static_cast<std::int64_t>(sampled.size() / row);
  item.set_num_query_tokens(static_cast<std::int32_t>(count));
  item.set_query_start(first);
  item.set_query_stride(static_cast<std::int32_t>(stride));
  *request.mutable_query() =
      MakeTensor(tokens.query_dtype, {count, layer.query_heads, layer.key_dim}, sampled);
  return request;
}

}  // namespace oscarkv
