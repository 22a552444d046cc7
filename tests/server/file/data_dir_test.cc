#include "server/file/data_dir.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/error.h"
#include "server/file/posix_file.h"
#include "server/session/session_limits.h"
#include "tests/server/file/failing_calls.h"
#include "tests/server/file/file_testing.h"
#include "tests/server/file/known_files.h"

namespace oscarkv {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string TextOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// A session of one layer without tokens, committed once, as bytes.
std::string SessionText(const std::string& id) {
  SessionFields fields = GoldenFields();
  fields.config.id = id;
  MemoryFile file;
  auto writer = *SessionFileWriter::Create(fields, kTestFileId, &file);
  SessionCommit commit{.generation = 1};
  commit.layers.resize(fields.config.layers.size());
  EXPECT_EQ(writer->Commit(commit, Durability::kWritten), absl::OkStatus());
  return {reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size()};
}

std::string OtherVersion(std::string text) {
  FileStart start;
  std::memcpy(&start, text.data(), sizeof(start));
  start.version = kSessionFileVersion + 1;
  SetCrc(&start);
  std::memcpy(text.data(), &start, sizeof(start));
  return text;
}

class DataDirTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "data_dir_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ + "/data";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // All files of the directory but the lock: path -> contents.
  std::map<std::string, std::string> Files() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
      if (entry.is_regular_file() && entry.path().filename() != "lock") {
        files[std::filesystem::relative(entry.path(), path_)] = TextOf(entry.path());
      }
    }
    return files;
  }
  static std::vector<ScannedFile> Scan(DataDir& directory) {
    std::vector<ScannedFile> found;
    EXPECT_EQ(directory.Scan([&](ScannedFile file) { found.push_back(std::move(file)); }),
              absl::OkStatus());
    return found;
  }
  // One of each kind that a scan tells apart; "probe" has the name that Open tries.
  void Fill(DataDir& directory) {
    WriteText(directory.PathOf("probe"), SessionText("probe"));
    std::string flipped = SessionText("flipped");
    flipped[200] = static_cast<char>(flipped[200] ^ 4);
    WriteText(directory.PathOf("flipped"), flipped);
    WriteText(directory.PathOf("another"), SessionText("one"));
    WriteText(directory.PathOf("newer"), OtherVersion(SessionText("newer")));
    WriteText(path_ + "/sessions/README", "foreign");
  }

  std::string folder_;
  std::string path_;
};

TEST(SessionFileNameTest, IsReadableWhereItFits) {
  EXPECT_EQ(SessionFileName("chat-1.b"), "chat-1.b.okv");
  EXPECT_EQ(SessionFileName("Chat"), "_43hat.okv");
  EXPECT_EQ(SessionFileName(".."), "_2e..okv");
  EXPECT_EQ(SessionFileName("-a_b/c~"), "_2da_5fb_2fc_7e.okv");
  EXPECT_EQ(SessionFileName(std::string(128, 'a')), std::string(128, 'a') + ".okv");
  EXPECT_EQ(SessionFileName(std::string(128, 'A')).size(), kMaxSessionFileName);
  EXPECT_EQ(SessionFileName(std::string(69, 'A')).size(), 4 + 3 * 69);
  EXPECT_THAT(SessionFileName(std::string(70, 'A')), StartsWith("_zifaucq"));
}

TEST(SessionFileNameTest, DistinctIdsHaveDistinctNamesThatAnyFileSystemTakes) {
  std::mt19937_64 random(5);
  std::set<std::string> ids;
  // Neighbours of each other: of few letters, one changed, or the case of one.
  const std::string letters = "aA.-_~/z0 :\x01\xff";
  for (int i = 0; i < 20000; ++i) {
    std::string id(1 + random() % (i % 2 == 0 ? 4 : limits::kIdCharacters), 'a');
    const std::size_t span = i % 3 == 0 ? 2 : letters.size();
    for (char& c : id) c = i % 5 == 0 ? static_cast<char>(random()) : letters[random() % span];
    ids.insert(id);
    id[random() % id.size()] ^= static_cast<char>(1 << random() % 6);
    ids.insert(id);
    id.back() = static_cast<char>(std::toupper(static_cast<unsigned char>(id.back())));
    ids.insert(id);
    // What looks like the name of another id.
    const std::string name = SessionFileName(id);
    if (name.size() <= limits::kIdCharacters) ids.insert(name);
    if (name.size() <= limits::kIdCharacters + 4) ids.insert(name.substr(0, name.size() - 4));
  }
  std::set<std::string> names;
  for (const std::string& id : ids) {
    const std::string name = SessionFileName(id);
    ASSERT_LE(name.size(), kMaxSessionFileName);
    ASSERT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789._-"), name.npos) << name;
    ASSERT_TRUE(name[0] != '.' && name[0] != '-') << name;
    ASSERT_TRUE(names.insert(name).second) << name;
  }
}

