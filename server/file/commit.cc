#include "server/file/commit.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/base/string_view.h"
#include "server/file/byte_codec.h"
#include "server/file/session_fields.h"

namespace oscarkv {
namespace {

void PutLayer(const LayerCommit& layer, ByteWriter& out) {
  const AppendRecord append = layer.last_append.value_or(AppendRecord{});
  out.Put(layer.length);
  out.Put(append.start);
  out.Put(append.count);
  out.Put(append.crc);
  out.Put(static_cast<std::uint32_t>(append.dtype));
  out.Put(static_cast<std::uint32_t>(layer.last_append.has_value()));
}

// Numbers that are no DType or bool make `right` false.
LayerCommit TakeLayer(ByteReader& in, bool& right) {
  LayerCommit layer;
  layer.length = in.Take<std::int64_t>();
  AppendRecord append;
  append.start = in.Take<std::int64_t>();
  append.count = in.Take<std::int32_t>();
  append.crc = in.Take<std::uint32_t>();
  const auto dtype = in.Take<std::uint32_t>();
  const auto present = in.Take<std::uint32_t>();
  right = right && dtype <= static_cast<std::uint32_t>(DType::kFP32) && present <= 1;
  append.dtype = right ? static_cast<DType>(dtype) : DType::kBF16;
  if (present == 1) {
    layer.last_append = append;
  } else {
    right = right && append == AppendRecord{};
  }
  return layer;
}

// 0: for ever.
std::int64_t NanosecondsOf(absl::Duration ttl) {
  return ttl == absl::InfiniteDuration() ? 0 : absl::ToInt64Nanoseconds(ttl);
}

bool IsLength(std::int64_t length) { return 0 <= length && length <= kPositionLimit; }

}  // namespace

std::int64_t RequestIdBytes(const SessionCommit& commit) {
  return commit.last_truncate ? static_cast<std::int64_t>(commit.last_truncate->request_id.size())
                              : 0;
}

absl::Status CheckCommit(const SessionCommit& commit) {
  if (const auto& truncate = commit.last_truncate) {
    if (truncate->request_id.empty() || truncate->request_id.size() > limits::kRequestIdBytes) {
      return InvalidField("last_truncate.request_id",
                          absl::StrCat(truncate->request_id.size(), " bytes"),
                          absl::StrCat("1 to ", limits::kRequestIdBytes));
    }
    if (!IsLength(truncate->length)) {
      return InvalidField("last_truncate.length", absl::StrCat(truncate->length),
                          absl::StrCat("0 to ", kPositionLimit));
    }
  }
  if (commit.retention.ttl < absl::Nanoseconds(1)) {
    return InvalidField("retention.ttl", absl::FormatDuration(commit.retention.ttl), "1ns or more");
  }
  if (!IsLength(commit.prefix_limit)) {
    return InvalidField("prefix_limit", absl::StrCat(commit.prefix_limit),
                        absl::StrCat("0 to ", kPositionLimit));
  }
  for (const LayerCommit& layer : commit.layers) {
    if (!IsLength(layer.length)) {
      return InvalidField("length", absl::StrCat(layer.length),
                          absl::StrCat("0 to ", kPositionLimit));
    }
    const auto& append = layer.last_append;
    if (append &&
        (append->count < 1 || append->start < 0 || append->start != layer.length - append->count)) {
      return InvalidField("last_append",
                          absl::StrCat(append->count, " tokens from ", append->start),
                          absl::StrCat("tokens up to ", layer.length));
    }
  }
  return absl::OkStatus();
}

std::vector<std::byte> EncodeCommit(const SessionCommit& commit) {
  const TruncateRecord truncate = commit.last_truncate.value_or(TruncateRecord{});
  ByteWriter out;
  out.Put(commit.generation);
  out.Put(absl::ToUnixNanos(commit.time));
  out.Put(truncate.generation);
  out.Put(truncate.length);
  out.Put(commit.prefix_limit);
  out.Put(NanosecondsOf(commit.retention.ttl));
  out.Put(std::int32_t{commit.retention.priority});
  out.Put(static_cast<std::uint32_t>(commit.retention.pinned));
  for (const LayerCommit& layer : commit.layers) PutLayer(layer, out);
  for (const char c : truncate.request_id) out.Put(c);
  return std::move(out.bytes());
}

absl::StatusOr<SessionCommit> DecodeCommit(const RecordHeader& header, std::size_t layers,
                                           std::span<const std::byte> payload) {
  ByteReader in(payload);
  bool right = true;
  SessionCommit commit;
  commit.generation = in.Take<std::uint64_t>();
  commit.time = absl::FromUnixNanos(in.Take<std::int64_t>());
  TruncateRecord truncate;
  truncate.generation = in.Take<std::uint64_t>();
  truncate.length = in.Take<std::int64_t>();
  commit.prefix_limit = in.Take<std::int64_t>();
  const auto ttl = in.Take<std::int64_t>();
  commit.retention.ttl = ttl == 0 ? absl::InfiniteDuration() : absl::Nanoseconds(ttl);
  commit.retention.priority = in.Take<std::int32_t>();
  const auto pinned = in.Take<std::uint32_t>();
  right = right && pinned <= 1;
  commit.retention.pinned = pinned == 1;
  while (commit.layers.size() < layers) commit.layers.push_back(TakeLayer(in, right));
  for (auto i = header.count; i > 0; --i) truncate.request_id.push_back(in.Take<char>());
  if (!truncate.request_id.empty()) {
    commit.last_truncate = std::move(truncate);
  } else {
    right = right && truncate == TruncateRecord{};
  }
  if (!right || !in.complete()) {
    return FileDamaged(header.offset, "commit record: a field out of its range",
                       "fields of this version");
  }
  if (const absl::Status s = CheckCommit(commit); !s.ok()) {
    return FileDamaged(header.offset, absl::StrCat("commit record: ", s.message()),
                       "a state of the session");
  }
  return commit;
}

}  // namespace oscarkv
