#include "server/file/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/base/string_view.h"
#include "server/file/posix_file.h"
#include "server/file/record.h"
#include "server/session/session_limits.h"

namespace oscarkv {
namespace {

constexpr std::string_view kSuffix = ".okv";
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr std::size_t kBase32Id = (std::size_t{limits::kIdCharacters} * 8 + 4) / 5;
static_assert(kMaxSessionFileName == 2 + kBase32Id + kSuffix.size());
// The longest name, with ".<n>" behind it, fits where names have at most 255 bytes.
static_assert(kMaxSessionFileName + 1 + 20 <= 255);

std::string Base32(std::string_view bytes) {
  constexpr std::string_view kDigits = "abcdefghijklmnopqrstuvwxyz234567";
  std::string text;
  std::uint32_t bits = 0;
  int count = 0;
  for (const unsigned char byte : bytes) {
    bits = bits << 8 | byte;
    for (count += 8; count >= 5; count -= 5) text += kDigits[bits >> (count - 5) & 31];
  }
  if (count > 0) text += kDigits[bits << (5 - count) & 31];
  return text;
}

// Whether a file of that name may be a session's.
bool IsSessionFileName(const std::string& name) {
  return name.size() <= kMaxSessionFileName && absl::EndsWith(name, ToAbsl(kSuffix)) &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '.' || c == '_' ||
                  c == '-';
         });
}

bool IsTemporaryName(const std::string& name) {
  return absl::EndsWith(name, ToAbsl(kTemporarySuffix)) &&
         IsSessionFileName(name.substr(0, name.size() - kTemporarySuffix.size()));
}

// The names in a directory, in their order.
absl::StatusOr<std::vector<std::string>> List(const std::string& path, SystemCalls* calls) {
  DIR* const directory = calls->Opendir(path.c_str());
  if (directory == nullptr) return SystemError("list", path);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = calls->Readdir(directory)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  absl::Status status = errno == 0 ? absl::OkStatus() : SystemError("list", path);
  (void)calls->Closedir(directory);
  if (!status.ok()) return status;
  std::sort(names.begin(), names.end());
  return names;
}

// Says whether it had to be made.
absl::StatusOr<bool> MakeDirectory(const std::string& path, SystemCalls* calls) {
  if (calls->Mkdir(path.c_str(), S_IRWXU) == 0) return true;
  if (errno == EEXIST) return false;
  return SystemError("make the directory", path);
}

std::string WithoutSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

absl::StatusOr<SessionFileContents> Index(const std::string& path, const std::string& name,
                                          SystemCalls* calls) {
  const auto file = PosixFile::Open(path, calls);
  if (!file.ok()) return file.status();
  absl::StatusOr<SessionFileContents> contents = IndexSessionFile(**file);
  if (!contents.ok()) return contents;
  const std::string& id = contents->state.config().id;
  if (SessionFileName(id) == name) return contents;
  return FileDamaged(sizeof(FileStart), absl::StrCat("session ", id),
                     absl::StrCat("the session that a file named ", name, " is of"));
}

FoundFile Judge(const absl::StatusOr<SessionFileContents>& contents) {
  if (contents.ok()) return FoundFile::kSession;
  switch (contents.status().code()) {
    case absl::StatusCode::kDataLoss:
      return FoundFile::kDamaged;
    case absl::StatusCode::kFailedPrecondition:
      return FoundFile::kUnsupported;
    default:
      return FoundFile::kUnreadable;
  }
}

std::uint64_t RandomNumber() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace

std::string SessionFileName(std::string_view session_id) {
  std::string name;
  for (const unsigned char c : session_id) {
    const bool plain = absl::ascii_islower(c) || absl::ascii_isdigit(c) ||
                       (!name.empty() && (c == '.' || c == '-'));  // neither hidden nor an option
    if (plain) {
      name += static_cast<char>(c);
    } else {
      absl::StrAppend(&name, "_", absl::Hex(c, absl::kZeroPad2));
    }
  }
  // No hex digit is a z.
  if (name.size() > 2 + kBase32Id) name = absl::StrCat("_z", Base32(session_id));
  return absl::StrCat(name, ToAbsl(kSuffix));
}

