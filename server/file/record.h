// The frame of a session file: its first 64 bytes and the 64 bytes before each record's payload.
// The drawing is in server/file/SESSION_FILE.md. Little-endian throughout.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace oscarkv {

static_assert(std::endian::native == std::endian::little, "structs are written as they lie");

inline constexpr std::uint32_t kSessionFileVersion = 1;
inline constexpr std::uint64_t kRecordAlignment = 64;  // of headers and payloads, in the file

// Neither text nor changed by a transfer that takes it for text.
inline constexpr std::array<unsigned char, 8> kFileMagic = {0x8b, 'o',  'k',  'v',
                                                            '\r', '\n', 0x1a, '\n'};
inline constexpr std::uint32_t kByteOrderMark = 0x01020304;

struct FileStart {
  std::array<unsigned char, 8> magic = kFileMagic;
  std::uint32_t byte_order = kByteOrderMark;
  std::uint32_t version = kSessionFileVersion;
  std::uint64_t file_id = 0;  // no two files that may lie on the same disk share one
  std::array<std::uint8_t, 36> reserved = {};
  std::uint32_t crc = 0;  // CRC-32C of the bytes before
};
static_assert(sizeof(FileStart) == 64 && offsetof(FileStart, crc) == 60);

enum class RecordType : std::uint16_t {
  kSession = 1,     // the first record: what is fixed at create
  kSinks = 2,       // the layer's first tokens, in 16 bits
  kPage = 3,        // the next page
  kBlock = 4,       // tokens of the window, in 16 bits
  kQuery = 5,       // a row of the query sample
  kDirections = 6,  // residual directions that a seal has found
  kTruncate = 7,    // the layer's tokens from `begin` on are dropped
  kRelease = 8,     // the layer's tokens between the sinks and `begin` are freed
  kCommit = 9,      // all before is a state of the session
  kConfirm = 10,    // the commit before has been written, as durably as the writer was asked to
};
// "session", "sinks" ...; "unknown" for other numbers.
const char* NameOf(RecordType type);

struct RecordHeader {
  std::uint32_t magic = 0;
  RecordType type{};
  std::uint16_t flags = 0;          // kPage: kBlindPage
  std::uint64_t file_id = 0;        // as FileStart
  std::uint64_t offset = 0;         // of this header in the file
  std::uint64_t payload_bytes = 0;  // without the zeros that follow up to a multiple of 64
  std::uint32_t commits = 0;        // commits before this record
  std::uint32_t layer = 0;          // index in the session's layers; 0 in records of the session
  std::int64_t begin = 0;           // a position, or 0
  std::int64_t count = 0;           // tokens, or as the type says
  std::uint32_t payload_crc = 0;    // CRC-32C of the payload and the zeros that follow
  std::uint32_t crc = 0;            // CRC-32C of the bytes before
};
static_assert(sizeof(RecordHeader) == 64 && offsetof(RecordHeader, crc) == 60);

inline constexpr std::uint32_t kRecordMagic = 0x5256'4b4f;  // "OKVR"
inline constexpr std::uint16_t kBlindPage = 1;  // sealed without the queries that it wanted

constexpr std::uint64_t PaddedBytes(std::uint64_t payload_bytes) {
  return (payload_bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

// RecordHeader::payload_crc.
std::uint32_t PayloadCrc(std::span<const std::byte> payload);

// Sets the checksum, and a header its magic number.
void SetCrc(FileStart* start);
void SetCrc(RecordHeader* header);

// FAILED_PRECONDITION for another version or byte order; DATA_LOSS where these are not the first
// bytes of a session file, or damaged.
absl::Status CheckFileStart(const FileStart& start);
// The header that `bytes` are, at whatever place it should be: nullopt unless its checksum is
// right.
std::optional<RecordHeader> ParseRecordHeader(std::span<const std::byte, 64> bytes);

// DATA_LOSS, FILE_DAMAGED: "at byte `offset`: `found`; expected `expected`".
absl::Status FileDamaged(std::uint64_t offset, std::string_view found, std::string_view expected);
// FAILED_PRECONDITION, FILE_UNSUPPORTED: "`field` is `found`; this version reads `supported`".
absl::Status FileUnsupported(std::string_view field, std::string_view found,
                             std::string_view supported);

}  // namespace oscarkv
