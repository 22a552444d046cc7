// What a batch item must fulfil before anything changes. Pure functions; the errors name a field of
// the item ("key", "query_start") without the item's place in the request.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/layer_spec.h"
#include "server/session/layer_state.h"
#include "server/session/query_sample.h"
#include "server/session/session_store.h"

namespace oscarkv {

absl::Status SessionNotFound(std::string_view id);
absl::Status LayerNotFound(std::string_view id, int layer);
// FAILED_PRECONDITION with the session's generation and the layer's length.
absl::Status GenerationMismatch(std::uint64_t asked, std::uint64_t generation, std::int64_t length);

// FAILED_PRECONDITION: `field` is `value`, for which tokens would be needed that have been freed;
// at least `least` would do.
absl::Status TokensFreed(std::string_view field, std::int64_t value, std::int64_t least);
// Whether a session can be cut to `length` exactly. INVALID_ARGUMENT beyond `most`, TokensFreed.
absl::Status CheckKept(std::string_view field, std::int64_t length, std::int64_t most,
                       const SessionInfo& info);

// Heads, dims and dtypes of the item's tensors against the layer: INVALID_ARGUMENT.
absl::Status CheckTensors(const LayerSpec& spec, const BatchItem& item);
// The item's counts, then CheckTensors.
absl::Status CheckShapes(const LayerSpec& spec, const BatchItem& item, bool attend);

enum class AppendKind {
  kNone,    // no tokens
  kNew,     // tokens that follow the layer's
  kRepeat,  // the layer's last append again
};
// Where the item's tokens go. `crc`: AppendRecord::crc of the item. Errors: INVALID_ARGUMENT
// without an expected length, FAILED_PRECONDITION with LENGTH_MISMATCH or REPEAT_MISMATCH.
absl::StatusOr<AppendKind> CheckLength(const LayerState& layer, const BatchItem& item,
                                       std::uint32_t crc, std::uint64_t generation);

// The item's queries, with the default position filled in: REQUIRES CheckShapes and CheckLength.
// `length`: of the layer after the item. INVALID_ARGUMENT for positions out of range.
absl::StatusOr<QueryRows> QueriesOf(const BatchItem& item, bool attend, std::int64_t position_base,
                                    std::int64_t length);
// Whether all that the queries see is there: TokensFreed.
absl::Status CheckSeen(const LayerState& layer, const QueryRows& queries,
                       std::int64_t position_base);

}  // namespace oscarkv
