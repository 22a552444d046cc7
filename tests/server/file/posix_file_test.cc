#include "server/file/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/error.h"
#include "tests/server/file/file_testing.h"

namespace oscarkv {
namespace {

using ::testing::HasSubstr;

// Calls of the system that fail as told.
struct FaultyCalls : SystemCalls {
  std::uint64_t room = std::numeric_limits<std::uint64_t>::max();  // bytes that can be written
  std::size_t most = SIZE_MAX;  // bytes that one call reads or writes
  int write_error = ENOSPC;     // once the room is used up
  int sync_error = 0;
  int read_error = 0;
  int interruptions = 0;  // of the next calls
  bool crash = false;     // SIGKILL once the room is used up

  bool Interrupt() {
    if (interruptions == 0) return false;
    --interruptions;
    errno = EINTR;
    return true;
  }
  int Open(const char* path, int flags, mode_t mode) override {
    return Interrupt() ? -1 : SystemCalls::Open(path, flags, mode);
  }
  ssize_t Pwrite(int file, const void* bytes, std::size_t count, off_t offset) override {
    if (Interrupt()) return -1;
    if (room == 0) {
      if (crash) (void)kill(getpid(), SIGKILL);
      errno = write_error;
      return -1;
    }
    const ssize_t written = SystemCalls::Pwrite(
        file, bytes, std::min({count, most, static_cast<std::size_t>(room)}), offset);
    if (written > 0) room -= static_cast<std::uint64_t>(written);
    return written;
  }
  ssize_t Pread(int file, void* bytes, std::size_t count, off_t offset) override {
    if (Interrupt()) return -1;
    if (read_error != 0) {
      errno = read_error;
      return -1;
    }
    return SystemCalls::Pread(file, bytes, std::min(count, most), offset);
  }
  int Fdatasync(int file) override {
    if (Interrupt()) return -1;
    if (sync_error == 0) return SystemCalls::Fdatasync(file);
    errno = sync_error;
    return -1;
  }
  int Fsync(int file) override { return Interrupt() ? -1 : SystemCalls::Fsync(file); }
  int Ftruncate(int file, off_t length) override {
    return Interrupt() ? -1 : SystemCalls::Ftruncate(file, length);
  }
};

FileBytes SomeBytes(std::size_t count) {
  FileBytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  return bytes;
}

class PosixFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "posix_file_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ + "/file";
  }
  void TearDown() override {
    for (const char* name : {"/file", "/other"}) unlink((folder_ + name).c_str());
    rmdir(folder_.c_str());
  }

  FileBytes Contents() const {
    const auto file = PosixFile::Open(path_);
    EXPECT_TRUE(file.ok()) << file.status();
    FileBytes bytes(*(*file)->Size());
    EXPECT_EQ((*file)->ReadAt(0, bytes), absl::OkStatus());
    return bytes;
  }

  std::string folder_;
  std::string path_;
};

TEST_F(PosixFileTest, WritesAtTheEndAndReadsAnywhere) {
  const FileBytes bytes = SomeBytes(10000);
  FaultyCalls calls;
  calls.most = 77;
  for (const int interruptions : {0, 3}) {
    SCOPED_TRACE(interruptions);
    calls.interruptions = interruptions;
    auto file = *PosixFile::Create(path_, &calls);
    EXPECT_EQ(file->Write(std::span(bytes).first(4000)), absl::OkStatus());
    calls.interruptions = interruptions;
    EXPECT_EQ(file->Write(std::span(bytes).subspan(4000)), absl::OkStatus());
    calls.interruptions = interruptions;
    EXPECT_EQ(file->Sync(), absl::OkStatus());
    EXPECT_EQ(*file->Size(), bytes.size());
    FileBytes part(1234);
    calls.interruptions = interruptions;
    EXPECT_EQ(file->ReadAt(5000, part), absl::OkStatus());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + 5000));
    EXPECT_TRUE(absl::IsDataLoss(file->ReadAt(9000, part)));
    EXPECT_EQ(file->Close(), absl::OkStatus());
    EXPECT_EQ(Contents(), bytes);

    // Only its owner may read it.
    struct stat status {};
    ASSERT_EQ(stat(path_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 077, 0);

    // Writing goes on where a file was cut.
    calls.interruptions = interruptions;
    file = *PosixFile::Open(path_, &calls);
    calls.interruptions = interruptions;
    EXPECT_EQ(file->Cut(100), absl::OkStatus());
    EXPECT_EQ(file->Write(std::span(bytes).subspan(100, 50)), absl::OkStatus());
    EXPECT_EQ(Contents(), FileBytes(bytes.begin(), bytes.begin() + 150));
    calls.interruptions = 0;
    EXPECT_EQ(RemoveFile(path_, &calls), absl::OkStatus());
  }
}

