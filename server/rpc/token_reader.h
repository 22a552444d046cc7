// Reads a range of a layer's tokens in runs that fit a message.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/api/layer_spec.h"
#include "oscarkv/v1/kv_cache.pb.h"
#include "server/session/session_store.h"

namespace oscarkv {

class TokenReader {
 public:
  // Checks the request against the session. REQUIRES: store outlives the reader; a message of
  // max_message_bytes holds one token of any layer.
  static absl::StatusOr<TokenReader> Open(const SessionStore& store,
                                          const v1::ReadTokensRequest& request,
                                          std::int64_t max_message_bytes);

  bool done() const { return next_ == end_; }

  // The next run. Fails if the session has changed its generation meanwhile. REQUIRES: !done();
  // the response is empty.
  absl::Status Next(v1::ReadTokensResponse& response);

 private:
  TokenReader() = default;

  const SessionStore* store_ = nullptr;
  std::uint64_t generation_ = 0;
  std::shared_ptr<const SessionConfig> config_;
  const LayerSpec* spec_ = nullptr;  // of config_
  std::int64_t next_ = 0;
  std::int64_t end_ = 0;
  std::int64_t run_tokens_ = 0;
};

}  // namespace oscarkv
