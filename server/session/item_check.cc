#include "server/session/item_check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/base/string_view.h"

namespace oscarkv {
namespace {

absl::Status CheckRows(std::string_view field, const Rows& rows, int heads, int dim) {
  if (rows.heads == heads && rows.dim == dim) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(rows.heads, " heads of ", rows.dim),
                      absl::StrCat(heads, " heads of ", dim, ", as the session's layer has"));
}

absl::Status Mismatch(std::string_view reason, const std::string& message, std::uint64_t generation,
                      std::int64_t length) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition, message,
      {.reason = std::string(reason),
       .metadata = {{"generation", absl::StrCat(generation)}, {"length", absl::StrCat(length)}}});
}

// The first multiple of `stride` at or after `position`. REQUIRES: stride > 0.
std::int64_t RoundUp(std::int64_t position, std::int64_t stride) {
  const std::int64_t rest = position % stride;
  return rest == 0 ? position : position - rest + (rest > 0 ? stride : 0);
}

absl::Status QueryStartError(const BatchItem& item, const std::string& expected) {
  return InvalidField("query_start", item.query_start ? absl::StrCat(*item.query_start) : "not set",
                      expected);
}

}  // namespace

absl::Status SessionNotFound(std::string_view id) {
  return MakeError(absl::StatusCode::kNotFound,
                   absl::StrCat("there is no session \"", ToAbsl(id), "\""),
                   {.reason = "SESSION_NOT_FOUND",
                    .metadata = {{"field", "session"}, {"value", std::string(id)}}});
}

absl::Status LayerNotFound(std::string_view id, int layer) {
  return MakeError(
      absl::StatusCode::kNotFound,
      absl::StrCat("session \"", ToAbsl(id), "\" has no layer ", layer),
      {.reason = "LAYER_NOT_FOUND",
       .metadata = {
           {"field", "layer"}, {"value", absl::StrCat(layer)}, {"session", std::string(id)}}});
}

absl::Status GenerationMismatch(std::uint64_t asked, std::uint64_t generation,
                                std::int64_t length) {
  return Mismatch("GENERATION_MISMATCH",
                  absl::StrCat("generation is ", asked, "; the session's is ", generation),
                  generation, length);
}

absl::Status TokensFreed(std::string_view field, std::int64_t value, std::int64_t least) {
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("tokens that no query could see have been freed: ", ToAbsl(field),
                                " is ", value, "; expected ", least, " or more"),
                   {.reason = "TOKENS_FREED",
                    .metadata = {{"field", std::string(field)},
                                 {"value", absl::StrCat(value)},
                                 {"expected", absl::StrCat(least, " or more")}}});
}

absl::Status CheckKept(std::string_view field, std::int64_t length, std::int64_t most,
                       const SessionInfo& info) {
  if (length < 0 || length > most) {
    return InvalidField(field, absl::StrCat(length), absl::StrCat("0 to ", most));
  }
  if (length == 0 || length >= info.min_truncate_length) return absl::OkStatus();
  return TokensFreed(field, length, info.min_truncate_length);
}

absl::Status CheckTensors(const LayerSpec& spec, const BatchItem& item) {
  absl::Status status;
  if (item.num_tokens > 0) {
    const DType dtype = item.keys.dtype;
    status.Update(CheckRows("key.shape", item.keys, spec.kv_heads, spec.key_dim));
    status.Update(CheckRows("value.shape", item.values, spec.kv_heads, spec.value_dim));
    if (dtype != spec.storage && dtype != DType::kFP32) {
      status.Update(InvalidField(
          "key.dtype", NameOf(dtype),
          absl::StrCat(NameOf(spec.storage), ", the session's storage dtype, or fp32")));
    }
    if (item.values.dtype != dtype) {
      status.Update(InvalidField("value.dtype", NameOf(item.values.dtype),
                                 absl::StrCat(NameOf(dtype), ", as of key")));
    }
  }
  if (item.num_queries > 0) {
    status.Update(CheckRows("query.shape", item.queries, spec.query_heads, spec.key_dim));
  }
  return status;
}

absl::Status CheckShapes(const LayerSpec& spec, const BatchItem& item, bool attend) {
  if (item.num_tokens < 0 || (item.num_tokens == 0 && !attend)) {
    return InvalidField("num_tokens", absl::StrCat(item.num_tokens),
                        attend ? "0 or more" : "1 or more");
  }
  if (item.num_queries < 0 || (item.num_queries == 0 && attend)) {
    return InvalidField("num_query_tokens", absl::StrCat(item.num_queries),
                        attend ? "1 or more" : "0 or more");
  }
  if (item.query_stride < 0) {
    return InvalidField("query_stride", absl::StrCat(item.query_stride), "0 or more");
  }
  return CheckTensors(spec, item);
}

absl::StatusOr<AppendKind> CheckLength(const LayerState& layer, const BatchItem& item,
                                       std::uint32_t crc, std::uint64_t generation) {
  if (!item.expected_length) {
    if (item.num_tokens == 0) return AppendKind::kNone;
    return InvalidField("expected_length", "not set", "the layer's length");
  }
  const std::int64_t expected = *item.expected_length;
  const std::int64_t length = layer.length();
  if (expected == length) return item.num_tokens == 0 ? AppendKind::kNone : AppendKind::kNew;
  const std::optional<AppendRecord>& last = layer.last_append();
  if (item.num_tokens == 0 || !last || expected != last->start || item.num_tokens != last->count) {
    return Mismatch(
        "LENGTH_MISMATCH",
        absl::StrCat("expected_length is ", expected, "; the layer's length is ", length),
        generation, length);
  }
  if (crc != last->crc || item.keys.dtype != last->dtype) {
    return Mismatch("REPEAT_MISMATCH",
                    absl::StrCat("other bytes were appended at ", expected, " before"), generation,
                    length);
  }
  return AppendKind::kRepeat;
}

absl::StatusOr<QueryRows> QueriesOf(const BatchItem& item, bool attend, std::int64_t position_base,
                                    std::int64_t length) {
  QueryRows rows{.dtype = item.queries.dtype,
                 .data = item.queries.data,
                 .count = item.num_queries,
                 .stride = !attend && item.query_stride > 0 ? item.query_stride : 1};
  if (rows.count == 0) return rows;
  if (item.query_start) {
    if (__builtin_sub_overflow(*item.query_start, position_base, &rows.begin) ||
        rows.begin > kPositionLimit || rows.begin < -kPositionLimit) {
      return QueryStartError(item, absl::StrCat("a position within 2^48 of ", position_base));
    }
  } else if (attend) {
    rows.begin = length - rows.count;
  } else {
    const std::int64_t first = position_base + length - item.num_tokens;
    rows.begin = RoundUp(first, rows.stride) - position_base;
  }
  const std::int64_t last = rows.begin + (rows.count - 1) * rows.stride;
  if (!attend && (rows.begin < length - item.num_tokens || last >= length)) {
    return QueryStartError(item, absl::StrCat("with query_stride ", rows.stride, " and ",
                                              rows.count, " query tokens, positions in [",
                                              position_base + length - item.num_tokens, ", ",
                                              position_base + length, ")"));
  }
  return rows;
}

absl::Status CheckSeen(const LayerState& layer, const QueryRows& queries,
                       std::int64_t position_base) {
  const std::int64_t least = layer.kept_from() + layer.spec().sliding_window - 1;
  if (layer.kept_from() == 0 || queries.begin >= least) return absl::OkStatus();
  return TokensFreed("query_start", position_base + queries.begin, position_base + least);
}

}  // namespace oscarkv
