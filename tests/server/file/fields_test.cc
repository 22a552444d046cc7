// What a file may say: sessions that CreateSession accepts, records that follow on each other.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/api/page_layout.h"
#include "server/file/token_rows.h"
#include "tests/server/file/known_files.h"

namespace oscarkv {
namespace {

using ::testing::HasSubstr;

TEST(SessionFieldsTest, ComeBackAsTheyWere) {
  Random random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const SessionFields fields = AnySession(random);
    ASSERT_EQ(CheckSession(fields.config), absl::OkStatus());
    const FileBytes payload = EncodeSession(fields);
    const auto decoded = DecodeSession(payload);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->create_time, fields.create_time);
    const SessionConfig& config = decoded->config;
    EXPECT_EQ(config.id, fields.config.id);
    EXPECT_EQ(config.request_id, fields.config.request_id);
    EXPECT_EQ(config.content_digest, fields.config.content_digest);
    EXPECT_EQ(config.tenant, fields.config.tenant);
    EXPECT_EQ(config.group, fields.config.group);
    EXPECT_EQ(config.model, fields.config.model);
    EXPECT_EQ(config.model_revision, fields.config.model_revision);
    EXPECT_EQ(config.rope_digest, fields.config.rope_digest);
    EXPECT_EQ(config.storage, fields.config.storage);
    EXPECT_EQ(config.position_base, fields.config.position_base);
    EXPECT_EQ(config.rollback_tokens, fields.config.rollback_tokens);
    EXPECT_EQ(config.prefix_keys, fields.config.prefix_keys);
    EXPECT_EQ(config.value_folded, fields.config.value_folded);
    ASSERT_EQ(config.layers.size(), fields.config.layers.size());
    for (std::size_t i = 0; i < config.layers.size(); ++i) {
      const LayerSpec& spec = config.layers[i];
      const LayerSpec& expected = fields.config.layers[i];
      EXPECT_EQ(spec.layer, expected.layer);
      EXPECT_EQ(spec.query_heads, expected.query_heads);
      EXPECT_EQ(spec.value_dim, expected.value_dim);
      EXPECT_EQ(spec.storage, expected.storage);
      EXPECT_EQ(spec.scale, expected.scale);
      EXPECT_EQ(spec.softcap, expected.softcap);
      EXPECT_EQ(spec.sliding_window, expected.sliding_window);
      EXPECT_EQ(spec.sink_logits, expected.sink_logits);
      EXPECT_EQ(spec.given_directions, expected.given_directions);
      EXPECT_EQ(spec.given_plan.size(), expected.given_plan.size());
      EXPECT_EQ(spec.codec.key_group, expected.codec.key_group);
      EXPECT_EQ(spec.codec.scaling, expected.codec.scaling);
      EXPECT_EQ(spec.codec.residual, expected.codec.residual);
      EXPECT_EQ(spec.codec.window, expected.codec.window);
      EXPECT_EQ(spec.codec.sinks, expected.codec.sinks);
      EXPECT_EQ(PageLayout(spec).bytes, PageLayout(expected).bytes);
    }
    // Any other length is refused, and never read beyond.
    for (std::size_t size = 0; size < payload.size(); size += 1 + random() % 9) {
      const FileBytes cut(payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_TRUE(absl::IsDataLoss(DecodeSession(cut).status()));
    }
    FileBytes longer = payload;
    longer.push_back(std::byte{0});
    EXPECT_TRUE(absl::IsDataLoss(DecodeSession(longer).status()));
  }
}

TEST(SessionFieldsTest, AnyChangeOfBytesIsASessionOrRefused) {
  Random random(2);
  for (int trial = 0; trial < 20000; ++trial) {
    FileBytes payload = EncodeSession(trial % 2 == 0 ? GoldenFields() : AnySession(random));
    for (auto changes = 1 + random() % 3; changes > 0; --changes) {
      payload[random() % payload.size()] = static_cast<std::byte>(random());
    }
    const auto decoded = DecodeSession(payload);
    if (decoded.ok()) {
      EXPECT_EQ(CheckSession(decoded->config), absl::OkStatus());
      EXPECT_EQ(EncodeSession(*decoded), payload);
    } else {
      EXPECT_TRUE(absl::IsDataLoss(decoded.status()) ||
                  absl::IsFailedPrecondition(decoded.status()))
          << decoded.status();
    }
  }
}

TEST(SessionFieldsTest, WhatCreateSessionRefuses) {
  using Change = std::function<void(SessionConfig&)>;
  const auto layer = [](auto change) {
    return [change](SessionConfig& config) { change(config.layers[1]); };
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Change> changes = {
      [](SessionConfig& c) { c.id.clear(); },
      [](SessionConfig& c) { c.id.assign(129, 'a'); },
      [](SessionConfig& c) { c.id.assign(1, '/'); },
      [](SessionConfig& c) { c.request_id.clear(); },
      [](SessionConfig& c) { c.request_id.assign(1, '\n'); },
      [](SessionConfig& c) { c.tenant.assign(1, ' '); },
      [](SessionConfig& c) { c.group.assign(129, 'a'); },
      [](SessionConfig& c) { c.model.assign(257, 'a'); },
      [](SessionConfig& c) { c.model_revision.assign(257, 'a'); },
      [](SessionConfig& c) { c.rope_digest.assign(257, 'a'); },
      [](SessionConfig& c) { c.content_digest.assign(257, 'a'); },
      [](SessionConfig& c) { c.position_base = -1; },
      [](SessionConfig& c) { c.position_base = kPositionLimit + 1; },
      [](SessionConfig& c) { c.rollback_tokens = -1; },
      [](SessionConfig& c) { c.rollback_tokens = kPositionLimit + 1; },
      [](SessionConfig& c) { c.prefix_keys = {{.length = 0, .key = "12345678"}}; },
      [](SessionConfig& c) { c.prefix_keys = {{.length = 1, .key = "1234567"}}; },
      [](SessionConfig& c) { c.prefix_keys = {{.length = 1, .key = std::string(65, 'x')}}; },
      [](SessionConfig& c) { c.prefix_keys.assign(2, {.length = 1, .key = "12345678"}); },
      [](SessionConfig& c) { c.storage = DType::kFP32; },
      [](SessionConfig& c) { c.storage = DType::kBF16; },
      [](SessionConfig& c) { c.layers.clear(); },
      [](SessionConfig& c) { c.value_folded.pop_back(); },
      [](SessionConfig& c) { std::swap(c.layers[0], c.layers[1]); },
      layer([](LayerSpec& s) { s.layer = 0; }),
      layer([](LayerSpec& s) { s.layer = 65536; }),
      layer([](LayerSpec& s) { s.kv_heads = 0; }),
      layer([](LayerSpec& s) { s.kv_heads = 1025; }),
      layer([](LayerSpec& s) { s.query_heads = 17; }),
      layer([](LayerSpec& s) { s.query_heads = 0; }),
      layer([](LayerSpec& s) { s.key_dim = 65; }),
      layer([](LayerSpec& s) { s.value_dim = 0; }),
      layer([](LayerSpec& s) { s.scale = 0; }),
      layer([](LayerSpec& s) { s.scale = 65537; }),
      layer([nan](LayerSpec& s) { s.scale = nan; }),
      layer([](LayerSpec& s) { s.softcap = -1; }),
      layer([nan](LayerSpec& s) { s.softcap = nan; }),
      layer([](LayerSpec& s) { s.softcap = std::numeric_limits<float>::infinity(); }),
      layer([](LayerSpec& s) { s.sliding_window = -1; }),
      layer([](LayerSpec& s) { s.sink_logits.pop_back(); }),
      layer([nan](LayerSpec& s) { s.sink_logits[0] = nan; }),
      layer([](LayerSpec& s) { s.codec.key_bits = 3; }),
      layer([](LayerSpec& s) { s.codec.value_bits = 8; }),
      layer([](LayerSpec& s) { s.codec.key_group = 64; }),
      layer([](LayerSpec& s) { s.codec.value_group = 64; }),
      layer([](LayerSpec& s) { s.codec.window = 0; }),
      layer([](LayerSpec& s) { s.codec.window = 4097; }),
      layer([](LayerSpec& s) { s.codec.sinks = -1; }),
      layer([](LayerSpec& s) { s.codec.sinks = 129; }),
      layer([](LayerSpec& s) { s.codec.value_rotation = Rotation::kHadamard; }),
      layer([](LayerSpec& s) { s.codec.plan = PlanMode::kAuto; }),
      layer([](LayerSpec& s) { s.given_plan.clear(); }),
      layer([](LayerSpec& s) { s.given_directions.pop_back(); }),
      layer([](LayerSpec& s) { s.given_directions[0] = 1; }),
      layer([nan](LayerSpec& s) { s.given_directions[0] = nan; }),
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("change ", i));
    SessionFields fields = GoldenFields();
    ASSERT_EQ(CheckSession(fields.config), absl::OkStatus());
    changes[i](fields.config);
    EXPECT_TRUE(absl::IsInvalidArgument(CheckSession(fields.config)));
    MemoryFile file;
    EXPECT_TRUE(absl::IsInvalidArgument(SessionFileWriter::Create(fields, 1, &file).status()));
    EXPECT_TRUE(file.bytes.empty());
  }
}

// The example file with a change to its first bytes or to one record, and checksums put right.
FileBytes Changed(std::size_t at, const std::function<void(RecordHeader&)>& change) {
  FileBytes bytes = ExampleFile();
  RecordHeader header;
  std::memcpy(&header, bytes.data() + at, sizeof(header));
  change(header);
  header.payload_crc =
      PayloadCrc(std::span(bytes).subspan(at + sizeof(header), header.payload_bytes));
  SetCrc(&header);
  std::memcpy(bytes.data() + at, &header, sizeof(header));
  return bytes;
}

constexpr std::size_t kSessionAt = 0x40;
constexpr std::size_t kSinksAt = 0x100;
constexpr std::size_t kBlockAt = 0x240;
constexpr std::size_t kCommitAt = 0x480;

TEST(SessionFileFieldsTest, OtherVersionsAndByteOrders) {
  FileBytes bytes = ExampleFile();
  FileStart start{.version = 2, .file_id = 7};
  SetCrc(&start);
  std::memcpy(bytes.data(), &start, sizeof(start));
  const absl::Status version = ReadPieces(bytes).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(version));
  EXPECT_EQ(version.message(), "session file: format version is 2; this version reads 1");

