#include "server/rpc/token_reader.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/rpc/check_items.h"
#include "server/rpc/fields.h"
#include "server/rpc/limits.h"
#include "server/rpc/tensors.h"

namespace oscarkv {
namespace {

// Large enough to cost little per message, small enough to bound what a slow reader holds up.
constexpr std::int64_t kRunBytes = 4 << 20;
// Of a message beside its elements.
constexpr std::int64_t kMessageBytes = 256;

absl::Status CheckRequest(const v1::ReadTokensRequest& request) {
  absl::Status s = CheckId("session", request.session(), /*required=*/true);
  if (request.generation() == 0) {
    s.Update(InvalidField("generation", "0", "the session's generation"));
  }
  s.Update(CheckRange("layer", request.layer(), 0, limits::kMaxLayerId));
  s.Update(CheckRange("begin", request.begin(), 0, kPositionLimit));
  if (request.has_num_tokens()) {
    s.Update(CheckRange("num_tokens", request.num_tokens(), 0, kPositionLimit));
  }
  return s;
}

// The bytes of a tensor of 16-bit numbers: strings of more than a few bytes are aligned for them.
std::uint16_t* BitsIn(v1::Tensor& tensor) {
  return reinterpret_cast<std::uint16_t*>(tensor.mutable_raw()->data());
}

}  // namespace

absl::StatusOr<TokenReader> TokenReader::Open(const SessionStore& store,
                                              const v1::ReadTokensRequest& request,
                                              std::int64_t max_message_bytes) {
  if (absl::Status s = CheckRequest(request); !s.ok()) return s;
  const absl::StatusOr<SessionInfo> info = store.Get(request.session());
  if (!info.ok()) return info.status();
  TokenReader reader;
  reader.store_ = &store;
  reader.generation_ = request.generation();
  reader.config_ = info->config;
  const absl::StatusOr<const LayerSpec*> spec = LayerOf(*reader.config_, request.layer());
  if (!spec.ok()) return spec.status();
  reader.spec_ = *spec;
  // The store checks generation and begin: an empty read does nothing else.
  if (absl::Status s = store.Read(reader.config_, reader.generation_, request.layer(),
                                  request.begin(), 0, nullptr, nullptr);
      !s.ok()) {
    return s;
  }
  const std::int64_t length =
      info->layers[static_cast<std::size_t>(reader.spec_ - reader.config_->layers.data())].length;
  const std::int64_t end =
      request.has_num_tokens() ? request.begin() + request.num_tokens() : length;
  if (end > length) {
    return InvalidField("num_tokens", absl::StrCat(request.num_tokens()),
                        absl::StrCat("at most ", length - request.begin(), ", up to the length"));
  }
  reader.next_ = request.begin();
  reader.end_ = end;
  const std::int64_t room = std::min(kRunBytes, max_message_bytes - kMessageBytes);
  reader.run_tokens_ = std::max<std::int64_t>(1, room / reader.spec_->logical_bytes_per_token());
  return reader;
}

absl::Status TokenReader::Next(v1::ReadTokensResponse& response) {
  const std::int64_t tokens = std::min(run_tokens_, end_ - next_);
  ShapeTensor({tokens, spec_->kv_heads, spec_->key_dim}, spec_->storage, *response.mutable_key());
  ShapeTensor({tokens, spec_->kv_heads, spec_->value_dim}, spec_->storage,
              *response.mutable_value());
  if (absl::Status s =
          store_->Read(config_, generation_, spec_->layer, next_, tokens,
                       BitsIn(*response.mutable_key()), BitsIn(*response.mutable_value()));
      !s.ok()) {
    return s;
  }
  response.set_begin(next_);
  next_ += tokens;
  return absl::OkStatus();
}

}  // namespace oscarkv
