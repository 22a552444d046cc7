#include "server/file/commit_finder.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace oscarkv {
namespace {

absl::Status With(const absl::Status& damage, const RecordHeader& header, std::uint64_t offset) {
  absl::Status status(damage.code(), absl::StrCat(damage.message(), " (followed by a ",
                                                  NameOf(header.type), " record after commit ",
                                                  header.commits, ", at byte ", offset, ")"));
  damage.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { status.SetPayload(type, payload); });
  return status;
}

}  // namespace

absl::Status CommitFinder::Push(std::span<const std::byte> bytes, const absl::Status& damage) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  // Where a whole header may begin.
  const std::size_t places =
      std::max(buffer_.size(), sizeof(RecordHeader) - 1) - (sizeof(RecordHeader) - 1);
  for (std::size_t i = 0; i < places; ++i) {
    const auto* magic = static_cast<const std::byte*>(
        std::memchr(&buffer_[i], static_cast<int>(kRecordMagic & 0xff), places - i));
    if (magic == nullptr) break;
    i = static_cast<std::size_t>(magic - buffer_.data());
    const auto header =
        ParseRecordHeader(std::span(buffer_).subspan(i).first<sizeof(RecordHeader)>());
    if (!header || header->file_id != file_id_) continue;
    if (header->type == RecordType::kCommit || header->commits > commits_) {
      return With(damage, *header, offset_ + i);
    }
  }
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(places));
  offset_ += places;
  return absl::OkStatus();
}

}  // namespace oscarkv
