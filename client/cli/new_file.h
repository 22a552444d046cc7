// A file that is there whole or not at all: written under a temporary name beside its own, which it
// gets in the end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace oscarkv {

// Thread-safety: none. Only its owner may read the file.
class NewFile {
 public:
  // ALREADY_EXISTS if there is a file of that name, unless `replace`; INVALID_ARGUMENT for anything
  // there that is no regular file.
  static absl::StatusOr<std::unique_ptr<NewFile>> Create(const std::string& path, bool replace);
  ~NewFile();  // removes what was not finished
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  absl::Status WriteAt(std::uint64_t offset, std::string_view bytes);
  // Writes all to the disk and gives the file its name. ALREADY_EXISTS as of Create.
  // REQUIRES: called once; nothing is written after.
  absl::Status Finish();

 private:
  NewFile(std::string path, bool replace) : path_(std::move(path)), replace_(replace) {}

  const std::string path_;
  const bool replace_;
  std::string temporary_;  // "": not there
  int file_ = -1;
};

}  // namespace oscarkv
