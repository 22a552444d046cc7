#include "server/rpc/decode_batch.h"

#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/rpc/fields.h"
#include "server/rpc/limits.h"
#include "server/rpc/tensors.h"

namespace oscarkv {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();

// What an RPC asks of its items.
struct ItemRules {
  std::int64_t min_tokens = 0;
  std::int64_t min_queries = 0;
  std::int64_t max_query_stride = 0;
};
constexpr ItemRules kAppendRules = {.min_tokens = 1, .max_query_stride = kMaxCount};
constexpr ItemRules kAttendRules = {.min_queries = 1};

absl::Status CheckItem(const std::string& field, const v1::Item& item, const ItemRules& rules) {
  const auto path = [&](std::string_view name) { return Joined(field, name); };
  absl::Status s = CheckId(path("session"), item.session(), /*required=*/true);
  if (item.generation() == 0) {
    s.Update(InvalidField(path("generation"), "0", "the session's generation"));
  }
  s.Update(CheckRange(path("num_tokens"), item.num_tokens(), rules.min_tokens, kMaxCount));
  s.Update(
      CheckRange(path("num_query_tokens"), item.num_query_tokens(), rules.min_queries, kMaxCount));
  if (item.has_expected_length()) {
    s.Update(CheckRange(path("expected_length"), item.expected_length(), 0, kPositionLimit));
  } else if (item.num_tokens() > 0) {
    s.Update(InvalidField(path("expected_length"), "unset", "the layer's length before the item"));
  }
  if (item.has_query_start()) {
    s.Update(CheckRange(path("query_start"), item.query_start(), 0, kPositionLimit));
  }
  s.Update(CheckRange(path("query_stride"), item.query_stride(), 0, rules.max_query_stride));
  return s;
}

BatchItem DecodeItem(int layer, const v1::Item& item) {
  BatchItem decoded;
  decoded.layer = layer;
  decoded.session = item.session();
  decoded.generation = item.generation();
  decoded.num_tokens = item.num_tokens();
  decoded.num_queries = item.num_query_tokens();
  decoded.query_stride = item.query_stride();
  if (item.has_expected_length()) decoded.expected_length = item.expected_length();
  if (item.has_query_start()) decoded.query_start = item.query_start();
  return decoded;
}

absl::Status CheckSameShape(const Rows& keys, const Rows& values) {
  if (keys.heads != values.heads) {
    return InvalidField("value.shape", absl::StrCat(values.heads, " heads"),
                        absl::StrCat(keys.heads, ", as of key"));
  }
  if (keys.dtype != values.dtype) {
    return InvalidField("value.dtype", NameOf(values.dtype),
                        absl::StrCat(NameOf(keys.dtype), ", as of key"));
  }
  return absl::OkStatus();
}

// What both requests share. Rows of the tensors go to the items in their order.
template <typename Request>
absl::StatusOr<DecodedBatch> DecodeBatch(const Request& request, const ItemRules& rules) {
  absl::Status s = CheckBytes("request_id", request.request_id(), limits::kRequestIdBytes);
  s.Update(CheckRange("layer", request.layer(), 0, limits::kMaxLayerId));
  if (request.items().empty() || request.items_size() > limits::kItems) {
    s.Update(InvalidField("items", absl::StrCat(request.items_size(), " items"),
                          absl::StrCat("1 to ", limits::kItems)));
  }
  if (!s.ok()) return s;

  DecodedBatch batch;
  batch.layer = request.layer();
  batch.items.reserve(static_cast<std::size_t>(request.items_size()));
  std::int64_t num_tokens = 0;
  for (int i = 0; i < request.items_size(); ++i) {
    const v1::Item& item = request.items(i);
    if (s = CheckItem(Indexed("items", i), item, rules); !s.ok()) return s;
    batch.items.push_back(DecodeItem(request.layer(), item));
    num_tokens += item.num_tokens();
    batch.num_queries += item.num_query_tokens();
  }

  const auto rows_of = [](std::string_view field, bool present, const v1::Tensor& tensor,
                          std::int64_t rows) {
    return DecodeRows(field, present ? &tensor : nullptr, rows);
  };
  const absl::StatusOr<Rows> keys = rows_of("key", request.has_key(), request.key(), num_tokens);
  if (!keys.ok()) return keys.status();
  const absl::StatusOr<Rows> values =
      rows_of("value", request.has_value(), request.value(), num_tokens);
  if (!values.ok()) return values.status();
  const absl::StatusOr<Rows> queries =
      rows_of("query", request.has_query(), request.query(), batch.num_queries);
  if (!queries.ok()) return queries.status();
  if (num_tokens > 0) s = CheckSameShape(*keys, *values);
  if (!s.ok()) return s;

  batch.values = *values;
  batch.queries = *queries;
  std::int64_t token = 0;
  std::int64_t query = 0;
  for (BatchItem& item : batch.items) {
    if (item.num_tokens > 0) item.keys = RowsFrom(*keys, token);
    if (item.num_tokens > 0) item.values = RowsFrom(*values, token);
    if (item.num_queries > 0) item.queries = RowsFrom(*queries, query);
    token += item.num_tokens;
    query += item.num_queries;
  }
  return batch;
}

absl::Status DecodeOptions(const v1::AttendRequest& request, DecodedBatch& batch) {
  if (!v1::Mask_IsValid(request.mask())) {
    return InvalidField("mask", absl::StrCat(static_cast<int>(request.mask())),
                        "MASK_CAUSAL or MASK_NONE");
  }
  if (!v1::SinkLogits_IsValid(request.sink_logits())) {
    return InvalidField("sink_logits", absl::StrCat(static_cast<int>(request.sink_logits())),
                        "SINK_LOGITS_COUNT or SINK_LOGITS_OMIT");
  }
  const AttendOptions options = {
      .causal = request.mask() != v1::MASK_NONE,
      .count_sink_logits = request.sink_logits() != v1::SINK_LOGITS_OMIT};
  for (BatchItem& item : batch.items) item.options = options;
  batch.output_dtype = batch.queries.dtype;
  if (request.output_dtype() == v1::DATA_TYPE_UNSPECIFIED) return absl::OkStatus();
  const absl::StatusOr<DType> dtype = DecodeDType("output_dtype", request.output_dtype());
  if (dtype.ok()) batch.output_dtype = *dtype;
  return dtype.status();
}

}  // namespace

absl::StatusOr<DecodedBatch> DecodeAppend(const v1::AppendRequest& request) {
  return DecodeBatch(request, kAppendRules);
}

absl::StatusOr<DecodedBatch> DecodeAttend(const v1::AttendRequest& request) {
  absl::StatusOr<DecodedBatch> batch = DecodeBatch(request, kAttendRules);
  if (!batch.ok()) return batch;
  if (absl::Status s = DecodeOptions(request, *batch); !s.ok()) return s;
  return batch;
}

}  // namespace oscarkv
