// Checks of items against the sessions that they name, before the store sees them.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/layer_spec.h"
#include "server/rpc/decode_batch.h"
#include "server/session/session_store.h"

namespace oscarkv {

// The spec of a layer; NOT_FOUND if the session has no such layer. Points into `config`.
absl::StatusOr<const LayerSpec*> LayerOf(const SessionConfig& config, int layer);

// Rows of an item against its layer: heads, width, dtype, and no NaN or infinity once rounded to
// the storage dtype (queries: as they stand). INVALID_ARGUMENT with a field relative to the item.
absl::Status CheckRows(const LayerSpec& spec, const BatchItem& item);

// Sets the status of each item that cannot be applied, with the session's generation and the
// layer's length, and the config of each that can: the store refuses it if another session has
// taken the id since; and its checksum. Returns the width of the values of those that can, which is
// the same for all of them; 0 if there are none.
int CheckItems(const SessionStore& store, DecodedBatch& batch);

}  // namespace oscarkv
