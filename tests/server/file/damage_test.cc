// Files that were cut, torn, damaged, put together wrongly or made up.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/file/file_testing.h"

namespace oscarkv {
namespace {

using ::testing::HasSubstr;

// A file that is not as it was written is refused, or told to be damaged behind its last commit,
// which is the same; also where payloads are not read at first.
void ExpectRefusedOrSame(const FileBytes& bytes, const TestFile& original) {
  const auto read = ReadPieces(bytes);
  if (!read.ok()) {
    EXPECT_TRUE(absl::IsDataLoss(read.status()) || absl::IsFailedPrecondition(read.status()))
        << read.status();
    return;
  }
  EXPECT_EQ(read->state.last_commit(), original.commits.back().commit);
  EXPECT_GT(read->tail_bytes, 0);
}

TEST(SessionFileDamageTest, EverySingleBitFlipIsDetected) {
  const TestFile small = SmallFile();
  FileBytes bytes = small.file.bytes;
  const std::size_t confirm = bytes.size() - sizeof(RecordHeader);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      SCOPED_TRACE(absl::StrCat("byte ", at, " bit ", bit));
      bytes[at] ^= static_cast<std::byte>(1 << bit);
      const auto read = ReadPieces(bytes);
      bytes[at] ^= static_cast<std::byte>(1 << bit);
      if (at < confirm) {
        ASSERT_TRUE(absl::IsDataLoss(read.status())) << read.status();
        EXPECT_THAT(std::string(read.status().message()), HasSubstr("expected"));
      } else {
        ASSERT_TRUE(read.ok()) << read.status();
        EXPECT_EQ(read->state.last_commit(), small.commits.back().commit);
        EXPECT_TRUE(absl::IsDataLoss(read->damage));
      }
    }
  }
}

// What is not committed yet may be damaged in any way; what is committed may not.
TEST(SessionFileDamageTest, BitFlipsBeforeAndInAnUncommittedTail) {
  const TestFile small = SmallFile();
  const std::size_t committed = small.commits[0].offset;
  const std::size_t commit_record =
      64 + PaddedBytes(CommitBytes(1, small.commits[1].commit.last_truncate->request_id.size()));
  FileBytes bytes = small.file.bytes;
  bytes.resize(small.commits[1].offset - commit_record);
  ASSERT_EQ(ReadPieces(bytes)->state.last_commit(), small.commits[0].commit);
  ASSERT_EQ(ReadPieces(bytes)->tail_bytes, bytes.size() - committed - 64);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    SCOPED_TRACE(absl::StrCat("byte ", at));
    bytes[at] ^= std::byte{8};
    const auto read = ReadPieces(bytes);
    bytes[at] ^= std::byte{8};
    if (at < committed) {
      ASSERT_TRUE(absl::IsDataLoss(read.status())) << read.status();
      continue;
    }
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->state.last_commit(), small.commits[0].commit);
    EXPECT_THAT(std::string(read->damage.message()), HasSubstr("expected"));
  }
}

// A commit that nothing follows yet still tells that what it commits must be whole.
TEST(SessionFileDamageTest, BitFlipsBeforeACommitWithoutConfirmation) {
  const TestFile small = SmallFile();
  FileBytes bytes = small.file.bytes;
  bytes.resize(small.commits.back().offset);
  const std::vector<std::size_t> records = small.Records();
  const std::size_t last_commit = records[records.size() - 2];
  for (std::size_t at = 0; at < last_commit; ++at) {
    SCOPED_TRACE(absl::StrCat("byte ", at));
    bytes[at] ^= std::byte{2};
    const auto read = ReadPieces(bytes, 1000);
    bytes[at] ^= std::byte{2};
    ASSERT_TRUE(absl::IsDataLoss(read.status())) << read.status();
  }
}