TEST_F(PosixFileTest, ErrorsNameThePathAndTheReason) {
  const absl::Status missing = PosixFile::Open(path_).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_EQ(missing.message(), absl::StrCat("cannot open ", path_, ": No such file or directory"));
  EXPECT_EQ(DetailsOf(missing)->reason, "FILE_ERROR");
  EXPECT_TRUE(absl::IsNotFound(RemoveFile(path_)));
  EXPECT_TRUE(absl::IsNotFound(ReplaceFile(path_, folder_ + "/other")));
  EXPECT_TRUE(absl::IsNotFound(SyncDirectoryOf(folder_ + "/none/file")));
  ASSERT_TRUE(PosixFile::Create(path_).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(PosixFile::Create(path_).status()));
}

TEST_F(PosixFileTest, AFullDiskStaysAnErrorUntilTheFileIsCut) {
  const FileBytes bytes = SomeBytes(1000);
  FaultyCalls calls;
  calls.room = 300;
  auto file = *PosixFile::Create(path_, &calls);
  const absl::Status full = file->Write(bytes);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("No space left on device"));
  calls.room = 100000;
  EXPECT_EQ(file->Write(bytes), full);
  EXPECT_EQ(file->Sync(), full);
  EXPECT_EQ(file->Cut(0), absl::OkStatus());
  EXPECT_EQ(file->Write(bytes), absl::OkStatus());
  EXPECT_EQ(file->Sync(), absl::OkStatus());
  EXPECT_EQ(Contents(), bytes);

  calls.room = 0;
  calls.write_error = EIO;
  EXPECT_EQ(file->Write(bytes).code(), absl::StatusCode::kInternal);
}

TEST_F(PosixFileTest, AFailedSyncIsNeverMadeGood) {
  FaultyCalls calls;
  auto file = *PosixFile::Create(path_, &calls);
  EXPECT_EQ(file->Write(SomeBytes(10)), absl::OkStatus());
  calls.sync_error = EIO;
  const absl::Status failed = file->Sync();
  EXPECT_THAT(std::string(failed.message()), HasSubstr("cannot sync"));
  calls.sync_error = 0;
  EXPECT_EQ(file->Sync(), failed);
  EXPECT_EQ(file->Write(SomeBytes(10)), failed);
  EXPECT_EQ(file->Cut(0), absl::OkStatus());
  EXPECT_EQ(file->Sync(), failed);
  calls.read_error = EIO;
  FileBytes byte(1);
  EXPECT_EQ(file->ReadAt(0, byte).code(), absl::StatusCode::kInternal);
}

TEST_F(PosixFileTest, ReplacesAtOnce) {
  ASSERT_EQ((*PosixFile::Create(path_))->Write(SomeBytes(10)), absl::OkStatus());
  const std::string other = folder_ + "/other";
  ASSERT_EQ((*PosixFile::Create(other))->Write(SomeBytes(20)), absl::OkStatus());
  EXPECT_EQ(ReplaceFile(other, path_), absl::OkStatus());
  EXPECT_EQ(Contents(), SomeBytes(20));
  EXPECT_TRUE(absl::IsNotFound(PosixFile::Open(other).status()));
}

// A process that is killed while it writes leaves a file with all commits that it was told of.
TEST_F(PosixFileTest, KilledAnywhereTheFileHasItsCommits) {
  Random random(1);
  for (int trial = 0; trial < 60; ++trial) {
    SCOPED_TRACE(absl::StrCat("trial ", trial));
    const std::uint64_t seed = random();
    const std::uint64_t room = random() % 120000;
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FaultyCalls calls;
      calls.room = room;
      calls.most = 1 + seed % 5000;
      calls.crash = true;
      Random history(seed);
      FileModel model(&history);
      auto file = PosixFile::Create(path_, &calls);
      auto writer = SessionFileWriter::Create(model.fields(), seed, file->get());
      for (int i = 0; i < 6; ++i) {
        model.Step();
        if (!model.Checkpoint(writer->get(), static_cast<Durability>(seed % 2)).ok()) _exit(1);
        const char told = 1;
        if (write(ends[1], &told, 1) != 1) _exit(1);
      }
      _exit(0);
    }
    close(ends[1]);
    std::uint32_t told = 0;
    for (char byte = 0; read(ends[0], &byte, 1) == 1;) ++told;
    close(ends[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << status;

    const auto file = *PosixFile::Open(path_);
    auto index = IndexSessionFile(*file);
    if (told > 0) {
      ASSERT_TRUE(index.ok()) << index.status();
      EXPECT_GE(index->state.commits(), told);
      EXPECT_LE(index->state.commits(), told + 1);
      EXPECT_EQ(ReadSessionFile(*file, nullptr)->state.layers(), index->state.layers());
      Random history(seed);
      FileModel model(&history);
      MemoryFile scratch;
      auto writer = *SessionFileWriter::Create(model.fields(), seed, &scratch);
      for (std::uint32_t i = 0; i < index->state.commits(); ++i) {
        model.Step();
        ASSERT_EQ(model.Checkpoint(writer.get(), Durability::kWritten), absl::OkStatus());
      }
      model.Expect(*file, *index);
    } else if (!index.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(index.status())) << index.status();
    }
    ASSERT_EQ(RemoveFile(path_), absl::OkStatus());
  }
}

}  // namespace
}  // namespace oscarkv
