#include "server/file/session_file_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/crc32c.h"
#include "server/base/string_view.h"

namespace oscarkv {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 16;

std::string ChecksumText(std::uint32_t crc) { return absl::StrCat("checksum ", absl::Hex(crc)); }

}  // namespace

SessionFileReader::SessionFileReader(SessionFileState state)
    : visitor_(nullptr),
      stage_(Stage::kHeader),
      received_(state.committed_end()),
      offset_(state.committed_end()),
      file_id_(state.file_id()),
      state_(std::move(state)) {}

absl::Status SessionFileReader::Push(std::span<const std::byte> bytes) {
  while (!bytes.empty() && status_.ok()) {
    const std::uint64_t wanted = Wanted();
    const std::span<const std::byte> taken =
        bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(wanted, bytes.size())));
    bytes = bytes.subspan(taken.size());
    received_ += taken.size();
    if (stage_ == Stage::kDamage) {
      status_ = finder_.Push(taken, damage_);
    } else if (buffer_.empty() && taken.size() == wanted) {
      status_ = Consume(taken);
    } else {
      // Grows as bytes come, whatever size the file claims.
      buffer_.insert(buffer_.end(), taken.begin(), taken.end());
      if (taken.size() == wanted) {
        const std::vector<std::byte> whole = std::exchange(buffer_, {});
        status_ = Consume(whole);
      }
    }
  }
  return status_;
}

std::uint64_t SessionFileReader::Wanted() const {
  switch (stage_) {
    case Stage::kStart:
      return sizeof(FileStart) - buffer_.size();
    case Stage::kHeader:
      return sizeof(RecordHeader) - buffer_.size();
    case Stage::kPayload:
      return PaddedBytes(header_.payload_bytes) - buffer_.size();
    case Stage::kDamage:
      break;
  }
  return kPieceBytes;
}

std::uint64_t SessionFileReader::Skippable() const {
  const bool of_layer = RecordType::kSession < header_.type && header_.type < RecordType::kCommit;
  if (!status_.ok() || stage_ != Stage::kPayload || !of_layer || !buffer_.empty()) return 0;
  return PaddedBytes(header_.payload_bytes);
}

void SessionFileReader::Skip() {
  received_ += Skippable();
  pending_.push_back(header_);
  NextRecord();
}

absl::Status SessionFileReader::Consume(std::span<const std::byte> whole) {
  switch (stage_) {
    case Stage::kStart: {
      FileStart start;
      std::memcpy(&start, whole.data(), sizeof(start));
      file_id_ = start.file_id;
      offset_ = sizeof(start);
      stage_ = Stage::kHeader;
      return CheckFileStart(start);
    }
    case Stage::kHeader:
      return ConsumeHeader(whole);
    case Stage::kPayload:
      return ConsumePayload(whole);
    case Stage::kDamage:
      break;
  }
  return absl::OkStatus();
}

absl::Status SessionFileReader::ConsumeHeader(std::span<const std::byte> bytes) {
  const auto header = ParseRecordHeader(bytes.first<sizeof(RecordHeader)>());
  if (!header) return Damage("no record header", "one with the right checksum", bytes);
  const std::uint32_t commits = state_ ? state_->commits() : 0;
  if (header->file_id != file_id_ || header->offset != offset_ || header->commits != commits) {
    return Damage(absl::StrCat(NameOf(header->type), " record of byte ", header->offset,
                               " after commit ", header->commits),
                  absl::StrCat("a record of this place of this file after commit ", commits),
                  bytes);
  }
  header_ = *header;
  if (state_) {
    if (absl::Status s = state_->Check(header_); !s.ok()) return s;
  } else if (header_.type != RecordType::kSession || header_.payload_bytes > kMaxSessionBytes) {
    return FileDamaged(
        offset_, absl::StrCat(NameOf(header_.type), " record of ", header_.payload_bytes, " bytes"),
        absl::StrCat("a session record of at most ", kMaxSessionBytes, " bytes"));
  }
  stage_ = Stage::kPayload;
  return header_.payload_bytes == 0 ? ConsumePayload({}) : absl::OkStatus();
}

absl::Status SessionFileReader::ConsumePayload(std::span<const std::byte> padded) {
  const std::uint32_t crc = Crc32c(padded.data(), padded.size());
  if (crc != header_.payload_crc) {
    return Damage(absl::StrCat(NameOf(header_.type), " record with ", ChecksumText(crc)),
                  absl::StrCat(absl::Hex(header_.payload_crc)), padded);
  }
  const auto payload = padded.first(static_cast<std::size_t>(header_.payload_bytes));
  const auto padding = padded.subspan(payload.size());
  if (std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; })) {
    return FileDamaged(offset_, "other bytes after a payload", "zeros");
  }
  absl::Status s;
  if (header_.type == RecordType::kSession) {
    s = ConsumeSession(payload);
  } else if (header_.type == RecordType::kCommit) {
    s = ConsumeCommit(payload);
  } else if (header_.type == RecordType::kConfirm) {
    s = state_->Apply(header_);
  } else {
    s = state_->CheckPayload(header_, payload);
    pending_.push_back(header_);
    if (s.ok() && visitor_ != nullptr) s = visitor_->OnRecord(header_, payload);
  }
  NextRecord();
  return s;
}