TEST(SessionFileDamageTest, IndexAndPayloadsDetectWhatIsLive) {
  Random random(5);
  FileModel model(&random);
  MemoryFile file;
  auto writer = *SessionFileWriter::Create(model.fields(), 1, &file);
  for (int i = 0; i < 4; ++i) {
    model.Step();
    ASSERT_EQ(model.Checkpoint(writer.get(), Durability::kWritten), absl::OkStatus());
  }
  const SessionFileState& state = writer->state();
  for (const FileLayer& layer : state.layers()) {
    std::vector<FilePiece> pieces = layer.pages();
    pieces.insert(pieces.end(), layer.blocks().begin(), layer.blocks().end());
    pieces.insert(pieces.end(), layer.queries().begin(), layer.queries().end());
    for (const FilePiece& piece : pieces) {
      FileBytes payload(piece.place.bytes);
      std::byte& byte = file.bytes[piece.place.offset + random() % payload.size()];
      byte ^= std::byte{16};
      EXPECT_TRUE(IndexSessionFile(file).ok());
      EXPECT_TRUE(absl::IsDataLoss(ReadPayload(file, piece.place, payload)));
      EXPECT_TRUE(absl::IsDataLoss(ReadPieces(file.bytes).status()));
      byte ^= std::byte{16};
      EXPECT_EQ(ReadPayload(file, piece.place, payload), absl::OkStatus());
    }
  }
}

TEST(SessionFileDamageTest, CutAnywhereItIsTheLastWholeCommit) {
  const TestFile small = SmallFile();
  for (std::size_t size = 0; size <= small.file.bytes.size(); ++size) {
    SCOPED_TRACE(absl::StrCat(size, " bytes"));
    MemoryFile cut;
    cut.bytes = {small.file.bytes.begin(),
                 small.file.bytes.begin() + static_cast<std::ptrdiff_t>(size)};
    const TestFile::End* last = nullptr;
    for (const TestFile::End& end : small.commits) last = end.offset <= size ? &end : last;
    for (const auto& read : {ReadPieces(cut.bytes), IndexSessionFile(cut)}) {
      if (last == nullptr) {
        ASSERT_TRUE(absl::IsDataLoss(read.status())) << read.status();
        continue;
      }
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->state.last_commit(), last->commit);
      EXPECT_EQ(read->state.layers()[0].length(), last->commit.layers[0].length);
      const std::uint64_t end = read->state.committed_end();
      EXPECT_EQ(end, size < last->offset + 64 ? last->offset : last->offset + 64);
      EXPECT_EQ(read->tail_bytes, size - end);
    }
  }
}

TEST(SessionFileDamageTest, RecordsDuplicatedDroppedOrSwapped) {
  const TestFile small = SmallFile();
  const FileBytes& bytes = small.file.bytes;
  std::vector<std::size_t> bounds = small.Records();
  bounds.push_back(bytes.size());
  const auto at = [&](std::size_t i) {
    return bytes.begin() + static_cast<std::ptrdiff_t>(bounds[i]);
  };
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("record ", i));
    FileBytes duplicated(bytes.begin(), at(i + 1));
    duplicated.insert(duplicated.end(), at(i), bytes.end());
    ExpectRefusedOrSame(duplicated, small);

    FileBytes dropped(bytes.begin(), at(i));
    dropped.insert(dropped.end(), at(i + 1), bytes.end());
    if (i + 2 < bounds.size()) {
      ExpectRefusedOrSame(dropped, small);
      EXPECT_TRUE(absl::IsDataLoss(ReadPieces(dropped).status()));
    }

    if (i + 2 < bounds.size()) {
      FileBytes swapped(bytes.begin(), at(i));
      swapped.insert(swapped.end(), at(i + 1), at(i + 2));
      swapped.insert(swapped.end(), at(i), at(i + 1));
      swapped.insert(swapped.end(), at(i + 2), bytes.end());
      ExpectRefusedOrSame(swapped, small);
    }
  }
}

