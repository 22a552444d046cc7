#include "server/file/session_file_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"

namespace oscarkv {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;  // worth a call of the sink

template <typename T>
void AppendBytes(const T& x, std::vector<std::byte>& out) {
  const auto bytes = std::as_bytes(std::span(&x, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

absl::StatusOr<std::unique_ptr<SessionFileWriter>> SessionFileWriter::Create(SessionFields fields,
                                                                             std::uint64_t file_id,
                                                                             ByteSink* sink) {
  if (absl::Status s = CheckSession(fields.config); !s.ok()) return s;
  const std::vector<std::byte> payload = EncodeSession(fields);
  if (payload.size() > kMaxSessionBytes) {
    return InvalidField("session", absl::StrCat(payload.size(), " bytes"),
                        absl::StrCat("at most ", kMaxSessionBytes));
  }
  auto writer = std::make_unique<SessionFileWriter>(
      SessionFileState(std::move(fields), file_id, payload.size()), sink);
  FileStart start{.file_id = file_id};
  SetCrc(&start);
  AppendBytes(start, writer->buffer_);
  writer->size_ = sizeof(start);
  writer->Buffer(writer->HeaderOf(RecordType::kSession, payload), payload);
  return writer;
}

SessionFileWriter::SessionFileWriter(SessionFileState state, ByteSink* sink)
    : state_(std::move(state)), sink_(sink), size_(state_.committed_end()) {}

absl::Status SessionFileWriter::AddSinks(std::size_t layer, int tokens,
                                         std::span<const std::byte> block) {
  return AddToLayer(RecordType::kSinks, layer, 0, tokens, block);
}

absl::Status SessionFileWriter::AddPage(std::size_t layer, std::int64_t begin, int tokens,
                                        bool blind, std::span<const std::byte> page) {
  return AddToLayer(RecordType::kPage, layer, begin, tokens, page, blind ? kBlindPage : 0);
}

absl::Status SessionFileWriter::AddBlock(std::size_t layer, std::int64_t begin, int tokens,
                                         std::span<const std::byte> block) {
  return AddToLayer(RecordType::kBlock, layer, begin, tokens, block);
}

absl::Status SessionFileWriter::AddQuery(std::size_t layer, std::int64_t position,
                                         std::span<const std::byte> row) {
  return AddToLayer(RecordType::kQuery, layer, position, 1, row);
}

absl::Status SessionFileWriter::AddDirections(std::size_t layer, std::int64_t begin,
                                              std::span<const std::byte> directions) {
  return AddToLayer(RecordType::kDirections, layer, begin, 0, directions);
}

absl::Status SessionFileWriter::Truncate(std::size_t layer, std::int64_t length) {
  return AddToLayer(RecordType::kTruncate, layer, length, 0, {});
}

absl::Status SessionFileWriter::Release(std::size_t layer, std::int64_t begin) {
  return AddToLayer(RecordType::kRelease, layer, begin, 0, {});
}

absl::Status SessionFileWriter::Commit(const SessionCommit& commit, Durability durability) {
  if (!broken_.ok()) return broken_;
  if (absl::Status s = CheckCommit(commit); !s.ok()) return s;
  if (commit.layers.size() != state_.layers().size()) {
    return InvalidField("layers", absl::StrCat(commit.layers.size()),
                        absl::StrCat(state_.layers().size()));
  }
  const std::vector<std::byte> payload = EncodeCommit(commit);
  RecordHeader header = HeaderOf(RecordType::kCommit, payload);
  header.count = RequestIdBytes(commit);
  if (absl::Status s = state_.ApplyCommit(header, commit); !s.ok()) return s;
  // A commit that is found after a loss of power must not be without what it commits, nor a
  // confirmation without the commit.
  if (durability == Durability::kSynced) {
    if (absl::Status s = Sync(); !s.ok()) return s;
  }
  Buffer(header, payload);
  if (durability == Durability::kSynced) {
    if (absl::Status s = Sync(); !s.ok()) return s;
  }
  RecordHeader confirm = HeaderOf(RecordType::kConfirm, {});
  if (absl::Status s = state_.Apply(confirm); !s.ok()) return s;
  Buffer(confirm, {});
  return Flush();
}

RecordHeader SessionFileWriter::HeaderOf(RecordType type,
                                         std::span<const std::byte> payload) const {
  return {.type = type,
          .file_id = state_.file_id(),
          .offset = size_,
          .payload_bytes = payload.size(),
          .commits = state_.commits(),
          .payload_crc = PayloadCrc(payload)};
}

absl::Status SessionFileWriter::AddToLayer(RecordType type, std::size_t layer, std::int64_t begin,
                                           std::int64_t count, std::span<const std::byte> payload,
                                           std::uint16_t flags) {
  if (!broken_.ok()) return broken_;
  RecordHeader header = HeaderOf(type, payload);
  header.flags = flags;
  header.layer = static_cast<std::uint32_t>(layer);
  header.begin = begin;
  header.count = count;
  if (absl::Status s = state_.Check(header); !s.ok()) return s;
  if (absl::Status s = state_.Apply(header); !s.ok()) return s;
  Buffer(header, payload);
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : Flush();
}

void SessionFileWriter::Buffer(const RecordHeader& header, std::span<const std::byte> payload) {
  RecordHeader finished = header;
  SetCrc(&finished);
  AppendBytes(finished, buffer_);
  buffer_.insert(buffer_.end(), payload.begin(), payload.end());
  const std::uint64_t padding = PaddedBytes(payload.size()) - payload.size();
  buffer_.insert(buffer_.end(), padding, std::byte{0});
  size_ += sizeof(finished) + payload.size() + padding;
}

absl::Status SessionFileWriter::Flush() {
  broken_ = sink_->Write(buffer_);
  buffer_.clear();
  return broken_;
}

absl::Status SessionFileWriter::Sync() {
  if (absl::Status s = Flush(); !s.ok()) return s;
  broken_ = sink_->Sync();
  return broken_;
}

}  // namespace oscarkv
