// Any bytes are a session file or are refused with a status; what is accepted is whole, can be
// written on, and reads alike however it is read.
//
// Few inputs get past checksums, so each is read as it is and once more with its checksums, file
// ids and offsets put right.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/file/session_file_reader.h"
#include "server/file/session_file_writer.h"
#include "tests/server/file/read_pieces.h"

namespace oscarkv {
namespace {

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::abort();
}

struct Bytes : ByteSource, ByteSink {
  std::vector<std::byte> bytes;

  absl::StatusOr<std::uint64_t> Size() const override { return bytes.size(); }
  absl::Status ReadAt(std::uint64_t offset, std::span<std::byte> to) const override {
    if (offset > bytes.size() || to.size() > bytes.size() - offset) Fail("read behind the end");
    std::memcpy(to.data(), bytes.data() + offset, to.size());
    return absl::OkStatus();
  }
  absl::Status Write(std::span<const std::byte> more) override {
    bytes.insert(bytes.end(), more.begin(), more.end());
    return absl::OkStatus();
  }
  absl::Status Sync() override { return absl::OkStatus(); }
};

// What the frame tells is made true, from the front on, as far as records reach.
void PutRight(std::vector<std::byte>& bytes) {
  if (bytes.size() < sizeof(FileStart)) return;
  FileStart start{.file_id = 1};
  SetCrc(&start);
  std::memcpy(bytes.data(), &start, sizeof(start));
  std::uint32_t commits = 0;
  for (std::size_t at = sizeof(start); bytes.size() - at >= sizeof(RecordHeader);) {
    RecordHeader header;
    std::memcpy(&header, bytes.data() + at, sizeof(header));
    const std::size_t left = bytes.size() - at - sizeof(header);
    header.file_id = start.file_id;
    header.offset = at;
    header.commits = commits;
    header.payload_bytes = std::min<std::uint64_t>(header.payload_bytes, left);
    if (PaddedBytes(header.payload_bytes) > left) return;
    std::byte* const payload = bytes.data() + at + sizeof(header);
    const auto padded = static_cast<std::size_t>(PaddedBytes(header.payload_bytes));
    std::memset(payload + header.payload_bytes, 0, padded - header.payload_bytes);
    header.payload_crc = PayloadCrc({payload, static_cast<std::size_t>(header.payload_bytes)});
    if (header.type == RecordType::kCommit) ++commits;
    SetCrc(&header);
    std::memcpy(bytes.data() + at, &header, sizeof(header));
    at += sizeof(header) + padded;
  }
}

void CheckState(const SessionFileState& state, const ByteSource& file) {
  for (const FileLayer& layer : state.layers()) {
    std::int64_t next = layer.released_to();
    for (const auto* pieces : {&layer.pages(), &layer.blocks()}) {
      for (const FilePiece& piece : *pieces) {
        if (piece.begin != next || piece.tokens < 1) Fail("a gap");
        next = piece.end();
        std::vector<std::byte> payload(piece.place.bytes);
        if (!ReadPayload(file, piece.place, payload).ok()) Fail("a payload that is not there");
      }
    }
  }
}

void CheckFile(Bytes file) {
  const auto read = ReadPieces(file.bytes);
  const auto pieces = ReadPieces(file.bytes, 61);
  if (read.ok() != pieces.ok()) Fail("it matters how the file is cut into pieces");
  const auto index = IndexSessionFile(file);
  if (!read.ok()) {
    if (!absl::IsDataLoss(read.status()) && !absl::IsFailedPrecondition(read.status())) {
      Fail(read.status().ToString());
    }
    return;
  }
  // It may stumble in a tail whose damaged payloads it jumps over.
  if (index.ok() && index->state.layers() != read->state.layers()) {
    Fail("an index of another state");
  }
  CheckState(read->state, file);

  // It can be written on.
  file.bytes.resize(static_cast<std::size_t>(read->state.committed_end()));
  SessionCommit commit = *read->state.last_commit();
  SessionFileWriter writer(read->state, &file);
  if (absl::Status s = writer.Commit(commit, Durability::kWritten); !s.ok()) Fail(s.ToString());
  const auto again = ReadPieces(file.bytes, 4096);
  if (!again.ok() || again->state.commits() != read->state.commits() + 1 ||
      again->state.layers() != read->state.layers()) {
    Fail("another state after a commit of nothing");
  }
}

}  // namespace
}  // namespace oscarkv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  oscarkv::Bytes file;
  const auto bytes = std::as_bytes(std::span(data, size));
  file.bytes.assign(bytes.begin(), bytes.end());
  oscarkv::CheckFile(file);
  oscarkv::PutRight(file.bytes);
  oscarkv::CheckFile(std::move(file));
  return 0;
}
