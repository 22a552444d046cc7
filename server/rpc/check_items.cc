#include "server/rpc/check_items.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/rpc/fields.h"
#include "server/rpc/tensors.h"
#include "server/session/item_check.h"

namespace oscarkv {
namespace {

float ElementAt(const Rows& rows, std::size_t index) {
  float value = 0;
  const char* element = static_cast<const char*>(rows.data) + index * SizeOf(rows.dtype);
  ToFloats(rows.dtype, element, 1, &value);
  return value;
}

absl::Status CheckUsable(std::string_view field, const Rows& rows, std::int64_t count,
                         DType rounded_to) {
  const std::int64_t row = ElementsPerRow(rows);
  const std::optional<std::size_t> bad = FindUnusable(
      rows.dtype, rows.data, static_cast<std::size_t>(count * row), rounded_to, kLargestInput);
  if (!bad.has_value()) return absl::OkStatus();
  const auto index = static_cast<std::int64_t>(*bad);
  const std::int64_t in_row = index % row;
  return InvalidField(field,
                      absl::StrCat(ElementAt(rows, *bad), " at token ", index / row, ", head ",
                                   in_row / rows.dim, ", channel ", in_row % rows.dim),
                      absl::StrCat("numbers of magnitude up to ",
                                   std::min(kLargestInput, LargestFinite(rounded_to))));
}

// Checks one item, and ties it to the session that it was checked by; `value_dim` is that of the
// items before it that can be applied, or 0.
absl::Status CheckAgainstSession(const SessionStore& store, int layer, BatchItem& item,
                                 int& value_dim) {
  absl::StatusOr<std::shared_ptr<const SessionConfig>> config = store.ConfigOf(item.session);
  if (!config.ok()) return config.status();
  const absl::StatusOr<const LayerSpec*> spec = LayerOf(**config, layer);
  if (!spec.ok()) return spec.status();
  if (absl::Status s = CheckRows(**spec, item); !s.ok()) return s;
  if (value_dim != 0 && (*spec)->value_dim != value_dim) {
    return InvalidField("session", absl::StrCat((*config)->id, ", value_dim ", (*spec)->value_dim),
                        absl::StrCat("value_dim ", value_dim, ", as of the items before"));
  }
  value_dim = (*spec)->value_dim;
  item.config = *std::move(config);
  item.crc = CrcOf(item);
  return absl::OkStatus();
}

// An item that is refused here never reaches the store, which would fill these in.
void FillLengths(const SessionStore& store, int layer, BatchItem& item) {
  const absl::StatusOr<SessionInfo> info = store.Get(item.session);
  if (!info.ok()) return;
  item.generation_after = info->generation;
  if (const auto index = info->config->IndexOf(layer)) {
    item.length_after = info->layers[*index].length;
  }
}

}  // namespace

absl::StatusOr<const LayerSpec*> LayerOf(const SessionConfig& config, int layer) {
  const std::optional<std::size_t> index = config.IndexOf(layer);
  if (!index) return LayerNotFound(config.id, layer);
  return &config.layers[*index];
}

absl::Status CheckRows(const LayerSpec& spec, const BatchItem& item) {
  absl::Status s = CheckTensors(spec, item);
  if (!s.ok()) return s;  // the rows are not what they seem
  if (item.num_tokens > 0) {
    s.Update(CheckUsable("key", item.keys, item.num_tokens, spec.storage));
    s.Update(CheckUsable("value", item.values, item.num_tokens, spec.storage));
  }
  if (item.num_queries > 0) {
    s.Update(CheckUsable("query", item.queries, item.num_queries, DType::kFP32));
  }
  return s;
}

int CheckItems(const SessionStore& store, DecodedBatch& batch) {
  int value_dim = 0;
  for (BatchItem& item : batch.items) {
    item.status = CheckAgainstSession(store, batch.layer, item, value_dim);
    if (!item.status.ok()) FillLengths(store, batch.layer, item);
  }
  return value_dim;
}

}  // namespace oscarkv