TEST(SessionFileDamageTest, BytesPutInOrTakenOut) {
  const TestFile small = SmallFile();
  for (std::size_t at = 0; at < small.file.bytes.size(); at += 5) {
    SCOPED_TRACE(absl::StrCat("byte ", at));
    const auto place = static_cast<std::ptrdiff_t>(at);
    FileBytes longer = small.file.bytes;
    longer.insert(longer.begin() + place, std::byte{0x4f});
    ExpectRefusedOrSame(longer, small);
    // Without a part of the last commit and its confirmation it is a shorter file.
    if (at + sizeof(RecordHeader) > small.file.bytes.size()) continue;
    FileBytes shorter = small.file.bytes;
    shorter.erase(shorter.begin() + place);
    ExpectRefusedOrSame(shorter, small);
  }
}

TEST(SessionFileDamageTest, ManyBytesTakenOut) {
  const TestFile small = SmallFile();
  const std::size_t confirm = small.file.bytes.size() - sizeof(RecordHeader);
  Random random(7);
  for (int trial = 0; trial < 3000; ++trial) {
    const std::size_t from = random() % confirm;
    const std::size_t to = from + 1 + random() % (confirm - from);
    SCOPED_TRACE(absl::StrCat("bytes ", from, " to ", to));
    FileBytes bytes(small.file.bytes.begin(),
                    small.file.bytes.begin() + static_cast<std::ptrdiff_t>(from));
    bytes.insert(bytes.end(), small.file.bytes.begin() + static_cast<std::ptrdiff_t>(to),
                 small.file.bytes.end());
    ASSERT_TRUE(absl::IsDataLoss(ReadPieces(bytes, 1 + random() % 999).status()));
    MemoryFile file;
    file.bytes = bytes;
    ASSERT_TRUE(absl::IsDataLoss(IndexSessionFile(file).status()));
  }
}

TEST(SessionFileDamageTest, PartsOfAnotherFile) {
  const TestFile small = SmallFile();
  MemoryFile other;
  Random random(3);
  FileModel model(&random);
  auto writer = *SessionFileWriter::Create(model.fields(), kTestFileId + 1, &other);
  ASSERT_EQ(model.Checkpoint(writer.get(), Durability::kWritten), absl::OkStatus());
  // Behind the last commit lie whole records and commits of another file: an old use of the disk.
  FileBytes bytes = small.file.bytes;
  bytes.insert(bytes.end(), other.bytes.begin(), other.bytes.end());
  const auto read = ReadPieces(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->state.last_commit(), small.commits.back().commit);
  EXPECT_EQ(read->tail_bytes, other.bytes.size());
}

TEST(SessionFileDamageTest, AnyTailIsIgnored) {
  const TestFile small = SmallFile();
  Random random(4);
  for (int trial = 0; trial < 300; ++trial) {
    FileBytes bytes = small.file.bytes;
    const bool zeros = trial % 3 == 0;
    for (auto more = 1 + random() % 500; more > 0; --more) {
      bytes.push_back(zeros ? std::byte{0} : static_cast<std::byte>(random()));
    }
    const auto read = ReadPieces(bytes, 1 + random() % 200);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->state.last_commit(), small.commits.back().commit);
    EXPECT_EQ(read->tail_bytes, bytes.size() - small.file.bytes.size());
    EXPECT_TRUE(absl::IsDataLoss(read->damage));
  }
}

TEST(SessionFileDamageTest, GarbageIsRefused) {
  Random random(6);
  const TestFile small = SmallFile();
  for (int trial = 0; trial < 2000; ++trial) {
    FileBytes bytes(random() % 2000);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (trial % 2 == 0) {
      const std::size_t kept = std::min<std::size_t>(bytes.size(), random() % 400);
      std::copy_n(small.file.bytes.begin(), kept, bytes.begin());
    }
    const auto read = ReadPieces(bytes, 1 + random() % 300);
    EXPECT_TRUE(absl::IsDataLoss(read.status())) << read.status();
  }
}