DataDir::DataDir(std::string path, SystemCalls* calls)
    : path_(std::move(path)),
      sessions_(absl::StrCat(path_, "/sessions/")),
      damaged_(absl::StrCat(path_, "/damaged/")),
      calls_(calls),
      next_file_id_(RandomNumber()) {}

DataDir::~DataDir() {
  if (lock_ >= 0) (void)calls_->Close(lock_);
}

absl::StatusOr<std::unique_ptr<DataDir>> DataDir::Open(std::string path, SystemCalls* calls) {
  if (path.empty()) return InvalidField("data directory", "\"\"", "a path");
  std::unique_ptr<DataDir> opened(new DataDir(WithoutSlashes(std::move(path)), calls));
  const absl::StatusOr<bool> made = MakeDirectory(opened->path_, calls);
  if (!made.ok()) return made.status();
  if (*made) {
    if (absl::Status s = SyncDirectoryOf(opened->path_, calls); !s.ok()) return s;
  }
  if (absl::Status s = opened->Lock(); !s.ok()) return s;
  if (absl::Status s = opened->Prepare(); !s.ok()) return s;
  return opened;
}

absl::Status DataDir::Lock() {
  const std::string path = path_ + "/lock";
  // Always of this size: a file that has it already can be written when the disk is full.
  std::array<char, 24> text;
  lock_ = Uninterrupted(
      [&] { return calls_->Open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR); });
  if (lock_ < 0) return SystemError("open", path);
  if (Uninterrupted([&] { return calls_->Flock(lock_, LOCK_EX | LOCK_NB); }) != 0) {
    if (errno != EWOULDBLOCK) return SystemError("lock", path);
    const ssize_t read =
        Uninterrupted([&] { return calls_->Pread(lock_, text.data(), text.size(), 0); });
    std::int64_t process = 0;
    const absl::string_view told(text.data(), static_cast<std::size_t>(std::max<ssize_t>(read, 0)));
    const bool known = absl::SimpleAtoi(told, &process);
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("data directory ", path_, ": in use by another server",
                                  known ? absl::StrCat(", process ", process) : std::string()),
                     {.reason = "DATA_DIR_IN_USE", .metadata = {{"path", path_}}});
  }
  text.fill(' ');
  text.back() = '\n';
  const std::string process = absl::StrCat(::getpid());
  std::copy(process.begin(), process.end(), text.begin());
  const ssize_t written =
      Uninterrupted([&] { return calls_->Pwrite(lock_, text.data(), text.size(), 0); });
  if (written == static_cast<ssize_t>(text.size())) return absl::OkStatus();
  if (written >= 0) errno = ENOSPC;  // what else would cut so few bytes
  return SystemError("write", path);
}

absl::Status DataDir::Prepare() {
  for (const std::string& directory : {sessions_, damaged_}) {
    const absl::StatusOr<bool> made = MakeDirectory(WithoutSlashes(directory), calls_);
    if (!made.ok()) return made.status();
  }
  if (absl::Status s = SyncDirectoryOf(WithoutSlashes(sessions_), calls_); !s.ok()) return s;

  const auto names = List(sessions_, calls_);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (!IsTemporaryName(name)) continue;
    if (absl::Status s = RemoveFile(sessions_ + name, calls_); !s.ok()) return s;
  }
  // Whether files can be made here, only making one can tell.
  const std::string probe = TemporaryPathOf("probe");
  if (absl::Status s = PosixFile::Create(probe, calls_).status(); !s.ok()) return s;
  return RemoveFile(probe, calls_);
}

std::string DataDir::PathOf(std::string_view session_id) const {
  return sessions_ + SessionFileName(session_id);
}

std::string DataDir::TemporaryPathOf(std::string_view session_id) const {
  return absl::StrCat(PathOf(session_id), ToAbsl(kTemporarySuffix));
}