TEST_F(DataDirTest, MakesWhatIsMissingButNotItsParent) {
  const absl::Status orphan = DataDir::Open(path_ + "/below").status();
  EXPECT_TRUE(absl::IsNotFound(orphan));
  EXPECT_THAT(std::string(orphan.message()), HasSubstr(path_ + "/below"));
  EXPECT_TRUE(absl::IsInvalidArgument(DataDir::Open("").status()));
  WriteText(folder_ + "/file", "");
  EXPECT_THAT(std::string(DataDir::Open(folder_ + "/file").status().message()),
              HasSubstr(folder_ + "/file/lock: Not a directory"));

  const auto directory = *DataDir::Open(path_ + "//");
  EXPECT_EQ(directory->path(), path_);
  struct stat status {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700);
  EXPECT_EQ(directory->PathOf("a"), path_ + "/sessions/a.okv");
  EXPECT_TRUE(Files().empty());
  EXPECT_GT(*directory->FreeBytes(), 0);
  const std::uint64_t id = directory->NewFileId();
  EXPECT_EQ(directory->NewFileId(), id + 1);
}

TEST_F(DataDirTest, OneServerAtATime) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto held = DataDir::Open(path_);
    const char told = held.ok() ? 1 : 0;
    if (write(ends[1], &told, 1) == 1) pause();
    _exit(1);
  }
  char told = 0;
  ASSERT_EQ(read(ends[0], &told, 1), 1);
  ASSERT_EQ(told, 1);
  const absl::Status busy = DataDir::Open(path_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(busy));
  EXPECT_EQ(DetailsOf(busy)->reason, "DATA_DIR_IN_USE");
  EXPECT_EQ(busy.message(),
            absl::StrCat("data directory ", path_, ": in use by another server, process ", child));
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  close(ends[0]);
  close(ends[1]);

  // The end of its process frees it; within one process, too, it is held once.
  auto directory = *DataDir::Open(path_);
  EXPECT_THAT(std::string(DataDir::Open(path_).status().message()),
              HasSubstr(absl::StrCat("process ", getpid())));
  directory.reset();
  EXPECT_EQ(DataDir::Open(path_).status(), absl::OkStatus());
}

TEST_F(DataDirTest, PublishesAndRemoves) {
  auto directory = *DataDir::Open(path_);
  for (const Durability durability : {Durability::kWritten, Durability::kSynced}) {
    EXPECT_TRUE(absl::IsNotFound(directory->Publish("a", durability)));
    EXPECT_TRUE(absl::IsNotFound(directory->Remove("a", durability)));
    for (const char* text : {"older", "newer"}) {
      WriteText(directory->TemporaryPathOf("a"), text);
      EXPECT_EQ(directory->Publish("a", durability), absl::OkStatus());
      EXPECT_EQ(Files(), (std::map<std::string, std::string>{{"sessions/a.okv", text}}));
    }
    EXPECT_EQ(directory->Remove("a", durability), absl::OkStatus());
    EXPECT_TRUE(Files().empty());
  }
}

