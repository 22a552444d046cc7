#include "tests/server/file/file_model.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/api/page_layout.h"
#include "server/file/token_rows.h"

namespace oscarkv {
namespace {

constexpr std::int64_t kUncut = std::numeric_limits<std::int64_t>::max();

std::int64_t Below(Random& random, std::int64_t limit) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
}

template <typename T, std::size_t kCount>
T OneOf(Random& random, const T (&choices)[kCount]) {
  return choices[random() % kCount];
}

std::string AnyText(Random& random, std::int64_t least, std::int64_t most) {
  std::string text(static_cast<std::size_t>(least + Below(random, most - least + 1)), 'a');
  for (char& c : text) c = static_cast<char>('a' + Below(random, 26));
  return text;
}

LayerSpec AnyLayer(Random& random, int id, DType storage) {
  LayerSpec spec;
  spec.layer = id;
  spec.storage = storage;
  spec.kv_heads = 1 + static_cast<int>(Below(random, 2));
  spec.query_heads = spec.kv_heads * (1 + static_cast<int>(Below(random, 3)));
  spec.key_dim = OneOf(random, {64, 64, 80, 128});
  spec.value_dim = OneOf(random, {64, 64, 96});
  spec.scale = 0.125F;
  spec.softcap = OneOf(random, {0.F, 30.F});
  if (Below(random, 3) == 0) spec.sink_logits.assign(spec.query_heads, 0.5F);
  CodecSpec& codec = spec.codec;
  codec.key_bits = OneOf(random, {2, 2, 4, 16});
  codec.value_bits = OneOf(random, {2, 2, 4, 16});
  codec.key_group = OneOf(random, {kSmallGroup, kPageTokens});
  codec.value_group = OneOf(random, {0, kSmallGroup});
  codec.value_fit = OneOf(random, {Fit::kVariance, Fit::kMinMax});
  codec.scaling = OneOf(random, {Scaling::kNone, Scaling::kJoint, Scaling::kPerHead});
  codec.residual = Below(random, 2) == 0;
  codec.value_rotation = OneOf(random, {Rotation::kHadamard, Rotation::kNone});
  codec.window = 1 + static_cast<int>(Below(random, 100));
  codec.sinks = OneOf(random, {0, 4, 7});
  spec.sliding_window = OneOf<std::int64_t>(random, {0, 0, codec.window, 1000});
  if (Below(random, 3) == 0) {
    codec.plan = PlanMode::kGiven;
    spec.given_plan.assign(spec.kv_heads, {Rotation::kNone, Fit::kMinMax});
    if (Below(random, 2) == 0) {
      spec.given_directions.assign(static_cast<std::size_t>(spec.kv_heads) * spec.key_dim, 0.F);
      for (int h = 0; h < spec.kv_heads; ++h) spec.given_directions[h * spec.key_dim + h] = -1;
    }
  }
  return spec;
}

// 16-bit elements, finite in both storage types.
std::vector<std::byte> Elements(std::uint64_t stamp, std::size_t count) {
  std::vector<std::uint16_t> elements(count);
  for (std::uint16_t& x : elements) {
    stamp = stamp * 6364136223846793005 + 1442695040888963407;
    x = static_cast<std::uint16_t>(stamp >> 33) & 0xbfff;
  }
  const auto bytes = std::as_bytes(std::span(elements));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

SessionFields AnySession(Random& random) {
  SessionFields fields;
  SessionConfig& config = fields.config;
  config.id = AnyText(random, 1, 128);
  config.request_id = AnyText(random, 1, 20);
  config.content_digest = AnyText(random, 0, 32);
  config.tenant = AnyText(random, 0, 9);
  config.group = AnyText(random, 0, 9);
  config.model = AnyText(random, 0, 256);
  config.model_revision = AnyText(random, 0, 9);
  config.rope_digest = AnyText(random, 0, 9);
  config.storage = OneOf(random, {DType::kBF16, DType::kFP16});
  config.rollback_tokens = OneOf<std::int64_t>(random, {0, 256, kPositionLimit});
  for (std::int64_t length = random() % 3; length > 0 && length < 1000; length *= 4) {
    config.prefix_keys.push_back({.length = length, .key = AnyText(random, 8, 64)});
  }
  config.position_base = OneOf<std::int64_t>(random, {0, 5, 4096});
  int id = 0;
  for (auto layers = 1 + Below(random, 3); layers > 0; --layers) {
    id += 1 + static_cast<int>(Below(random, 9));
    config.layers.push_back(AnyLayer(random, id, config.storage));
    config.value_folded.push_back(config.layers.back().codec.value_rotation == Rotation::kNone);
  }
  fields.create_time = absl::FromUnixNanos(Below(random, 1'000'000'000'000'000'000));
  return fields;
}

std::int64_t ModelLayer::window_begin() const {
  return pages.empty() ? released_to : pages.back().begin + pages.back().tokens;
}

std::vector<std::byte> ModelLayer::Tokens(std::int64_t begin, std::int64_t count) const {
  const TokenBlockLayout layout(spec, static_cast<int>(count));
  std::vector<std::byte> block(static_cast<std::size_t>(layout.bytes));
  for (std::int64_t t = 0; t < count; ++t) {
    const std::uint64_t stamp = stamps[static_cast<std::size_t>(begin + t)];
    for (int head = 0; head < spec.kv_heads; ++head) {
      const auto key = Elements(stamp + head, spec.key_dim);
      const auto value = Elements(stamp - head - 1, spec.value_dim);
      std::byte* const region = block.data() + head * layout.head_bytes;
      std::memcpy(region + t * 2 * spec.key_dim, key.data(), key.size());
      std::memcpy(region + layout.value_offset + t * 2 * spec.value_dim, value.data(),
                  value.size());
    }
  }
  return block;
}

std::vector<std::byte> ModelLayer::Page(const ModelPage& page) const {
  return Elements(page.stamp, static_cast<std::size_t>(PageLayout(spec).bytes) / 2);
}

std::vector<std::byte> ModelLayer::Query(std::uint64_t stamp) const {
  return Elements(stamp, static_cast<std::size_t>(spec.query_heads) * spec.key_dim);
}

std::vector<std::byte> ModelLayer::Directions() const {
  std::vector<float> numbers(static_cast<std::size_t>(spec.kv_heads) * spec.key_dim);
  numbers[directions->second % numbers.size()] = 1;
  const auto bytes = std::as_bytes(std::span(numbers));
  return {bytes.begin(), bytes.end()};
}

FileModel::FileModel(Random* random) : random_(*random), fields_(AnySession(*random)) {
  for (const LayerSpec& spec : fields_.config.layers) layers_.emplace_back(spec);
  cut_.assign(layers_.size(), kUncut);
  commit_.layers.resize(layers_.size());
}

std::int64_t FileModel::Below(std::int64_t limit) { return oscarkv::Below(random_, limit); }

void FileModel::Step() {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    ModelLayer& layer = layers_[i];
    if (Below(3) != 0) Append(layer);
    if (Below(3) != 0) Seal(layer);
    if (Below(6) == 0) Release(layer);
    if (Below(5) == 0) {
      const std::int64_t length = Below(4) == 0 ? Below(8) : Below(layer.length() + 1);
      const bool gone = layer.spec.codec.sinks < length && length < layer.released_to;
      if (length < layer.length() && !gone) Truncate(i, length);
    }
  }
}

void FileModel::Append(ModelLayer& layer) {
  const std::int64_t begin = layer.length();
  const std::int64_t count = 1 + Below(Below(4) == 0 ? 300 : 40);
  for (std::int64_t i = 0; i < count; ++i) layer.stamps.push_back(random_());
  for (std::int64_t p = begin; p < layer.length(); ++p) {
    const bool sampled = (p + fields_.config.position_base) % layer.spec.query_sample_stride() == 0;
    if (p >= layer.window_begin() && sampled && Below(4) != 0) layer.sample[p] = random_();
  }
}

void FileModel::Seal(ModelLayer& layer) {
  while (layer.spec.seals() &&
         layer.window_begin() + kPageTokens + layer.spec.codec.window <= layer.length()) {
    const std::int64_t begin = layer.window_begin();
    const bool finds = layer.spec.has_residual() && layer.spec.given_directions.empty();
    if (finds && !layer.directions && !layer.sample.empty()) layer.directions = {begin, random_()};
    layer.pages.push_back({.begin = begin, .blind = Below(2) == 0, .stamp = random_()});
    layer.sample.erase(layer.sample.begin(), layer.sample.lower_bound(layer.window_begin()));
  }
}

void FileModel::Release(ModelLayer& layer) {
  if (!layer.pages.empty()) {
    const auto count = 1 + Below(static_cast<std::int64_t>(layer.pages.size()));
    const ModelPage& last = layer.pages[static_cast<std::size_t>(count - 1)];
    layer.released_to = last.begin + last.tokens;
    layer.pages.erase(layer.pages.begin(), layer.pages.begin() + count);
  } else if (layer.length() > layer.released_to + 2 * kWindowBlockTokens) {
    layer.released_to += kWindowBlockTokens;
    layer.sample.erase(layer.sample.begin(), layer.sample.lower_bound(layer.released_to));
  }
}

void FileModel::Truncate(std::size_t index, std::int64_t length) {
  ModelLayer& layer = layers_[index];
  cut_[index] = std::min(cut_[index], length);
  layer.stamps.resize(static_cast<std::size_t>(length));
  while (!layer.pages.empty() && layer.pages.back().begin >= length) layer.pages.pop_back();
  if (!layer.pages.empty()) {
    ModelPage& last = layer.pages.back();
    last.tokens = static_cast<int>(std::min<std::int64_t>(last.tokens, length - last.begin));
  }
  layer.sample.erase(layer.sample.lower_bound(length), layer.sample.end());
  if (layer.directions && length <= layer.directions->first) layer.directions.reset();
  if (length <= layer.spec.codec.sinks) layer.released_to = layer.spec.codec.sinks;
}

absl::Status FileModel::Checkpoint(SessionFileWriter* writer, Durability durability) {
  commit_.generation += static_cast<std::uint64_t>(Below(2));
  commit_.time = absl::FromUnixNanos(Below(1'000'000'000'000'000'000));
  commit_.last_truncate.reset();
  if (Below(2) == 0) commit_.last_truncate = {AnyText(random_, 1, 128), random_(), Below(1000)};
  commit_.prefix_limit = Below(2) == 0 ? kPositionLimit : Below(1000);
  commit_.retention.priority = static_cast<int>(Below(5)) - 2;
  commit_.retention.pinned = Below(2) == 0;
  commit_.retention.ttl =
      Below(2) == 0 ? absl::InfiniteDuration() : absl::Nanoseconds(1 + Below(1'000'000'000'000));
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (absl::Status s = Add(i, writer); !s.ok()) return s;
    LayerCommit& layer = commit_.layers[i];
    layer = {.length = layers_[i].length()};
    if (layer.length == 0 || Below(3) == 0) continue;
    const auto count = static_cast<std::int32_t>(1 + Below(layer.length));
    layer.last_append = {layer.length - count, count, OneOf(random_, {DType::kBF16, DType::kFP32}),
                         static_cast<std::uint32_t>(random_())};
  }
  return writer->Commit(commit_, durability);
}