TEST(SessionFileDamageTest, WriterThatRunsOutOfRoomLeavesTheLastCommit) {
  Random random(8);
  const std::uint64_t seed = 10;
  std::vector<std::size_t> ends;
  std::size_t size = SIZE_MAX;
  for (std::size_t room = SIZE_MAX;; room = room == SIZE_MAX ? 0 : room + 1 + random() % 40) {
    if (room != SIZE_MAX && room > size) break;
    Random history(seed);
    FileModel model(&history);
    MemoryFile file;
    file.room = room;
    auto writer = *SessionFileWriter::Create(model.fields(), 1, &file);
    absl::Status s;
    for (int i = 0; i < 3 && s.ok(); ++i) {
      for (int steps = 0; steps < 2; ++steps) model.Step();
      s = model.Checkpoint(writer.get(), Durability::kSynced);
      if (room == SIZE_MAX) ends.push_back(file.bytes.size() - sizeof(RecordHeader));
    }
    if (room == SIZE_MAX) {
      size = file.bytes.size();
      ASSERT_EQ(s, absl::OkStatus());
      continue;
    }
    EXPECT_EQ(s.ok(), room == size);
    EXPECT_EQ(file.bytes.size(), room);
    // The error stays.
    EXPECT_EQ(writer->Truncate(0, 0).ok(), s.ok());
    const auto commits =
        std::count_if(ends.begin(), ends.end(), [&](std::size_t end) { return end <= room; });
    const auto index = IndexSessionFile(file);
    if (commits == 0) {
      EXPECT_TRUE(absl::IsDataLoss(index.status()));
    } else {
      ASSERT_TRUE(index.ok()) << index.status();
      EXPECT_EQ(index->state.commits(), commits);
    }
  }
}

// A loss of power keeps what was synced, and of the rest any sectors in any order.
TEST(SessionFileDamageTest, LossOfPowerKeepsWhatWasSynced) {
  constexpr std::size_t kSector = 512;
  Random random(9);
  for (std::uint64_t trial = 0; trial < 400; ++trial) {
    SCOPED_TRACE(absl::StrCat("trial ", trial));
    Random history(trial % 8);
    FileModel model(&history);
    MemoryFile file;
    auto writer = *SessionFileWriter::Create(model.fields(), 1, &file);
    std::vector<std::size_t> ends;  // of commits that were reported as synced
    for (int i = 0; i < 3; ++i) {
      for (int steps = 0; steps < 2; ++steps) model.Step();
      ASSERT_EQ(model.Checkpoint(writer.get(), Durability::kSynced), absl::OkStatus());
      ends.push_back(file.bytes.size() - sizeof(RecordHeader));
    }
    // Power goes when some sync has returned and not the next.
    const std::size_t which = 1 + random() % (file.syncs.size() - 1);
    const std::size_t synced = file.syncs[which - 1];
    const std::size_t written = file.syncs[which];
    MemoryFile after;
    after.bytes.assign(file.bytes.begin(),
                       file.bytes.begin() + static_cast<std::ptrdiff_t>(written));
    for (std::size_t sector = synced / kSector; sector * kSector < written; ++sector) {
      if (random() % 2 == 0) continue;
      const std::size_t from = std::max(synced, sector * kSector);
      const std::size_t to = std::min(written, (sector + 1) * kSector);
      std::fill(after.bytes.begin() + static_cast<std::ptrdiff_t>(from),
                after.bytes.begin() + static_cast<std::ptrdiff_t>(to), std::byte{0});
    }
    const auto kept =
        std::count_if(ends.begin(), ends.end(), [&](std::size_t end) { return end <= synced; });
    const auto read = ReadPieces(after.bytes);
    if (kept == 0) {
      EXPECT_TRUE(read.ok() || absl::IsDataLoss(read.status())) << read.status();
      continue;
    }
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_GE(read->state.commits(), kept);
  }
}

}  // namespace
}  // namespace oscarkv
