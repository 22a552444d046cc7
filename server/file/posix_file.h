// A file on a disk, written at its end and read at any place; and what is done to its name.
//
// Every error names the path and what the system said: RESOURCE_EXHAUSTED for a full disk or quota,
// NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, else INTERNAL; reason FILE_ERROR.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/file/byte_stream.h"
#include "server/file/system_calls.h"

namespace oscarkv {

// Thread-safety: ReadAt and Size may be called at once; nothing else.
class PosixFile : public ByteSink, public ByteSource {
 public:
  // A new file; ALREADY_EXISTS if there is one of that name. Only its owner may read it. Its name
  // survives a loss of power after SyncDirectoryOf(path).
  static absl::StatusOr<std::unique_ptr<PosixFile>> Create(
      std::string path, SystemCalls* calls = SystemCalls::Real());
  // To read, and to write once cut.
  static absl::StatusOr<std::unique_ptr<PosixFile>> Open(std::string path,
                                                         SystemCalls* calls = SystemCalls::Real());
  ~PosixFile() override;
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  const std::string& path() const { return path_; }

  // Cuts the file, so that writing goes on at `size`. REQUIRES: size <= Size().
  absl::Status Cut(std::uint64_t size);
  // At the end of the file. After an error of Write or Sync, both only repeat it: what the system
  // has dropped of a failed write or sync, a later sync does not tell. Cut makes good a Write's.
  absl::Status Write(std::span<const std::byte> bytes) override;
  absl::Status Sync() override;
  // Tells what closing alone can tell of earlier writes. Then only the destructor may be called.
  absl::Status Close();

  absl::StatusOr<std::uint64_t> Size() const override;
  absl::Status ReadAt(std::uint64_t offset, std::span<std::byte> bytes) const override;

 private:
  PosixFile(std::string path, int file, SystemCalls* calls);

  const std::string path_;
  SystemCalls* const calls_;
  int file_;
  std::uint64_t size_ = 0;  // of what was written whole
  absl::Status write_error_;
  absl::Status sync_error_;
};

// Makes the names in the directory that `path` is in survive a loss of power.
absl::Status SyncDirectoryOf(const std::string& path, SystemCalls* calls = SystemCalls::Real());
// Puts `from` in the place of `to`, at once for whoever looks; then as SyncDirectoryOf(to).
absl::Status ReplaceFile(const std::string& from, const std::string& to,
                         SystemCalls* calls = SystemCalls::Real());
// NOT_FOUND if there is none.
absl::Status RemoveFile(const std::string& path, SystemCalls* calls = SystemCalls::Real());

}  // namespace oscarkv