absl::Status SessionFileReader::ConsumeSession(std::span<const std::byte> payload) {
  absl::StatusOr<SessionFields> fields = DecodeSession(payload);
  if (!fields.ok()) return fields.status();
  state_.emplace(*std::move(fields), file_id_, payload.size());
  return visitor_ == nullptr ? absl::OkStatus() : visitor_->OnSession(state_->fields());
}

absl::Status SessionFileReader::ConsumeCommit(std::span<const std::byte> payload) {
  absl::StatusOr<SessionCommit> commit = DecodeCommit(header_, state_->layers().size(), payload);
  if (!commit.ok()) return commit.status();
  for (const RecordHeader& record : pending_) {
    if (absl::Status s = state_->Apply(record); !s.ok()) return s;
  }
  pending_.clear();
  if (absl::Status s = state_->ApplyCommit(header_, *std::move(commit)); !s.ok()) return s;
  return visitor_ == nullptr ? absl::OkStatus() : visitor_->OnCommit(*state_);
}

void SessionFileReader::NextRecord() {
  offset_ += sizeof(RecordHeader) + PaddedBytes(header_.payload_bytes);
  stage_ = Stage::kHeader;
}

// `bytes`: those of the damaged part, which may hide other records where bytes are missing.
absl::Status SessionFileReader::Damage(std::string_view found, std::string_view expected,
                                       std::span<const std::byte> bytes) {
  damage_ = FileDamaged(offset_, found, expected);
  if (!state_ || state_->commits() == 0) return damage_;
  stage_ = Stage::kDamage;
  finder_ = CommitFinder(file_id_, state_->commits(), received_ - bytes.size());
  return finder_.Push(bytes, damage_);
}

absl::StatusOr<SessionFileContents> SessionFileReader::Finish() {
  if (!status_.ok()) return status_;
  if (!state_ || state_->commits() == 0) {
    return FileDamaged(received_, "the end of the file", "a commit before");
  }
  const bool in_record =
      stage_ == Stage::kPayload || (stage_ == Stage::kHeader && !buffer_.empty());
  if (in_record) {
    const std::vector<std::byte> part = std::exchange(buffer_, {});
    status_ = Damage("the end of the file", "the rest of a record", part);
    if (!status_.ok()) return status_;
  }
  const std::uint64_t tail_bytes = received_ - state_->committed_end();
  return SessionFileContents{
      .state = *std::move(state_), .tail_bytes = tail_bytes, .damage = damage_};
}

namespace {

absl::StatusOr<SessionFileContents> Read(const ByteSource& file, std::uint64_t begin, bool skip,
                                         SessionFileReader& reader) {
  const absl::StatusOr<std::uint64_t> size = file.Size();
  if (!size.ok()) return size.status();
  std::vector<std::byte> piece;
  for (std::uint64_t at = begin; at < *size;) {
    const std::uint64_t skippable = skip ? reader.Skippable() : 0;
    if (skippable > 0 && skippable <= *size - at) {
      at += skippable;
      reader.Skip();
      continue;
    }
    const std::uint64_t wanted =
        skip ? std::min<std::uint64_t>(reader.Wanted(), kPieceBytes) : kPieceBytes;
    piece.resize(static_cast<std::size_t>(std::min(wanted, *size - at)));
    if (absl::Status s = file.ReadAt(at, piece); !s.ok()) return s;
    at += piece.size();
    if (absl::Status s = reader.Push(piece); !s.ok()) return s;
  }
  return reader.Finish();
}

}  // namespace

absl::StatusOr<SessionFileContents> ReadSessionFile(const ByteSource& file,
                                                    SessionFileVisitor* visitor) {
  SessionFileReader reader(visitor);
  return Read(file, 0, /*skip=*/false, reader);
}

absl::StatusOr<SessionFileContents> IndexSessionFile(const ByteSource& file) {
  SessionFileReader reader;
  absl::StatusOr<SessionFileContents> contents = Read(file, 0, /*skip=*/true, reader);
  if (!contents.ok() || contents->tail_bytes == 0) return contents;
  // Where bytes are missing, a payload that was jumped over may have hidden a commit.
  const std::uint64_t begin = contents->state.committed_end();
  SessionFileReader tail(std::move(contents->state));
  return Read(file, begin, /*skip=*/false, tail);
}

absl::Status ReadPayload(const ByteSource& file, const PayloadPlace& place,
                         std::span<std::byte> payload) {
  if (absl::Status s = file.ReadAt(place.offset, payload); !s.ok()) return s;
  const std::uint32_t crc = PayloadCrc(payload);
  if (crc == place.crc) return absl::OkStatus();
  return FileDamaged(place.offset, absl::StrCat("a payload with ", ChecksumText(crc)),
                     absl::StrCat(absl::Hex(place.crc)));
}

}  // namespace oscarkv
