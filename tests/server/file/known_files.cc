#include "tests/server/file/known_files.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/api/page_layout.h"

namespace oscarkv {
namespace {

constexpr absl::Time kCreated = absl::FromUnixSeconds(1'800'000'000);

LayerSpec SmallSpec(int layer) {
  LayerSpec spec;
  spec.layer = layer;
  spec.query_heads = 1;
  spec.kv_heads = 1;
  spec.key_dim = 64;
  spec.value_dim = 64;
  spec.scale = 0.125F;
  return spec;
}

std::size_t TokenBytes(const LayerSpec& spec, int tokens) {
  return static_cast<std::size_t>(TokenBlockLayout(spec, tokens).bytes);
}

}  // namespace

FileBytes ExampleFile() {
  SessionFields fields;
  fields.create_time = kCreated;
  fields.config.id = std::string("s");
  fields.config.request_id = std::string("r");
  fields.config.layers = {SmallSpec(0)};
  fields.config.layers[0].codec.sinks = 1;
  fields.config.value_folded = {false};
  MemoryFile file;
  auto writer = *SessionFileWriter::Create(fields, 7, &file);
  const auto elements = [](int count, float x) {
    const std::vector<std::uint16_t> all(static_cast<std::size_t>(count), ToBF16(x));
    const auto bytes = std::as_bytes(std::span(all));
    return FileBytes(bytes.begin(), bytes.end());
  };
  EXPECT_EQ(writer->AddSinks(0, 1, elements(128, 1)), absl::OkStatus());
  EXPECT_EQ(writer->AddBlock(0, 1, 2, elements(256, 2)), absl::OkStatus());
  const SessionCommit commit{
      .generation = 5,
      .time = kCreated + absl::Seconds(1),
      .layers = {
          {.length = 3, .last_append = AppendRecord{.start = 2, .count = 1, .crc = 0x12345678}}}};
  EXPECT_EQ(writer->Commit(commit, Durability::kWritten), absl::OkStatus());
  return file.bytes;
}

SessionFields GoldenFields() {
  SessionFields fields;
  fields.create_time = kCreated + absl::Nanoseconds(123'456'789);
  SessionConfig& config = fields.config;
  config.id = std::string("golden");
  config.request_id = std::string("create golden");
  config.content_digest = std::string("0123456789abcdef");
  config.tenant = std::string("tenant");
  config.group = std::string("group");
  config.model = std::string("a model");
  config.model_revision = std::string("main");
  config.rope_digest = std::string("rope");
  config.storage = DType::kFP16;
  config.position_base = 8;
  config.rollback_tokens = 32;
  config.prefix_keys = {{.length = 2, .key = "prefix 2"}, {.length = 100, .key = "prefix 100"}};
  config.layers = {SmallSpec(0), SmallSpec(3)};
  LayerSpec& sealing = config.layers[0];
  sealing.codec.window = 1;
  sealing.codec.sinks = 2;
  LayerSpec& given = config.layers[1];
  given.query_heads = 2;
  given.value_dim = 80;
  given.softcap = 30;
  given.sliding_window = 16;
  given.sink_logits = {0.5F, -1.5F};
  given.codec = {.key_bits = 4,
                 .value_bits = 16,
                 .key_group = kSmallGroup,
                 .value_group = kSmallGroup,
                 .value_fit = Fit::kMinMax,
                 .scaling = Scaling::kPerHead,
                 .plan = PlanMode::kGiven,
                 .value_rotation = Rotation::kNone,
                 .window = 64,
                 .sinks = 0};
  given.given_plan = {{Rotation::kNone, Fit::kMinMax}};
  given.given_directions.assign(64, 0.125F);
  for (LayerSpec& spec : config.layers) spec.storage = config.storage;
  config.value_folded = {false, true};
  return fields;
}

SessionCommit GoldenCommit() {
  return {.generation = 12,
          .time = kCreated + absl::Hours(1),
          .last_truncate = TruncateRecord{.request_id = "cut", .generation = 11, .length = 138},
          .retention = {.priority = -3, .pinned = true, .ttl = absl::Hours(8)},
          .prefix_limit = 138,
          .layers = {{.length = 138},
                     {.length = 70,
                      .last_append = AppendRecord{
                          .start = 64, .count = 6, .dtype = DType::kFP32, .crc = 99}}}};
}

FileBytes GoldenPayload(int seed, std::size_t bytes) {
  FileBytes payload(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    payload[i] = static_cast<std::byte>((static_cast<std::size_t>(seed) + i * i) % 59);
  }
  return payload;
}

FileBytes GoldenFile() {
  const SessionFields fields = GoldenFields();
  const LayerSpec& sealing = fields.config.layers[0];
  const LayerSpec& given = fields.config.layers[1];
  MemoryFile file;
  auto writer = *SessionFileWriter::Create(fields, 0xfeed, &file);
  absl::Status s;
  s.Update(writer->AddSinks(0, 2, GoldenPayload(1, TokenBytes(sealing, 2))));
  s.Update(writer->AddBlock(0, 2, 3, GoldenPayload(2, TokenBytes(sealing, 3))));
  s.Update(writer->AddBlock(1, 0, 4, GoldenPayload(3, TokenBytes(given, 4))));
  s.Update(writer->Commit({.generation = 11,
                           .time = kCreated + absl::Minutes(1),
                           .layers = {{.length = 5}, {.length = 4}}},
                          Durability::kWritten));
  s.Update(writer->AddPage(0, 2, kPageTokens, true,
                           GoldenPayload(4, static_cast<std::size_t>(PageLayout(sealing).bytes))));
  std::vector<float> directions(64);
  directions[1] = -1;
  s.Update(writer->AddDirections(0, 2, std::as_bytes(std::span(directions))));
  s.Update(writer->AddBlock(0, 130, 10, GoldenPayload(5, TokenBytes(sealing, 10))));
  s.Update(writer->AddQuery(0, 136, GoldenPayload(6, 128)));
  s.Update(writer->Truncate(0, 138));
  s.Update(writer->Release(1, 64));
  s.Update(writer->AddBlock(1, 64, 6, GoldenPayload(7, TokenBytes(given, 6))));
  s.Update(writer->Commit(GoldenCommit(), Durability::kWritten));
  EXPECT_EQ(s, absl::OkStatus());
  return file.bytes;
}

}  // namespace oscarkv
