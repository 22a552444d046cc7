#include "tests/server/file/file_testing.h"

#include <cstring>

#include "server/file/token_rows.h"

namespace oscarkv {

std::vector<std::size_t> TestFile::Records() const {
  std::vector<std::size_t> offsets;
  for (std::size_t at = sizeof(FileStart); at < file.bytes.size();) {
    offsets.push_back(at);
    RecordHeader header;
    std::memcpy(&header, file.bytes.data() + at, sizeof(header));
    at += sizeof(header) + PaddedBytes(header.payload_bytes);
  }
  return offsets;
}

TestFile SmallFile() {
  SessionFields fields;
  fields.config.id = "small";
  fields.config.request_id = "create small";
  LayerSpec spec;
  spec.query_heads = 1;
  spec.kv_heads = 1;
  spec.key_dim = 64;
  spec.value_dim = 64;
  spec.scale = 0.125F;
  spec.codec.sinks = 1;
  fields.config.layers = {spec};
  fields.config.value_folded = {false};

  const auto tokens = [&](int count) {
    return FileBytes(static_cast<std::size_t>(count) * 4 * 64, std::byte{0x3c});
  };
  TestFile small;
  auto writer = *SessionFileWriter::Create(fields, kTestFileId, &small.file);
  const auto commit = [&](std::uint64_t generation, std::int64_t length) {
    SessionCommit state{.generation = generation,
                        .time = absl::FromUnixSeconds(length),
                        .layers = {{.length = length}}};
    if (generation > 1) state.last_truncate = {"cut", 1, 3};
    EXPECT_EQ(writer->Commit(state, Durability::kWritten), absl::OkStatus());
    small.commits.push_back({small.file.bytes.size() - sizeof(RecordHeader), state});
  };
  EXPECT_EQ(writer->AddSinks(0, 1, tokens(1)), absl::OkStatus());
  EXPECT_EQ(writer->AddBlock(0, 1, 4, tokens(4)), absl::OkStatus());
  commit(1, 5);
  EXPECT_EQ(writer->Truncate(0, 3), absl::OkStatus());
  EXPECT_EQ(writer->AddBlock(0, 1, 9, tokens(9)), absl::OkStatus());
  EXPECT_EQ(writer->AddQuery(0, 8, FileBytes(128, std::byte{0x3d})), absl::OkStatus());
  commit(2, 10);
  EXPECT_EQ(writer->Truncate(0, 4), absl::OkStatus());
  commit(3, 4);
  return small;
}

}  // namespace oscarkv