  start = {.byte_order = 0x04030201, .version = 0x01000000, .file_id = 7};
  std::memcpy(bytes.data(), &start, sizeof(start));
  EXPECT_TRUE(absl::IsFailedPrecondition(ReadPieces(bytes).status()));

  EXPECT_TRUE(absl::IsFailedPrecondition(
      ReadPieces(Changed(kSinksAt, [](RecordHeader& h) { h.type = RecordType{11}; })).status()));
}

TEST(SessionFileFieldsTest, PagesOfAnotherSize) {
  FileBytes bytes = ExampleFile();
  bytes[0xea] ^= std::byte{64};
  std::vector<std::byte> payload(bytes.begin() + 0x80, bytes.begin() + 0x80 + 128);
  const absl::Status s = DecodeSession(payload).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(s)) << s;
  EXPECT_THAT(std::string(s.message()), HasSubstr("page size of layer 0 is 5248 bytes"));
}

TEST(SessionFileFieldsTest, FieldsOfRecords) {
  ASSERT_TRUE(ReadPieces(Changed(kSinksAt, [](RecordHeader&) {})).ok());
  const std::vector<std::pair<std::size_t, std::function<void(RecordHeader&)>>> changes = {
      {kSessionAt, [](RecordHeader& h) { h.type = RecordType::kSinks; }},
      {kSinksAt, [](RecordHeader& h) { h.type = RecordType::kSession; }},
      {kSinksAt, [](RecordHeader& h) { h.type = RecordType::kBlock; }},
      {kSinksAt, [](RecordHeader& h) { h.type = RecordType::kConfirm; }},
      {kSinksAt, [](RecordHeader& h) { h.flags = 1; }},
      {kSinksAt, [](RecordHeader& h) { h.layer = 1; }},
      {kSinksAt, [](RecordHeader& h) { h.begin = 1; }},
      {kSinksAt, [](RecordHeader& h) { h.count = 0; }},
      {kSinksAt, [](RecordHeader& h) { h.count = 2; }},
      {kSinksAt, [](RecordHeader& h) { h.payload_bytes -= 2; }},
      {kSinksAt, [](RecordHeader& h) { h.offset += 64; }},
      {kSinksAt, [](RecordHeader& h) { h.commits = 1; }},
      {kSinksAt, [](RecordHeader& h) { h.file_id = 8; }},
      {kBlockAt, [](RecordHeader& h) { h.type = RecordType::kPage; }},
      {kBlockAt, [](RecordHeader& h) { h.type = RecordType::kSinks; }},
      {kBlockAt, [](RecordHeader& h) { h.begin = 0; }},
      {kBlockAt, [](RecordHeader& h) { h.begin = 2; }},
      {kBlockAt, [](RecordHeader& h) { h.begin = -1; }},
      {kBlockAt, [](RecordHeader& h) { h.begin = kPositionLimit; }},
      {kBlockAt, [](RecordHeader& h) { h.count = 1; }},
      {kBlockAt, [](RecordHeader& h) { h.count = -1; }},
      {kBlockAt, [](RecordHeader& h) { h.count = 33; }},
      {kBlockAt, [](RecordHeader& h) { h.count = std::numeric_limits<std::int64_t>::max(); }},
      {kCommitAt, [](RecordHeader& h) { h.layer = 1; }},
      {kCommitAt, [](RecordHeader& h) { h.count = 129; }},
      {kCommitAt, [](RecordHeader& h) { h.count = -1; }},
      {kCommitAt, [](RecordHeader& h) { h.begin = 1; }},
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const FileBytes bytes = Changed(changes[i].first, changes[i].second);
    EXPECT_TRUE(absl::IsDataLoss(ReadPieces(bytes).status())) << "change " << i;
  }
}