TEST_F(DataDirTest, ReopeningFindsWhatWasPublishedAndDropsTheRest) {
  auto directory = *DataDir::Open(path_);
  const std::string torn = SessionText("torn") + std::string(100, '\0');
  WriteText(directory->PathOf("torn"), torn);
  for (const char* id : {"new", "probe", "torn"}) {
    WriteText(directory->TemporaryPathOf(id), "unfinished");
  }
  WriteText(path_ + "/sessions/letter.tmp", "foreign");
  directory.reset();
  directory = *DataDir::Open(path_);
  WriteText(directory->TemporaryPathOf("later"), "unfinished");
  const auto found = Scan(*directory);
  ASSERT_EQ(found.size(), 2);
  EXPECT_EQ(found[0].found, FoundFile::kForeign);
  EXPECT_EQ(found[1].found, FoundFile::kSession);
  EXPECT_EQ(found[1].path, directory->PathOf("torn"));
  EXPECT_EQ(found[1].contents->tail_bytes, 100);
  EXPECT_EQ(TextOf(found[1].path), torn);
  EXPECT_EQ(Files().size(), 3);
}

TEST_F(DataDirTest, EachFileIsTakenForWhatItIs) {
  auto directory = *DataDir::Open(path_);
  for (int round = 1; round <= 3; ++round) {
    SCOPED_TRACE(round);
    Fill(*directory);
    const auto before = Files();
    const auto found = Scan(*directory);
    ASSERT_EQ(found.size(), 5);
    EXPECT_EQ(found[0].found, FoundFile::kForeign);
    EXPECT_EQ(found[0].path, path_ + "/sessions/README");
    EXPECT_EQ(found[1].found, FoundFile::kDamaged);
    EXPECT_EQ(found[1].path, absl::StrCat(path_, "/damaged/another.okv.", round));
    EXPECT_THAT(std::string(found[1].contents.status().message()), HasSubstr("session one"));
    EXPECT_EQ(found[2].found, FoundFile::kDamaged);
    EXPECT_EQ(found[2].path, absl::StrCat(path_, "/damaged/flipped.okv.", round));
    EXPECT_EQ(found[3].found, FoundFile::kUnsupported);
    EXPECT_EQ(found[3].path, directory->PathOf("newer"));
    EXPECT_EQ(found[4].found, FoundFile::kSession);
    EXPECT_EQ(found[4].contents->state.config().id, "probe");
    const auto after = Files();
    EXPECT_EQ(after.size(), before.size());
    EXPECT_EQ(after.at(absl::StrCat("damaged/flipped.okv.", round)),
              before.at("sessions/flipped.okv"));
  }

  // Nothing takes the place of what another version wrote; of what was set aside, a new session.
  WriteText(directory->TemporaryPathOf("newer"), "x");
  WriteText(directory->TemporaryPathOf("flipped"), "x");
  const absl::Status withheld = directory->Publish("newer", Durability::kWritten);
  EXPECT_EQ(DetailsOf(withheld)->reason, "FILE_WITHHELD");
  EXPECT_THAT(std::string(withheld.message()), HasSubstr("format version is 2"));
  EXPECT_THAT(std::string(withheld.message()), StartsWith(directory->PathOf("newer")));
  EXPECT_EQ(directory->Remove("newer", Durability::kWritten), withheld);
  EXPECT_EQ(directory->CheckUsable("newer"), withheld);
  EXPECT_EQ(directory->CheckUsable("flipped"), absl::OkStatus());
  EXPECT_EQ(directory->Publish("flipped", Durability::kSynced), absl::OkStatus());
}

TEST_F(DataDirTest, WhatCannotBeSetAsideIsWithheld) {
  FailingCalls calls;
  auto directory = *DataDir::Open(path_, &calls);
  Fill(*directory);
  WriteText(directory->TemporaryPathOf("flipped"), "x");
  const auto before = Files();
  calls.no_renames = true;
  calls.error = ENOSPC;
  const auto found = Scan(*directory);
  EXPECT_EQ(found[2].found, FoundFile::kDamaged);
  EXPECT_EQ(found[2].path, directory->PathOf("flipped"));
  EXPECT_THAT(std::string(found[2].contents.status().message()),
              HasSubstr("not set aside: cannot rename"));
  calls.no_renames = false;
  EXPECT_TRUE(absl::IsFailedPrecondition(directory->Publish("flipped", Durability::kWritten)));
  EXPECT_EQ(Files(), before);
  // Another scan may have more luck.
  Scan(*directory);
  EXPECT_EQ(directory->Publish("flipped", Durability::kWritten), absl::OkStatus());
}