absl::Status FileModel::Add(std::size_t index, SessionFileWriter* writer) {
  const ModelLayer& layer = layers_[index];
  const FileLayer& file = writer->state().layers()[index];
  absl::Status s;
  const std::int64_t cut = std::exchange(cut_[index], kUncut);
  if (cut < file.length()) {
    s.Update(writer->Truncate(index, cut));
  }
  if (layer.released_to > file.released_to()) {
    s.Update(writer->Release(index, layer.released_to));
  }
  const int sinks =
      static_cast<int>(std::min<std::int64_t>(layer.length(), layer.spec.codec.sinks));
  if (sinks > (file.sinks() ? file.sinks()->tokens : 0)) {
    s.Update(writer->AddSinks(index, sinks, layer.Tokens(0, sinks)));
  }
  for (const ModelPage& page : layer.pages) {
    if (page.begin < file.window_begin()) continue;
    s.Update(writer->AddPage(index, page.begin, page.tokens, page.blind, layer.Page(page)));
  }
  std::int64_t begin = std::max(layer.window_begin(), file.length());
  // A block that has grown is written anew.
  if (begin < layer.length()) begin -= (begin - layer.window_begin()) % kWindowBlockTokens;
  for (; begin < layer.length(); begin += kWindowBlockTokens) {
    const auto tokens = std::min<std::int64_t>(kWindowBlockTokens, layer.length() - begin);
    s.Update(writer->AddBlock(index, begin, static_cast<int>(tokens), layer.Tokens(begin, tokens)));
  }
  for (const auto& [position, stamp] : layer.sample) {
    s.Update(writer->AddQuery(index, position, layer.Query(stamp)));
  }
  if (layer.directions && !file.directions()) {
    s.Update(writer->AddDirections(index, layer.directions->first, layer.Directions()));
  }
  return s;
}

