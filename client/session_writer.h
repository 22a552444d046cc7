// Appends contexts of any size to a session: splits them into messages that fit, names the expected
// lengths so that retries are safe, and sends along the queries that the server samples.
//
// Thread-safety: different layers may be appended at once; one layer by one thread at a time.
// Invariant: of each layer, length() is what the server has acknowledged to this writer; nobody
// else appends to the layer meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "oscarkv/v1/kv_cache.pb.h"

namespace oscarkv {

// Consecutive tokens of one layer. Bytes are little-endian and packed, and stay the caller's.
struct LayerTokens {
  std::int64_t tokens = 0;
  v1::DataType dtype = v1::DATA_TYPE_UNSPECIFIED;  // of key and value
  std::string_view key;                            // [tokens, kv_heads, key_dim], after RoPE
  std::string_view value;                          // [tokens, kv_heads, value_dim]
  // Queries of all the tokens, for PLAN_MODE_AUTO: only those that the server samples are sent.
  v1::DataType query_dtype = v1::DATA_TYPE_UNSPECIFIED;
  std::string_view query;  // [tokens, query_heads, key_dim], after RoPE, or empty
};

class SessionWriter {
 public:
  // Messages take at most `max_message_bytes`, and never more than the client sends; a single token
  // is not split. `session` is as returned by CreateSession, GetSession or TruncateSession.
  // REQUIRES: `client` outlives the writer.
  SessionWriter(Client* client, const v1::Session& session,
                std::int64_t max_message_bytes = kMaxMessageBytes);

  // Appends in order. On an error what was appended before it stays: length() tells how much.
  // `on_progress` is called with the number of tokens after each message. INVALID_ARGUMENT if the
  // sizes do not fit the layer; NOT_FOUND if there is none of that id.
  absl::Status Append(int layer, const LayerTokens& tokens,
                      const std::function<void(std::int64_t)>& on_progress = nullptr);

  // Counts tokens that an Attend by the same caller has appended. REQUIRES: the session has the
  // layer.
  void CountAppended(int layer, std::int64_t tokens) { layers_.at(layer).length += tokens; }

  // Tokens of a layer. REQUIRES: the session has the layer.
  std::int64_t length(int layer) const { return layers_.at(layer).length; }

  static constexpr std::int64_t kMaxMessageBytes = 4 << 20;

 private:
  struct Layer {
    int kv_heads = 0;
    int query_heads = 0;
    int key_dim = 0;
    int value_dim = 0;
    int query_sample_stride = 0;
    std::int64_t length = 0;
  };

  std::int64_t TokensPerMessage(const Layer& layer, const LayerTokens& tokens) const;
  // The tokens [begin, end) of `tokens`.
  v1::AppendRequest MakeRequest(int id, const Layer& layer, const LayerTokens& tokens,
                                std::int64_t begin, std::int64_t end) const;

  Client* const client_;
  const std::int64_t max_message_bytes_;
  const std::string session_;
  const std::uint64_t generation_;
  const std::int64_t position_base_;
  std::map<int, Layer> layers_;
};

}  // namespace oscarkv
