#include "server/file/record.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/base/crc32c.h"
#include "server/base/error.h"
#include "server/base/string_view.h"

namespace oscarkv {
namespace {

template <typename Frame>
std::uint32_t CrcOfFrame(const Frame& frame) {
  return Crc32c(&frame, offsetof(Frame, crc));
}

}  // namespace

const char* NameOf(RecordType type) {
  switch (type) {
    case RecordType::kSession:
      return "session";
    case RecordType::kSinks:
      return "sinks";
    case RecordType::kPage:
      return "page";
    case RecordType::kBlock:
      return "block";
    case RecordType::kQuery:
      return "query";
    case RecordType::kDirections:
      return "directions";
    case RecordType::kTruncate:
      return "truncate";
    case RecordType::kRelease:
      return "release";
    case RecordType::kCommit:
      return "commit";
    case RecordType::kConfirm:
      return "confirm";
  }
  return "unknown";
}

std::uint32_t PayloadCrc(std::span<const std::byte> payload) {
  constexpr std::byte kZeros[kRecordAlignment] = {};
  return Crc32c(kZeros, PaddedBytes(payload.size()) - payload.size(),
                Crc32c(payload.data(), payload.size()));
}

void SetCrc(FileStart* start) { start->crc = CrcOfFrame(*start); }

void SetCrc(RecordHeader* header) {
  header->magic = kRecordMagic;
  header->crc = CrcOfFrame(*header);
}

absl::Status CheckFileStart(const FileStart& start) {
  if (start.magic != kFileMagic) {
    return FileDamaged(0, "other bytes, or damaged ones", "the magic number of a session file");
  }
  if (start.byte_order == __builtin_bswap32(kByteOrderMark)) {
    return FileUnsupported("byte order", "big-endian", "little-endian");
  }
  if (start.crc != CrcOfFrame(start)) {
    return FileDamaged(0, absl::StrCat("checksum ", absl::Hex(start.crc)),
                       absl::StrCat(absl::Hex(CrcOfFrame(start)), " for the first 60 bytes"));
  }
  if (start.version != kSessionFileVersion) {
    return FileUnsupported("format version", absl::StrCat(start.version),
                           absl::StrCat(kSessionFileVersion));
  }
  if (start.byte_order != kByteOrderMark || start.reserved != FileStart().reserved) {
    return FileDamaged(0, "another byte order mark, or reserved bytes in use",
                       absl::StrCat("those of version ", kSessionFileVersion));
  }
  return absl::OkStatus();
}

std::optional<RecordHeader> ParseRecordHeader(std::span<const std::byte, 64> bytes) {
  RecordHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kRecordMagic || header.crc != CrcOfFrame(header)) return std::nullopt;
  return header;
}

absl::Status FileDamaged(std::uint64_t offset, std::string_view found, std::string_view expected) {
  return MakeError(absl::StatusCode::kDataLoss,
                   absl::StrCat("session file, at byte ", offset, ": ", ToAbsl(found),
                                "; expected ", ToAbsl(expected)),
                   {.reason = "FILE_DAMAGED",
                    .metadata = {{"offset", absl::StrCat(offset)},
                                 {"found", std::string(found)},
                                 {"expected", std::string(expected)}}});
}

absl::Status FileUnsupported(std::string_view field, std::string_view found,
                             std::string_view supported) {
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("session file: ", ToAbsl(field), " is ", ToAbsl(found),
                                "; this version reads ", ToAbsl(supported)),
                   {.reason = "FILE_UNSUPPORTED",
                    .metadata = {{"field", std::string(field)},
                                 {"value", std::string(found)},
                                 {"expected", std::string(supported)}}});
}

}  // namespace oscarkv
