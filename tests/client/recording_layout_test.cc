#include "client/recording/recording_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "tests/client/recording_builder.h"

namespace oscarkv {
namespace {

RecordedLayer Layer(int id, DType dtype, std::int64_t tokens, int heads, int dim) {
  RecordedLayer layer;
  layer.layer = id;
  layer.scale = 0.1F;
  layer.query.heads = 2 * heads;
  layer.key.dtype = dtype;
  layer.key.tokens = tokens;
  layer.key.heads = heads;
  layer.key.dim = dim;
  layer.value = layer.key;
  layer.value.dim = 64;
  return layer;
}

TEST(RecordingLayoutTest, IsWhatReadersRead) {
  std::vector<RecordedLayer> layers = {Layer(3, DType::kFP16, 5, 2, 80),
                                       Layer(9, DType::kBF16, 1, 1, 64)};
  layers[0].begin = 77;
  layers[0].sliding_window = std::int64_t{1} << 40;
  layers[1].softcap = 30;
  layers[1].sink_logits = {0.5F, -2};
  const RecordingLayout layout =
      LayOutRecording({.model = "a \"model\" \xff", .origin = "here", .license = "MIT"}, layers);
  ASSERT_EQ(layout.layers.size(), 2u);
  ASSERT_LE(layout.start.size(), layout.bytes);
  std::string file = layout.start;
  file.resize(layout.bytes);
  const auto fill = [&](std::uint64_t begin, const RecordedTensor& tensor, char with) {
    const auto at = file.begin() + static_cast<std::ptrdiff_t>(begin);
    std::fill_n(at, static_cast<std::size_t>(tensor.tokens) * tensor.row_bytes(), with);
  };
  for (std::size_t i = 0; i < layers.size(); ++i) {
    fill(layout.layers[i].key, layers[i].key, static_cast<char>(1 + i));
    fill(layout.layers[i].value, layers[i].value, static_cast<char>(11 + i));
  }

  const auto recording = Recording::Open(TemporaryFile(file).path());
  ASSERT_TRUE(recording.ok()) << recording.status();
  EXPECT_THAT(recording->model(), ::testing::StartsWith("a \"model\" "));
  EXPECT_EQ(recording->origin(), "here");
  EXPECT_EQ(recording->license(), "MIT");
  ASSERT_EQ(recording->layers().size(), 2u);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const RecordedLayer& layer = recording->layers()[i];
    EXPECT_EQ(layer.layer, layers[i].layer);
    EXPECT_EQ(layer.begin, layers[i].begin);
    EXPECT_EQ(layer.scale, layers[i].scale);
    EXPECT_EQ(layer.sliding_window, layers[i].sliding_window);
    EXPECT_EQ(layer.softcap, layers[i].softcap);
    EXPECT_EQ(layer.sink_logits, layers[i].sink_logits);
    EXPECT_EQ(layer.query.heads, layers[i].query.heads);
    EXPECT_FALSE(layer.has_queries());
    EXPECT_EQ(layer.key.dtype, layers[i].key.dtype);
    EXPECT_EQ(layer.key.tokens, layers[i].key.tokens);
    EXPECT_EQ(layer.value.dim, layers[i].value.dim);
    EXPECT_THAT(layer.key.bytes, ::testing::Each(static_cast<std::byte>(1 + i)));
    EXPECT_THAT(layer.value.bytes, ::testing::Each(static_cast<std::byte>(11 + i)));
  }
}

}  // namespace
}  // namespace oscarkv