TEST(SessionFileFieldsTest, ALengthThatLiesTakesNoMemory) {
  const FileBytes bytes = Changed(kSessionAt, [](RecordHeader& h) { h.payload_bytes = 118; });
  FileBytes lying = bytes;
  RecordHeader header;
  std::memcpy(&header, lying.data() + kSessionAt, sizeof(header));
  for (const std::uint64_t claimed : {kMaxSessionBytes, kMaxSessionBytes + 1, ~std::uint64_t{0}}) {
    header.payload_bytes = claimed;
    SetCrc(&header);
    std::memcpy(lying.data() + kSessionAt, &header, sizeof(header));
    EXPECT_TRUE(absl::IsDataLoss(ReadPieces(lying, 100).status()));
  }
}

TEST(SessionFileFieldsTest, NumbersThatAreNotFinite) {
  FileBytes bytes = ExampleFile();
  const std::uint16_t infinity = 0x7f80;
  for (const std::size_t at : {kSinksAt, kBlockAt}) {
    FileBytes changed = bytes;
    std::memcpy(changed.data() + at + 64 + 10, &infinity, 2);
    RecordHeader header;
    std::memcpy(&header, changed.data() + at, sizeof(header));
    header.payload_crc =
        PayloadCrc(std::span(changed).subspan(at + sizeof(header), header.payload_bytes));
    SetCrc(&header);
    std::memcpy(changed.data() + at, &header, sizeof(header));
    const absl::Status s = ReadPieces(changed).status();
    EXPECT_TRUE(absl::IsDataLoss(s));
    EXPECT_THAT(std::string(s.message()), HasSubstr("element 5; expected finite"));
  }
}