void FileModel::Expect(const ByteSource& file, const SessionFileContents& contents) const {
  const auto read = [&](const FilePiece& piece) {
    std::vector<std::byte> payload(piece.place.bytes);
    EXPECT_EQ(ReadPayload(file, piece.place, payload), absl::OkStatus());
    return payload;
  };
  const SessionFileState& state = contents.state;
  ASSERT_EQ(state.layers().size(), layers_.size());
  EXPECT_EQ(EncodeSession(state.fields()), EncodeSession(fields_));
  EXPECT_EQ(state.last_commit(), commit_);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("layer ", i));
    const ModelLayer& expected = layers_[i];
    const FileLayer& layer = state.layers()[i];
    EXPECT_EQ(layer.length(), expected.length());
    EXPECT_EQ(layer.window_begin(), expected.window_begin());
    const auto sinks = std::min<std::int64_t>(expected.length(), expected.spec.codec.sinks);
    ASSERT_EQ(layer.sinks() ? layer.sinks()->tokens : 0, sinks);
    if (sinks > 0) {
      // A truncate may have left fewer tokens than were written.
      const int tokens = layer.sinks()->tokens;
      EXPECT_EQ(WithTokens(expected.spec, read(*layer.sinks()), tokens, tokens),
                expected.Tokens(0, sinks));
    }
    ASSERT_EQ(layer.pages().size(), expected.pages.size());
    for (std::size_t p = 0; p < expected.pages.size(); ++p) {
      const ModelPage& page = expected.pages[p];
      EXPECT_EQ(layer.pages()[p].begin, page.begin);
      EXPECT_EQ(layer.pages()[p].tokens, page.tokens);
      EXPECT_EQ(layer.pages()[p].blind, page.blind);
      EXPECT_EQ(read(layer.pages()[p]), expected.Page(page));
    }
    std::int64_t next = layer.window_begin();
    for (const FilePiece& block : layer.blocks()) {
      ASSERT_EQ(block.begin, next);
      next = block.end();
      EXPECT_EQ(WithTokens(expected.spec, read(block), block.tokens, block.tokens),
                expected.Tokens(block.begin, block.tokens));
    }
    ASSERT_EQ(layer.queries().size(), expected.sample.size());
    auto query = expected.sample.begin();
    for (const FilePiece& piece : layer.queries()) {
      EXPECT_EQ(piece.begin, query->first);
      EXPECT_EQ(read(piece), expected.Query((query++)->second));
    }
    ASSERT_EQ(layer.directions().has_value(), expected.directions.has_value());
    if (expected.directions) {
      EXPECT_EQ(layer.directions()->begin, expected.directions->first);
      EXPECT_EQ(read(*layer.directions()), expected.Directions());
    }
  }
}

}  // namespace oscarkv