TEST_F(DataDirTest, WhatCannotBeReadIsNotTakenForDamaged) {
  FailingCalls calls;
  auto directory = *DataDir::Open(path_, &calls);
  WriteText(directory->PathOf("a"), SessionText("a"));
  for (const int error : {EIO, EACCES, EMFILE}) {
    calls.error = error;
    // Of the first file: once it is opened, and once it is read.
    for (const int call : {0, 1}) {
      calls.made = 0;
      const int listings = 2 + 2 + (2 + 1 + 1) + (2 + 1);  // open, close and read both folders
      calls.fail_at = listings + call;
      const auto found = Scan(*directory);
      ASSERT_EQ(found.size(), 1);
      EXPECT_EQ(found[0].found, FoundFile::kUnreadable);
      EXPECT_EQ(found[0].path, directory->PathOf("a"));
      EXPECT_THAT(std::string(found[0].contents.status().message()), HasSubstr(found[0].path));
      EXPECT_TRUE(absl::IsFailedPrecondition(directory->CheckUsable("a")));
    }
  }
  calls.fail_at = -1;
  EXPECT_EQ(Scan(*directory)[0].found, FoundFile::kSession);
  EXPECT_EQ(directory->CheckUsable("a"), absl::OkStatus());
}

// Whatever call fails, once or from then on: who asked is told of a path, and nothing is lost.
TEST_F(DataDirTest, EachCallThatFailsLeavesAClearErrorAndNoLoss) {
  struct Case {
    int error;
    bool for_good;
    bool filled;
  };
  for (const Case& c :
       {Case{ENOSPC, false, true}, Case{ENOSPC, true, false}, Case{EIO, true, true},
        Case{EIO, false, false}, Case{EACCES, false, true}, Case{EROFS, true, true}}) {
    bool hit = true;
    for (int at = 0; hit; ++at) {
      SCOPED_TRACE(absl::StrCat("errno ", c.error, c.for_good ? " from" : " at", " call ", at));
      ASSERT_LT(at, 500);
      std::filesystem::remove_all(path_);
      std::map<std::string, std::string> before;
      if (c.filled) {
        auto directory = *DataDir::Open(path_);
        Fill(*directory);
        WriteText(directory->TemporaryPathOf("left"), "unfinished");
        before = Files();
      }

      FailingCalls calls;
      calls.fail_at = at;
      calls.for_good = c.for_good;
      calls.error = c.error;
      std::vector<absl::Status> errors;
      {
        auto directory = DataDir::Open(path_, &calls);
        errors.push_back(directory.status());
        if (directory.ok()) {
          errors.push_back((*directory)->Scan([&](const ScannedFile& file) {
            if (file.found == FoundFile::kUnreadable) errors.push_back(file.contents.status());
          }));
          errors.push_back((*directory)->FreeBytes().status());
          WriteText((*directory)->TemporaryPathOf("fresh"), SessionText("fresh"));
          errors.push_back((*directory)->Publish("fresh", Durability::kSynced));
        }
      }
      hit = calls.hit();
      for (const absl::Status& told : errors) {
        if (told.ok()) continue;
        EXPECT_TRUE(hit);
        EXPECT_THAT(std::string(told.message()), HasSubstr(folder_));
        EXPECT_TRUE(DetailsOf(told).has_value());
      }
      const auto directory = DataDir::Open(path_);
      ASSERT_TRUE(directory.ok()) << directory.status();
      std::multiset<std::string> left;
      for (const auto& [path, text] : Files()) left.insert(text);
      for (const auto& [path, text] : before) {
        EXPECT_TRUE(absl::EndsWith(path, ".tmp") || left.count(text) == 1) << path;
      }
      int sessions = 0;
      for (const ScannedFile& file : Scan(**directory)) {
        sessions += file.found == FoundFile::kSession ? 1 : 0;
        EXPECT_NE(file.found, FoundFile::kUnreadable) << file.path;
      }
      EXPECT_GE(sessions, c.filled ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace oscarkv