absl::Status DataDir::CheckUsable(std::string_view session_id) const {
  const auto withheld = withheld_.find(SessionFileName(session_id));
  if (withheld == withheld_.end()) return absl::OkStatus();
  const std::string path = PathOf(session_id);
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat(path, " is there and cannot be used: ", withheld->second.message()),
                   {.reason = "FILE_WITHHELD", .metadata = {{"path", path}}});
}

absl::Status DataDir::Publish(std::string_view session_id, Durability durability) {
  if (absl::Status s = CheckUsable(session_id); !s.ok()) return s;
  const std::string from = TemporaryPathOf(session_id);
  const std::string to = PathOf(session_id);
  if (durability == Durability::kSynced) return ReplaceFile(from, to, calls_);
  if (calls_->Rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return SystemError(absl::StrCat("rename ", from, " to"), to);
}

absl::Status DataDir::Remove(std::string_view session_id, Durability durability) {
  if (absl::Status s = CheckUsable(session_id); !s.ok()) return s;
  const std::string path = PathOf(session_id);
  const absl::Status removed = RemoveFile(path, calls_);
  // Where there is none, an earlier call may have failed to sync.
  const bool is_gone = removed.ok() || absl::IsNotFound(removed);
  if (!is_gone || durability != Durability::kSynced) return removed;
  absl::Status s = SyncDirectoryOf(path, calls_);
  return s.ok() ? removed : s;
}

// Moves a session file to a name that is not among `taken`, and changes `path` to it.
absl::Status DataDir::SetAside(const std::string& name, const std::vector<std::string>& taken,
                               std::string* path) const {
  std::uint64_t n = 1;
  while (std::binary_search(taken.begin(), taken.end(), absl::StrCat(name, ".", n))) ++n;
  const std::string to = absl::StrCat(damaged_, name, ".", n);
  if (calls_->Rename(path->c_str(), to.c_str()) != 0) {
    return SystemError(absl::StrCat("rename ", *path, " to"), to);
  }
  *path = to;
  return absl::OkStatus();
}

absl::Status DataDir::Scan(absl::FunctionRef<void(ScannedFile)> tell) {
  const auto names = List(sessions_, calls_);
  if (!names.ok()) return names.status();
  const auto damaged = List(damaged_, calls_);
  if (!damaged.ok()) return damaged.status();
  withheld_.clear();
  bool moved = false;
  for (const std::string& name : *names) {
    if (IsTemporaryName(name)) continue;
    std::string path = sessions_ + name;
    if (!IsSessionFileName(name)) {
      absl::Status why = absl::InvalidArgumentError(absl::StrCat(path, " is not a session file"));
      tell({FoundFile::kForeign, std::move(path), std::move(why)});
      continue;
    }
    absl::StatusOr<SessionFileContents> contents = Index(path, name, calls_);
    const FoundFile found = Judge(contents);
    bool stays = found == FoundFile::kUnsupported || found == FoundFile::kUnreadable;
    if (found == FoundFile::kDamaged) {
      if (absl::Status s = SetAside(name, *damaged, &path); s.ok()) {
        moved = true;
      } else {
        stays = true;
        contents = absl::DataLossError(
            absl::StrCat(contents.status().message(), "; not set aside: ", s.message()));
      }
    }
    if (stays) withheld_[name] = contents.status();
    tell({found, std::move(path), std::move(contents)});
  }
  // They must not be lost by what comes to have their names.
  return moved ? SyncDirectoryOf(damaged_ + "any", calls_) : absl::OkStatus();
}

void DataDir::Withhold(std::string_view session_id, absl::Status why) {
  withheld_[SessionFileName(session_id)] = std::move(why);
}

absl::Status DataDir::SyncAll() const {
  if (Uninterrupted([&] { return calls_->Syncfs(lock_); }) == 0) return absl::OkStatus();
  return SystemError("sync the file system of", path_);
}

absl::StatusOr<std::uint64_t> DataDir::FreeBytes() const {
  struct statvfs status {};
  if (Uninterrupted([&] { return calls_->Statvfs(path_.c_str(), &status); }) != 0) {
    return SystemError("measure the free space of", path_);
  }
  return std::uint64_t{status.f_bavail} * status.f_frsize;
}

}  // namespace oscarkv
