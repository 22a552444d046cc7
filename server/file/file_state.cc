#include "server/file/file_state.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/api/dtype.h"
#include "kernels/api/page_layout.h"
#include "server/base/string_view.h"

namespace oscarkv {
namespace {

// What the fields of a record may be.
struct Allowed {
  std::int64_t least_count = 0;
  std::int64_t most_count = 0;
  bool has_begin = false;
  std::uint16_t flags = 0;
  std::uint64_t payload_bytes = 0;
};

std::uint64_t TokenBytes(const LayerSpec& spec, std::int64_t tokens) {
  return static_cast<std::uint64_t>(TokenBlockLayout(spec, static_cast<int>(tokens)).bytes);
}

// For a record of a layer; the payload's size is right where the count is.
Allowed AllowedOf(const RecordHeader& header, const LayerSpec& spec) {
  const auto key_dim = static_cast<std::uint64_t>(spec.key_dim);
  switch (header.type) {
    case RecordType::kSinks:
      return {.least_count = 1,
              .most_count = spec.codec.sinks,
              .payload_bytes = TokenBytes(spec, header.count)};
    case RecordType::kPage:
      return {.least_count = 1,
              .most_count = spec.seals() ? kPageTokens : 0,
              .has_begin = true,
              .flags = kBlindPage,
              .payload_bytes = static_cast<std::uint64_t>(PageLayout(spec).bytes)};
    case RecordType::kBlock:
      return {.least_count = 1,
              .most_count = kWindowBlockTokens,
              .has_begin = true,
              .payload_bytes = TokenBytes(spec, header.count)};
    case RecordType::kQuery:
      return {.least_count = 1,
              .most_count = 1,
              .has_begin = true,
              .payload_bytes = 2 * static_cast<std::uint64_t>(spec.query_heads) * key_dim};
    case RecordType::kDirections:
      return {.has_begin = true,
              .payload_bytes = sizeof(float) * static_cast<std::uint64_t>(spec.kv_heads) * key_dim};
    default:  // kTruncate, kRelease
      return {.has_begin = true};
  }
}

Allowed AllowedOf(const RecordHeader& header, std::size_t layers) {
  if (header.type != RecordType::kCommit) return {};
  return {.most_count = static_cast<std::int64_t>(limits::kRequestIdBytes),
          .payload_bytes = CommitBytes(layers, static_cast<std::uint64_t>(header.count))};
}

bool IsOfLayer(RecordType type) {
  return RecordType::kSession < type && type < RecordType::kCommit;
}

absl::Status WrongField(const RecordHeader& header, std::string_view field, std::int64_t found,
                        std::string_view expected) {
  return FileDamaged(header.offset,
                     absl::StrCat(NameOf(header.type), " record: ", ToAbsl(field), " ", found),
                     expected);
}

absl::Status CheckAllowed(const RecordHeader& header, const Allowed& allowed) {
  if (header.count < allowed.least_count || header.count > allowed.most_count) {
    return WrongField(header, "count", header.count,
                      absl::StrCat(allowed.least_count, " to ", allowed.most_count));
  }
  const std::int64_t last_begin = allowed.has_begin ? kPositionLimit - header.count : 0;
  if (header.begin < 0 || header.begin > last_begin) {
    return WrongField(header, "begin", header.begin, absl::StrCat("0 to ", last_begin));
  }
  if ((header.flags & ~allowed.flags) != 0) {
    return WrongField(header, "flags", header.flags, absl::StrCat("bits of ", allowed.flags));
  }
  if (header.payload_bytes != allowed.payload_bytes) {
    return WrongField(header, "payload of", static_cast<std::int64_t>(header.payload_bytes),
                      absl::StrCat(allowed.payload_bytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

SessionFileState::SessionFileState(SessionFields fields, std::uint64_t file_id,
                                   std::uint64_t session_bytes)
    : fields_(std::move(fields)),
      file_id_(file_id),
      session_end_(sizeof(FileStart) + sizeof(RecordHeader) + PaddedBytes(session_bytes)) {
  for (const LayerSpec& spec : config().layers) layers_.emplace_back(spec);
}

std::uint64_t SessionFileState::live_bytes() const {
  std::uint64_t bytes = session_end_;
  for (const FileLayer& layer : layers_) bytes += layer.live_bytes();
  return bytes;
}

absl::Status SessionFileState::Check(const RecordHeader& header) const {
  if (header.type < RecordType::kSession || header.type > RecordType::kConfirm) {
    return FileUnsupported("record type", absl::StrCat(static_cast<int>(header.type)),
                           absl::StrCat("1 to ", static_cast<int>(RecordType::kConfirm)));
  }
  if (header.type == RecordType::kSession) {
    return FileDamaged(header.offset, "another session record", "one, at the begin of the file");
  }
  const bool of_layer = IsOfLayer(header.type);
  const std::size_t layers = of_layer ? layers_.size() : 1;
  if (header.layer >= layers) {
    return WrongField(header, "layer", header.layer, absl::StrCat("less than ", layers));
  }
  if (!of_layer) return CheckAllowed(header, AllowedOf(header, layers_.size()));

  const LayerSpec& spec = config().layers[header.layer];
  // A count that is out of range sizes nothing.
  if (header.count < 0 || header.count > kPageTokens) {
    return WrongField(header, "count", header.count, absl::StrCat("0 to ", kPageTokens));
  }
  if (absl::Status s = CheckAllowed(header, AllowedOf(header, spec)); !s.ok()) return s;
  if (header.type == RecordType::kQuery &&
      (header.begin + config().position_base) % spec.query_sample_stride() != 0) {
    return WrongField(
        header, "position", header.begin,
        absl::StrCat("with position_base a multiple of ", spec.query_sample_stride()));
  }
  if (header.type == RecordType::kDirections &&
      (!spec.has_residual() || !spec.given_directions.empty())) {
    return WrongField(header, "layer", header.layer, "one that finds residual directions");
  }
  return absl::OkStatus();
}

absl::Status SessionFileState::CheckPayload(const RecordHeader& header,
                                            std::span<const std::byte> payload) const {
  DType dtype = config().storage;
  switch (header.type) {
    case RecordType::kSinks:
    case RecordType::kBlock:
    case RecordType::kQuery:
      break;
    case RecordType::kDirections:
      dtype = DType::kFP32;
      break;
    default:
      return absl::OkStatus();
  }
  const auto unusable = FindUnusable(dtype, payload.data(), payload.size() / SizeOf(dtype), dtype,
                                     std::numeric_limits<float>::infinity());
  if (!unusable) return absl::OkStatus();
  return WrongField(header, "element", static_cast<std::int64_t>(*unusable), "finite numbers");
}

absl::Status SessionFileState::Apply(const RecordHeader& header) {
  if (IsOfLayer(header.type)) return layers_[header.layer].Apply(header);
  if (header.type == RecordType::kConfirm && header.offset == committed_end_) {
    committed_end_ += sizeof(RecordHeader);
    return absl::OkStatus();
  }
  return FileDamaged(header.offset, absl::StrCat(NameOf(header.type), " record"),
                     "a confirmation right after its commit");
}

absl::Status SessionFileState::ApplyCommit(const RecordHeader& header, SessionCommit commit) {
  if (last_commit_ && commit.generation < last_commit_->generation) {
    return FileDamaged(header.offset, absl::StrCat("commit record: generation ", commit.generation),
                       absl::StrCat("at least ", last_commit_->generation));
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    absl::Status s = layers_[i].CheckWhole(header.offset, commit.layers[i].length);
    if (!s.ok()) return s;
  }
  last_commit_ = std::move(commit);
  ++commits_;
  committed_end_ = header.offset + sizeof(header) + PaddedBytes(header.payload_bytes);
  return absl::OkStatus();
}

}  // namespace oscarkv
