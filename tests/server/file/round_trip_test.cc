// What is written comes back, over random sessions and random histories, as a simple model has it.
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/server/file/file_testing.h"

namespace oscarkv {
namespace {

constexpr int kTrials = 150;
constexpr int kSteps = 12;

TEST(SessionFileRoundTripTest, RandomHistories) {
  for (std::uint64_t seed = 0; seed < kTrials; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    FileModel model(&random);
    MemoryFile file;
    auto created = SessionFileWriter::Create(model.fields(), random(), &file);
    ASSERT_TRUE(created.ok()) << created.status();
    std::unique_ptr<SessionFileWriter> writer = *std::move(created);
    for (int step = 0; step < kSteps; ++step) {
      SCOPED_TRACE(absl::StrCat("step ", step));
      model.Step();
      if (random() % 3 == 0) continue;
      ASSERT_EQ(model.Checkpoint(writer.get(), static_cast<Durability>(random() % 2)),
                absl::OkStatus());
      ASSERT_EQ(file.bytes.size(), writer->size());
      ASSERT_EQ(writer->state().committed_end(), writer->size());

      const auto read = ReadPieces(file.bytes, random() % 3 == 0 ? 1000 : SIZE_MAX);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->tail_bytes, 0);
      EXPECT_EQ(read->state.layers(), writer->state().layers());
      ASSERT_NO_FATAL_FAILURE(model.Expect(file, *read));

      auto index = IndexSessionFile(file);
      ASSERT_TRUE(index.ok()) << index.status();
      EXPECT_EQ(index->state.layers(), read->state.layers());
      EXPECT_EQ(index->state.committed_end(), file.bytes.size());
      EXPECT_LE(index->state.live_bytes(), file.bytes.size());

      if (random() % 3 != 0) continue;
      // Behind the last commit anything may lie; who goes on cuts it off.
      model.Expect(file, *index);
      for (auto bytes = random() % 300; bytes > 0; --bytes) {
        file.bytes.push_back(static_cast<std::byte>(random()));
      }
      auto torn = IndexSessionFile(file);
      ASSERT_TRUE(torn.ok()) << torn.status();
      EXPECT_EQ(torn->tail_bytes, file.bytes.size() - torn->state.committed_end());
      file.bytes.resize(torn->state.committed_end());
      writer = std::make_unique<SessionFileWriter>(std::move(torn->state), &file);
    }
  }
}

TEST(SessionFileRoundTripTest, PiecesOfAnySizeReadAlike) {
  const TestFile small = SmallFile();
  const auto whole = ReadPieces(small.file.bytes);
  ASSERT_TRUE(whole.ok()) << whole.status();
  for (const std::size_t piece : {1, 2, 3, 7, 63, 64, 65, 128, 1000}) {
    const auto read = ReadPieces(small.file.bytes, piece);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->state.layers(), whole->state.layers());
    EXPECT_EQ(read->state.last_commit(), whole->state.last_commit());
  }
}

TEST(SessionFileRoundTripTest, ACheckpointCostsWhatIsNew) {
  Random random(1);
  FileModel model(&random);
  MemoryFile file;
  auto writer = *SessionFileWriter::Create(model.fields(), 1, &file);
  for (int i = 0; i < 5; ++i) model.Step();
  ASSERT_EQ(model.Checkpoint(writer.get(), Durability::kWritten), absl::OkStatus());
  const std::size_t before = file.bytes.size();
  // Nothing is new but the sample, which the model always adds.
  std::size_t sample = 0;
  for (const FileLayer& layer : writer->state().layers()) {
    for (const FilePiece& query : layer.queries()) sample += 64 + PaddedBytes(query.place.bytes);
  }
  ASSERT_EQ(model.Checkpoint(writer.get(), Durability::kWritten), absl::OkStatus());
  EXPECT_LE(
      file.bytes.size() - before,
      sample + 128 + PaddedBytes(CommitBytes(model.layers().size(), limits::kRequestIdBytes)));
}

class Recorder : public SessionFileVisitor {
 public:
  absl::Status OnSession(const SessionFields& fields) override {
    heard += absl::StrCat("session ", fields.config.id, "\n");
    return absl::OkStatus();
  }
  absl::Status OnRecord(const RecordHeader& header, std::span<const std::byte> payload) override {
    heard += absl::StrCat(NameOf(header.type), " ", header.begin, "+", header.count, ": ",
                          payload.size(), "\n");
    return ++records == refuse ? absl::CancelledError("enough") : absl::OkStatus();
  }
  absl::Status OnCommit(const SessionFileState& state) override {
    heard += absl::StrCat("commit ", state.commits(), "\n");
    return absl::OkStatus();
  }
  std::string heard;
  int records = 0;
  int refuse = 0;
};

TEST(SessionFileRoundTripTest, VisitorHearsOfAllInOrder) {
  const TestFile small = SmallFile();
  Recorder recorder;
  ASSERT_TRUE(ReadSessionFile(small.file, &recorder).ok());
  EXPECT_EQ(recorder.heard,
            "session small\nsinks 0+1: 256\nblock 1+4: 1024\ncommit 1\ntruncate 3+0: 0\n"
            "block 1+9: 2304\nquery 8+1: 128\ncommit 2\ntruncate 4+0: 0\ncommit 3\n");
  Recorder refusing;
  refusing.refuse = 2;
  EXPECT_EQ(ReadSessionFile(small.file, &refusing).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(refusing.records, 2);
}

}  // namespace
}  // namespace oscarkv
