#include "client/recording/recording.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <random>

#include "tests/client/recording_builder.h"

namespace oscarkv {
namespace {

using testing::HasSubstr;

absl::StatusOr<Recording> OpenBytes(const std::string& bytes) {
  return Recording::Open(TemporaryFile(bytes).path());  // the mapping outlives the name
}

RecordingBuilder TwoLayers() {
  RecordingBuilder builder;
  builder.AddLayer(7, 5, 2, 6, 64, 80).AddLayer(3, 4, 1, 1, 64, 64);
  builder.layers[0]["sliding_window"] = 512;
  builder.layers[0]["softcap"] = 50.5;
  return builder;
}

TEST(RecordingTest, ReadsWhatIsThere) {
  RecordingBuilder builder = TwoLayers();
  const std::vector<float> sinks = {1, 2, 3, 4, 5, -6};
  builder.AddTensor("layers.7.sink_logits", "F32", {6},
                    std::string(reinterpret_cast<const char*>(sinks.data()), 24));
  const auto recording = OpenBytes(builder.Bytes());
  ASSERT_TRUE(recording.ok()) << recording.status();
  EXPECT_EQ(recording->model(), "Test-1B");
  EXPECT_EQ(recording->origin(), "made up");
  EXPECT_EQ(recording->license(), "MIT");
  ASSERT_EQ(recording->layers().size(), 2u);
  EXPECT_EQ(recording->layers()[0].layer, 3);
  EXPECT_FALSE(recording->layers()[0].sliding_window.has_value());
  EXPECT_FALSE(recording->layers()[0].softcap.has_value());
  EXPECT_TRUE(recording->layers()[0].sink_logits.empty());

  const RecordedLayer& layer = recording->layers()[1];
  EXPECT_EQ(layer.layer, 7);
  EXPECT_EQ(layer.tokens(), 5);
  EXPECT_EQ(layer.scale, 0.125);
  EXPECT_EQ(layer.sliding_window, 512);
  EXPECT_EQ(layer.softcap, 50.5);
  EXPECT_EQ(layer.sink_logits, sinks);
  EXPECT_EQ(layer.key.dtype, DType::kFP16);
  EXPECT_EQ(layer.query.dtype, DType::kFP32);
  EXPECT_EQ(layer.value.heads, 2);
  EXPECT_EQ(layer.value.dim, 80);
  EXPECT_EQ(layer.key.bytes.size(), 5u * layer.key.row_bytes());
  for (const std::byte b : layer.key.bytes) EXPECT_EQ(b, std::byte{1});
  for (const std::byte b : layer.value.bytes) EXPECT_EQ(b, std::byte{2});
  for (const std::byte b : layer.query.bytes) EXPECT_EQ(b, std::byte{3});
}

TEST(RecordingTest, MayHaveNoQueries) {
  RecordingBuilder builder = TwoLayers();
  builder.AddLayerWithoutQueries(9, 5, 2, 6, 64, 80).layers.back()["begin"] = 700;
  const std::vector<float> sinks = {1, 2, 3, 4, 5, -6};
  builder.AddTensor("layers.9.sink_logits", "F32", {6},
                    std::string(reinterpret_cast<const char*>(sinks.data()), 24));
  const auto recording = OpenBytes(builder.Bytes());
  ASSERT_TRUE(recording.ok()) << recording.status();
  ASSERT_EQ(recording->layers().size(), 3u);
  EXPECT_TRUE(recording->layers()[1].has_queries());
  EXPECT_EQ(recording->layers()[1].begin, 0);
  const RecordedLayer& layer = recording->layers()[2];
  EXPECT_FALSE(layer.has_queries());
  EXPECT_EQ(layer.begin, 700);
  EXPECT_EQ(layer.tokens(), 5);
  EXPECT_EQ(layer.query.heads, 6);
  EXPECT_EQ(layer.query.dim, 64);
  EXPECT_TRUE(layer.query.bytes.empty());
  EXPECT_EQ(layer.sink_logits, sinks);
}

TEST(RecordingTest, NamesTheFileThatIsNotThere) {
  const auto recording = Recording::Open("/nonexistent/file");
  EXPECT_TRUE(absl::IsNotFound(recording.status()));
  EXPECT_THAT(std::string(recording.status().message()), HasSubstr("/nonexistent/file"));
  EXPECT_TRUE(absl::IsInvalidArgument(Recording::Open("/dev/null").status()));
  EXPECT_FALSE(Recording::Open("/").ok());
}

struct Fault {
  const char* name;
  std::function<void(RecordingBuilder&)> apply;
  const char* message;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class RecordingFaultTest : public testing::TestWithParam<Fault> {};

TEST_P(RecordingFaultTest, IsNamed) {
  RecordingBuilder builder = TwoLayers();
  GetParam().apply(builder);
  const auto recording = OpenBytes(builder.Bytes());
  EXPECT_THAT(std::string(recording.status().message()), HasSubstr(GetParam().message));
  EXPECT_FALSE(recording.ok());
}

INSTANTIATE_TEST_SUITE_P(
    All, RecordingFaultTest,
    testing::Values(
        Fault{"NoFormat", [](auto& b) { b.metadata.erase("format"); }, "format"},
        Fault{"OtherFormat", [](auto& b) { b.metadata["format"] = "pt"; }, "format"},
        Fault{"LaterVersion", [](auto& b) { b.metadata["version"] = "2"; }, "version"},
        Fault{"NoModel", [](auto& b) { b.metadata.erase("model"); }, "model"},
        Fault{"MetadataNotText", [](auto& b) { b.metadata["model"] = 3; }, "not a string"},
        Fault{"NoLayers", [](auto& b) { b.layers = nullptr; }, "layers"},
        Fault{"EmptyLayers", [](auto& b) { b.layers = nlohmann::json::array(); }, "layers"},
        Fault{"LayerTwice", [](auto& b) { b.layers.push_back(b.layers[0]); }, "layer 7 twice"},
        Fault{"LayerWithoutId", [](auto& b) { b.layers[0].erase("layer"); }, "`layer`"},
        Fault{"NegativeId", [](auto& b) { b.layers[0]["layer"] = -1; }, "`layer`"},
        Fault{"LargeId", [](auto& b) { b.layers[0]["layer"] = 65536; }, "`layer`"},
        Fault{"NoScale", [](auto& b) { b.layers[0].erase("scale"); }, "scale"},
        Fault{"ScaleNotANumber", [](auto& b) { b.layers[0]["scale"] = "1"; }, "scale"},
        Fault{"ScaleTooLarge", [](auto& b) { b.layers[0]["scale"] = 1e300; }, "scale"},
        Fault{"WindowZero", [](auto& b) { b.layers[0]["sliding_window"] = 0; }, "sliding_window"},
        Fault{"WindowFraction", [](auto& b) { b.layers[0]["sliding_window"] = 1.5; },
              "sliding_window"},
        Fault{"SoftcapNegative", [](auto& b) { b.layers[0]["softcap"] = -1; }, "softcap"},
        Fault{"BeginNegative", [](auto& b) { b.layers[0]["begin"] = -1; }, "`begin`"},
        Fault{"BeginTooLarge", [](auto& b) { b.layers[0]["begin"] = 1ull << 63; }, "`begin`"},
        Fault{"NoQueryHeads", [](auto& b) { b.layers[0]["query_heads"] = 0; }, "`query_heads`"},
        Fault{"OtherQueryHeads", [](auto& b) { b.layers[0]["query_heads"] = 2; }, "and says 2"},
        Fault{"NeitherQueriesNorTheirHeads",
              [](auto& b) {
                b.AddLayerWithoutQueries(9, 5, 2, 6, 64, 64).layers.back().erase("query_heads");
              },
              "no tensor layers.9.query"},
        Fault{"HeadsOfNoQueriesDoNotDivide",
              [](auto& b) { b.AddLayerWithoutQueries(9, 5, 2, 3, 64, 64); }, "3 query heads for 2"},
        Fault{"UnknownField", [](auto& b) { b.layers[0]["alibi"] = 1; }, "unknown field"},
        Fault{"MissingTensor", [](auto& b) { b.layers[0]["layer"] = 8; }, "layers.8.key"},
        Fault{"UnlistedTensor", [](auto& b) { b.layers.erase(0); }, "no listed layer"},
        Fault{"OtherDtype", [](auto& b) { b.tensors["layers.7.key"]["dtype"] = "I16"; }, "I16"},
        Fault{"UnknownDtype", [](auto& b) { b.tensors["layers.7.key"]["dtype"] = "F12"; }, "dtype"},
        Fault{"TwoAxes",
              [](auto& b) {
                b.tensors["layers.7.key"]["shape"] = {5, 128};
              },
              "shape"},
        Fault{"NegativeAxis",
              [](auto& b) {
                b.tensors["layers.7.key"]["shape"] = {-5, -2, 64};
              },
              "shape"},
        Fault{"AxisOverflow",
              [](auto& b) {
                b.tensors["layers.7.key"]["shape"] = {1ll << 62, 8, 64};
              },
              "shape"},
        Fault{"OtherBytes",
              [](auto& b) {
                b.tensors["layers.7.key"]["shape"] = {5, 2, 63};
              },
              "shape"},
        Fault{"TokensDiffer",
              [](auto& b) {
                b.tensors["layers.7.key"]["shape"] = {10, 1, 64};
              },
              "10 keys"},
        Fault{"HeadsDiffer",
              [](auto& b) {
                b.tensors["layers.7.key"]["shape"] = {5, 1, 128};
              },
              "differ in heads"},
        Fault{"WidthsDiffer",
              [](auto& b) {
                b.tensors["layers.7.query"]["shape"] = {5, 12, 32};
              },
              "width"},
        Fault{"HeadsDoNotDivide",
              [](auto& b) {
                b.tensors["layers.7.query"]["shape"] = {5, 3, 128};
              },
              "heads"},
        Fault{"OffsetsBackwards",
              [](auto& b) {
                b.tensors["layers.7.key"]["data_offsets"] = {1280, 0};
              },
              "offsets"},
        Fault{"OffsetsOutside",
              [](auto& b) {
                b.tensors["layers.7.key"]["data_offsets"] = {1 << 30, 1 << 30};
              },
              "offsets"},
        Fault{"OffsetsHuge",
              [](auto& b) {
                b.tensors["layers.7.key"]["data_offsets"] = {0, ~0ull};
              },
              "offsets"},
        Fault{"Overlap",
              [](auto& b) {
                b.tensors["layers.7.value"]["data_offsets"] = {1278, 2878};
              },
              "overlap"},
        Fault{"Gap", [](auto& b) { b.data += "x"; }, "no tensor has byte"},
        Fault{"SinkLogitsOfOtherShape",
              [](auto& b) { b.AddTensor("layers.7.sink_logits", "F32", {1}, "abcd"); },
              "sink_logits"},
        Fault{"SinkLogitsNotFinite",
              [](auto& b) {
                b.AddTensor("layers.3.sink_logits", "F16", {1}, std::string("\x00\x7c", 2));
              },
              "not finite"}),
    [](const auto& test) { return test.param.name; });

TEST(RecordingTest, RefusesBadHeaders) {
  const std::string deep = std::string(100'000, '[');
  for (const std::string header :
       {"", "{", "[]", "3", "null", "{\"a\": 3}", "{\"__metadata__\": []}", "\xff\xfe",
        "{\"\xff\": {}}", deep.c_str()}) {
    EXPECT_TRUE(absl::IsDataLoss(OpenBytes(SafeTensorsBytes(header, "")).status()));
  }
  const std::string twice = R"({"__metadata__": {"format": "a", "format": "oscarkv-recording"}})";
  EXPECT_THAT(std::string(OpenBytes(SafeTensorsBytes(twice, "")).status().message()),
              HasSubstr("twice"));
  for (const std::uint64_t length : {std::uint64_t{3}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    std::string file = SafeTensorsBytes("{}", "");
    std::memcpy(file.data(), &length, sizeof(length));
    EXPECT_TRUE(absl::IsDataLoss(OpenBytes(file).status()));
  }
}

TEST(RecordingTest, EveryTruncationIsAnError) {
  const std::string file = TwoLayers().Bytes();
  for (std::size_t size = 0; size < file.size();
       size += size < 1500 || size + 10 > file.size() ? 1 : 97) {
    EXPECT_TRUE(absl::IsDataLoss(OpenBytes(file.substr(0, size)).status())) << size;
  }
}

// Reads all bytes of a recording, so that sanitizers see one that is out of bounds.
unsigned Checksum(const Recording& recording) {
  unsigned sum = 0;
  for (const RecordedLayer& layer : recording.layers()) {
    for (const RecordedTensor* tensor : {&layer.key, &layer.value, &layer.query}) {
      EXPECT_EQ(tensor->bytes.size(), tensor->tokens * tensor->row_bytes());
      for (const std::byte b : tensor->bytes) sum = sum * 31 + static_cast<unsigned>(b);
    }
  }
  return sum;
}

// A header with bytes changed is an error, or describes the same bytes in another way.
TEST(RecordingTest, MutatedHeadersDoNotCrash) {
  const RecordingBuilder builder = TwoLayers();
  const std::string file = builder.Bytes();
  const std::size_t header_end = 8 + builder.Header().size();
  std::mt19937 random(1);
  const auto pick = [&](std::size_t n) { return random() % n; };
  const std::string alphabet = "0123456789-.eE{}[]\",:\\n tfu\x00\xff";
  int opened = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string mutated = file;
    for (std::size_t n = 1 + pick(3); n > 0; --n) {
      const std::size_t at = pick(header_end);
      switch (pick(4)) {
        case 0:
          mutated[at] = static_cast<char>(random());
          break;
        case 1:
          mutated[at] = alphabet[pick(alphabet.size())];
          break;
        case 2:
          mutated.erase(at, 1 + pick(8));
          break;
        default:
          mutated.insert(at, 1, alphabet[pick(alphabet.size())]);
      }
    }
    const auto recording = OpenBytes(mutated);
    if (recording.ok()) {
      ++opened;
      Checksum(*recording);
    }
  }
  EXPECT_GT(opened, 0);  // some change only a name or a number
  EXPECT_LT(opened, 10'000);
}

TEST(RecordingTest, CommittedRecordingsAreWhole) {
  for (const char* name : {"gemma3-270m.safetensors", "smollm2-135m.safetensors"}) {
    const auto recording = Recording::Open(std::string(OSCARKV_TEST_DATA) + "/" + name);
    ASSERT_TRUE(recording.ok()) << recording.status();
    EXPECT_GE(recording->layers().size(), 2u);
    for (const RecordedLayer& layer : recording->layers()) EXPECT_GE(layer.tokens(), 1000);
  }
}

}  // namespace
}  // namespace oscarkv