TEST(SessionFileWriterTest, RefusesWhatDoesNotFollowAndGoesOn) {
  const SessionFields fields = GoldenFields();
  const LayerSpec& spec = fields.config.layers[0];
  const auto block = [&](int tokens) {
    return FileBytes(static_cast<std::size_t>(TokenBlockLayout(spec, tokens).bytes));
  };
  const FileBytes page(static_cast<std::size_t>(PageLayout(spec).bytes));
  MemoryFile file;
  auto writer = *SessionFileWriter::Create(fields, 1, &file);
  EXPECT_FALSE(writer->AddBlock(0, 0, 1, block(1)).ok());  // where sinks are
  EXPECT_FALSE(writer->AddBlock(0, 2, 2, block(1)).ok());
  EXPECT_FALSE(writer->AddBlock(2, 2, 1, block(1)).ok());
  EXPECT_FALSE(writer->AddPage(0, 3, 128, false, page).ok());
  EXPECT_FALSE(writer->AddPage(1, 0, 128, false, page).ok());  // a layer that is not sealed
  EXPECT_FALSE(writer->AddDirections(1, 0, FileBytes(256)).ok());
  EXPECT_FALSE(writer->AddQuery(0, 9, FileBytes(128)).ok());  // not a sampled position
  EXPECT_EQ(writer->AddSinks(0, 2, block(2)), absl::OkStatus());
  EXPECT_EQ(writer->AddBlock(0, 2, 3, block(3)), absl::OkStatus());
  EXPECT_FALSE(writer->AddBlock(0, 34, 1, block(1)).ok());    // behind a block that is not full
  EXPECT_FALSE(writer->AddQuery(0, 8, FileBytes(128)).ok());  // of no token
  EXPECT_FALSE(writer->AddQuery(0, 0, FileBytes(128)).ok());  // of a sink
  SessionCommit commit{.layers = {{.length = 6}, {.length = 0}}};
  EXPECT_FALSE(writer->Commit(commit, Durability::kWritten).ok());  // one token is missing
  commit.layers.pop_back();
  commit.layers[0].length = 5;
  EXPECT_FALSE(writer->Commit(commit, Durability::kWritten).ok());
  commit.layers.emplace_back();
  commit.layers[0].last_append = AppendRecord{.start = 3, .count = 1};
  EXPECT_FALSE(writer->Commit(commit, Durability::kWritten).ok());
  commit.layers[0].last_append->start = 4;
  EXPECT_EQ(writer->Commit(commit, Durability::kWritten), absl::OkStatus());
  commit.generation = 4;
  EXPECT_EQ(writer->Commit(commit, Durability::kWritten), absl::OkStatus());
  commit.generation = 3;
  EXPECT_FALSE(writer->Commit(commit, Durability::kWritten).ok());
  const auto read = ReadPieces(file.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->state.layers()[0].length(), 5);
}

TEST(TokenRowsTest, MoveBetweenCapacities) {
  Random random(3);
  FileModel model(&random);
  while (model.layers()[0].length() < 20) model.Step();
  const ModelLayer& layer = model.layers()[0];
  const FileBytes five = layer.Tokens(0, 5);
  EXPECT_EQ(TokenCapacity(layer.spec, five.size()), 5);
  EXPECT_EQ(WithTokens(layer.spec, layer.Tokens(0, 20), 5, 5), five);
  const FileBytes wide = WithTokens(layer.spec, five, 4, 32);
  EXPECT_EQ(TokenCapacity(layer.spec, wide.size()), 32);
  EXPECT_EQ(WithTokens(layer.spec, wide, 4, 4), layer.Tokens(0, 4));
  // Nothing of the fifth.
  EXPECT_EQ(WithTokens(layer.spec, wide, 32, 32),
            WithTokens(layer.spec, layer.Tokens(0, 4), 4, 32));
}

}  // namespace
}  // namespace oscarkv
