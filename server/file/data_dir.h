// The data directory of a server: one file for each session, and room for what cannot be read.
//
//     <dir>/lock                        held for as long as a server uses the directory
//     <dir>/sessions/<name>.okv         a session
//     <dir>/sessions/<name>.okv.tmp     a new file before its first commit
//     <dir>/damaged/<name>.okv.<n>      set aside, never deleted; n counts from 1
//
// Names follow from session ids and from nothing else (SessionFileName). A new file is written
// under its temporary name, and published once it has a commit: so whatever has a session's name
// was whole once, and what a crash leaves unpublished was never promised to anybody.
//
// Every error names the path and what the system said, with the codes of SystemError.
//
// Thread-safety: all but Scan may be called at once; of one session one call at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/file/session_file_reader.h"
#include "server/file/session_file_writer.h"
#include "server/file/system_calls.h"

namespace oscarkv {

// The name of a session's file: ids differ if and only if their names do, on file systems that
// ignore case too. Of [a-z0-9._-], at most kMaxSessionFileName bytes. Readable where it fits:
// letters and digits as they are, what is not of [a-z0-9.-] as "_" and two hex digits; else "_z"
// and the id in base 32. REQUIRES: 1 to limits::kIdCharacters bytes.
std::string SessionFileName(std::string_view session_id);
inline constexpr std::size_t kMaxSessionFileName = 211;

enum class FoundFile : std::uint8_t {
  kSession,      // `contents` are OK; behind their commit there may be a tail to cut
  kDamaged,      // DATA_LOSS; set aside, and `path` says where to. Not a session's older state
  kUnsupported,  // of another version of the format; left where it is
  kUnreadable,   // the system says so, not its contents; left where it is
  kForeign,      // not named as session files are; left alone, and not looked into
};

struct ScannedFile {
  FoundFile found;
  std::string path;
  absl::StatusOr<SessionFileContents> contents;
};

class DataDir {
 public:
  // Makes the directory, for its owner only, if it is missing; its parent must be there. Removes
  // unpublished files. FAILED_PRECONDITION, DATA_DIR_IN_USE where another server has it, which is
  // named by its process id if that is known; an error where it cannot be written to.
  // REQUIRES: calls outlives the directory.
  static absl::StatusOr<std::unique_ptr<DataDir>> Open(std::string path,
                                                       SystemCalls* calls = SystemCalls::Real());
  ~DataDir();
  DataDir(const DataDir&) = delete;
  DataDir& operator=(const DataDir&) = delete;

  const std::string& path() const { return path_; }
  SystemCalls* calls() const { return calls_; }
  // REQUIRES: as of SessionFileName.
  std::string PathOf(std::string_view session_id) const;
  std::string TemporaryPathOf(std::string_view session_id) const;

  // For SessionFileWriter::Create: numbers that count up from a random one.
  std::uint64_t NewFileId() { return next_file_id_.fetch_add(1, std::memory_order_relaxed); }

  // FAILED_PRECONDITION, FILE_WITHHELD where a file that Scan could neither read nor set aside has
  // the session's name, or one that is withheld since: it may hold that session, so nothing takes
  // its place.
  absl::Status CheckUsable(std::string_view session_id) const;
  // Gives the temporary file the session's name, in the place of the file that has it, at once for
  // whoever looks. kSynced: survives a loss of power; else the old file, or none, may come back.
  // After an error it has one name or the other. As CheckUsable; NOT_FOUND without one.
  absl::Status Publish(std::string_view session_id, Durability durability);
  // Removes the session's file; durability as of Publish. As CheckUsable; NOT_FOUND without one.
  absl::Status Remove(std::string_view session_id, Durability durability);

  // Looks at every session file, in the order of their names, and tells of each. What is damaged,
  // or holds another session than its name says, is set aside; where that fails, it stays, `path`
  // and `contents` say so, and it is withheld, as is what is unsupported or unreadable. An error
  // only where the directory cannot be listed, or what was set aside could not be synced.
  // REQUIRES: no other call meanwhile, and no file of the directory is open.
  absl::Status Scan(absl::FunctionRef<void(ScannedFile)> tell);

  // Nothing takes the place of the session's file from now on; `why` is told. REQUIRES: no other
  // call meanwhile, but Scan, which may tell of the file just then.
  void Withhold(std::string_view session_id, absl::Status why);

  // All that was written to the file system survives a loss of power then.
  absl::Status SyncAll() const;

  // That may still be written.
  absl::StatusOr<std::uint64_t> FreeBytes() const;

 private:
  DataDir(std::string path, SystemCalls* calls);

  absl::Status Lock();
  absl::Status Prepare();
  absl::Status SetAside(const std::string& name, const std::vector<std::string>& taken,
                        std::string* path) const;

  const std::string path_;
  const std::string sessions_;  // with a slash at their ends
  const std::string damaged_;
  SystemCalls* const calls_;
  int lock_ = -1;
  std::atomic<std::uint64_t> next_file_id_;
  std::map<std::string, absl::Status> withheld_;  // by name; why
};

}  // namespace oscarkv
