#include "client/replay/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <map>
#include <random>

#include "client/error_info.h"
#include "client/replay/exact_attention.h"
#include "client/replay/local_server.h"
#include "client/replay/positions.h"
#include "tests/client/recording_builder.h"

namespace oscarkv {
namespace {

using testing::ElementsAre;

std::string DataPath(const std::string& name) {
  return std::string(OSCARKV_TEST_DATA) + "/" + name + ".safetensors";
}

// ------------------------------------------------------------------------------------- positions

TEST(ReplayPositionsTest, AreThoseOfPyTorch) {
  // torch.linspace(T // 2, T - 1, N).long(), repeats left out
  EXPECT_THAT(ReplayPositions(1000, 5), ElementsAre(500, 624, 749, 874, 999));
  EXPECT_THAT(ReplayPositions(1000, 2), ElementsAre(500, 999));
  EXPECT_THAT(ReplayPositions(1000, 1), ElementsAre(500));
  EXPECT_THAT(ReplayPositions(1, 64), ElementsAre(0));
  EXPECT_THAT(ReplayPositions(2, 64), ElementsAre(1));
  EXPECT_THAT(ReplayPositions(5, 64), ElementsAre(2, 3, 4));
}

TEST(ReplayPositionsTest, AscendFromTheMiddleToTheEnd) {
  for (std::int64_t tokens = 1; tokens < 2000; tokens += 7) {
    for (const int count : {1, 2, 3, 63, 64, 1000}) {
      const auto positions = ReplayPositions(tokens, count);
      ASSERT_FALSE(positions.empty());
      EXPECT_LE(positions.size(), static_cast<std::size_t>(count));
      EXPECT_EQ(positions.front(), std::min(tokens / 2, tokens - 1));
      EXPECT_EQ(positions.back(), count > 1 ? tokens - 1 : positions.front());
      for (std::size_t i = 1; i < positions.size(); ++i) {
        EXPECT_LT(positions[i - 1], positions[i]);
      }
    }
  }
}

// ------------------------------------------------------------------------------- recordings made
// up

// Random keys, values and queries of any type, with all that attention can have.
class MadeUp {
 public:
  MadeUp(int tokens, const std::string& key_type, const std::string& value_type,
         const std::string& query_type) {
    Add("layers.2.key", key_type, {tokens, 2, 64});
    Add("layers.2.value", value_type, {tokens, 2, 80});
    Add("layers.2.query", query_type, {tokens, 6, 64});
    builder_.layers.push_back({{"layer", 2}, {"scale", 0.2}, {"sliding_window", nullptr}});
  }
  nlohmann::json& layer() { return builder_.layers[0]; }
  void AddSinkLogits() { Add("layers.2.sink_logits", "F32", {6}); }

  Recording Open() const {
    const TemporaryFile file(builder_.Bytes());
    return Recording::Open(file.path()).value();
  }

 private:
  void Add(const std::string& name, const std::string& type,
           const std::vector<std::int64_t>& shape) {
    std::normal_distribution<float> normal;
    std::string bytes;
    std::int64_t count = 1;
    for (const std::int64_t length : shape) count *= length;
    for (std::int64_t i = 0; i < count; ++i) {
      const float x = normal(random_);
      const std::uint16_t half = type == "F16" ? ToFP16(x) : ToBF16(x);
      const char* data =
          type == "F32" ? reinterpret_cast<const char*>(&x) : reinterpret_cast<const char*>(&half);
      bytes.append(data, type == "F32" ? 4 : 2);
    }
    builder_.AddTensor(name, type, shape, bytes);
  }

  std::mt19937 random_{1};
  RecordingBuilder builder_;
};

double At(const RecordedTensor& tensor, std::int64_t token, int head, int c) {
  float x = 0;
  const std::size_t index = (token * tensor.heads + head) * tensor.dim + c;
  ToFloats(tensor.dtype, tensor.bytes.data() + index * SizeOf(tensor.dtype), 1, &x);
  return x;
}

// The definition, as plainly as can be.
TEST(ExactAttentionTest, IsTheDefinition) {
  MadeUp made_up(40, "F16", "BF16", "F32");
  made_up.layer()["sliding_window"] = 16;
  made_up.layer()["softcap"] = 2.5;
  made_up.AddSinkLogits();
  const Recording recording = made_up.Open();
  const RecordedLayer& layer = recording.layers()[0];
  const std::vector<std::int64_t> positions = {0, 15, 16, 39};
  const auto exact = ExactAttention(layer, positions);
  ASSERT_EQ(exact.size(), positions.size());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const std::int64_t p = positions[i];
    for (int head = 0; head < 6; ++head) {
      double sum = std::exp(static_cast<double>(layer.sink_logits[head]));
      std::vector<double> output(80);
      for (std::int64_t t = 0; t <= p; ++t) {
        if (p - t >= 16) continue;
        double logit = 0;
        for (int c = 0; c < 64; ++c) {
          logit += At(layer.query, p, head, c) * At(layer.key, t, head / 3, c);
        }
        logit = 2.5 * std::tanh(0.2 * logit / 2.5);
        sum += std::exp(logit);
        for (int c = 0; c < 80; ++c) {
          output[c] += std::exp(logit) * At(layer.value, t, head / 3, c);
        }
      }
      EXPECT_NEAR(exact[i].log_sum_exp[head], std::log(sum), 1e-12);
      for (int c = 0; c < 80; ++c) {
        EXPECT_NEAR(exact[i].output[head * 80 + c], output[c] / sum, 1e-12);
      }
    }
  }
}

// ------------------------------------------------------------------------------------- the service

class ReplayTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = LocalServer::Start().value();
    client_ = Client::Connect(server_->address()).value();
  }
  static void TearDownTestSuite() {
    client_.reset();
    server_.reset();
  }
  void TearDown() override { EXPECT_TRUE(client_->ListSessions()->empty()) << "sessions are left"; }

  static inline std::unique_ptr<LocalServer> server_;
  static inline std::unique_ptr<Client> client_;
};

// Short enough that nothing is sealed: all types, masks and sinks agree with exact attention to
// what rounding to the 16 bits of the session costs.
TEST_F(ReplayTest, IsExactInsideTheWindow) {
  for (const std::string key : {"F16", "BF16", "F32"}) {
    for (const std::string value : {"F16", "BF16", "F32"}) {
      SCOPED_TRACE(key + " " + value);
      MadeUp made_up(100, key, value, key == "F32" ? "F16" : "F32");
      made_up.layer()["sliding_window"] = 30;
      made_up.layer()["softcap"] = 3.0;
      made_up.AddSinkLogits();
      const Recording recording = made_up.Open();
      const auto report = Replay(*client_, recording, {});
      ASSERT_TRUE(report.ok()) << report.status();
      const bool fp16 = key == "F16" && value == "F16";
      EXPECT_EQ(report->storage_dtype, fp16 ? v1::DATA_TYPE_FP16 : v1::DATA_TYPE_BF16);
      const LayerReport& layer = report->layers[0];
      EXPECT_EQ(layer.tokens, 100);
      EXPECT_EQ(layer.sealed_tokens, 0);
      EXPECT_EQ(layer.bits_per_value, 0);
      EXPECT_EQ(report->bits_per_value, 0);
      const bool as_sent = fp16 || (key == "BF16" && value == "BF16");
      EXPECT_LT(layer.output_relative_error, as_sent ? 1e-5 : 1e-2);
      EXPECT_LT(layer.lse_max_abs_error, as_sent ? 1e-4 : 0.1);
    }
  }
}

TEST_F(ReplayTest, RecordingsOfRealModelsKeepTheirAttention) {
  struct Range {
    double low, high;
  };
  // Of sealed pages: header and padding are a few hundredths above the codec's own bits.
  const std::map<v1::Profile, Range> bits = {{v1::PROFILE_DENSE, {2.1, 2.6}},
                                             {v1::PROFILE_PRECISE, {3.1, 3.6}},
                                             {v1::PROFILE_PAPER, {2.95, 3.15}},
                                             {v1::PROFILE_KIVI, {2.95, 3.1}}};
  for (const char* name : {"gemma3-270m", "smollm2-135m"}) {
    const auto recording = Recording::Open(DataPath(name));
    ASSERT_TRUE(recording.ok()) << recording.status();
    std::map<v1::Profile, double> errors;
    for (const auto& [profile, range] : bits) {
      SCOPED_TRACE(std::string(name) + " " + v1::Profile_Name(profile));
      ReplayOptions options;
      options.profile = profile;
      options.positions = 16;
      const auto report = Replay(*client_, *recording, options);
      ASSERT_TRUE(report.ok()) << report.status();
      errors[profile] = report->output_relative_error;
      EXPECT_EQ(report->model, recording->model());
      EXPECT_EQ(report->profile, profile);
      EXPECT_EQ(report->layers.size(), recording->layers().size());
      EXPECT_GT(report->bits_per_value, range.low);
      EXPECT_LT(report->bits_per_value, range.high);
      EXPECT_GT(report->memory_ratio, 2);
      EXPECT_GT(report->attend_p50_seconds, 0);
      EXPECT_GT(report->append_bytes_per_second, 0);
      std::int64_t resident = 0;
      double squares = 0;
      for (std::size_t i = 0; i < report->layers.size(); ++i) {
        const LayerReport& layer = report->layers[i];
        // A sliding window of 512 has freed the first pages by then.
        const bool slides = recording->layers()[i].sliding_window > 0;
        EXPECT_EQ(layer.tokens, 1000);
        EXPECT_GE(layer.sealed_tokens, (slides ? 4 : 6) * 128);
        EXPECT_EQ(layer.sealed_tokens % 128, 0);
        EXPECT_NEAR(layer.bits_per_value, 8.0 * layer.page_bytes / layer.sealed_values, 1e-9);
        EXPECT_LT(layer.resident_bytes, layer.logical_bytes);
        EXPECT_LT(layer.output_relative_error, 2);
        EXPECT_GT(layer.output_relative_error, 0);
        EXPECT_GT(layer.lse_max_abs_error, 0);
        resident += layer.resident_bytes;
        squares += std::pow(layer.output_relative_error, 2);
      }
      EXPECT_EQ(report->resident_bytes, resident);
      EXPECT_NEAR(report->output_relative_error, std::sqrt(squares / report->layers.size()), 1e-12);
    }
    EXPECT_LT(errors[v1::PROFILE_DENSE], errors[v1::PROFILE_PAPER]);
    EXPECT_LT(errors[v1::PROFILE_DENSE], errors[v1::PROFILE_KIVI]);
    EXPECT_LT(errors[v1::PROFILE_PRECISE], errors[v1::PROFILE_DENSE]);
    EXPECT_LT(errors[v1::PROFILE_DENSE], 0.25);
  }
}

TEST_F(ReplayTest, CountsItsSteps) {
  const Recording recording = MadeUp(50, "F16", "F16", "F16").Open();
  std::vector<int> done;
  ReplayOptions options;
  options.positions = 4;
  options.on_progress = [&](int count, int total) {
    done.push_back(count);
    EXPECT_EQ(total, 4);
  };
  ASSERT_TRUE(Replay(*client_, recording, options).ok());
  EXPECT_THAT(done, ElementsAre(0, 1, 2, 3, 4));
}

// TearDown sees that nothing is left.
TEST_F(ReplayTest, DeletesItsSessionWhenCancelled) {
  const Recording recording = MadeUp(50, "F16", "F16", "F16").Open();
  int sessions = 0;
  ReplayOptions options;
  options.cancelled = [&] {
    sessions = static_cast<int>(client_->ListSessions()->size());
    return true;
  };
  EXPECT_TRUE(absl::IsCancelled(Replay(*client_, recording, options).status()));
  EXPECT_EQ(sessions, 1);
}

TEST_F(ReplayTest, DeletesItsSessionAfterAnError) {
  const auto recording = [] {
    RecordingBuilder builder;
    builder.AddLayer(0, 50, 1, 1, 64, 64);
    for (std::size_t i = 6300; i < 6400; ++i) builder.data[i] = '\xff';  // NaN among the keys
    const TemporaryFile file(builder.Bytes());
    return Recording::Open(file.path()).value();
  }();
  const auto report = Replay(*client_, recording, {});
  EXPECT_TRUE(absl::IsInvalidArgument(report.status())) << report.status();
  EXPECT_EQ(ErrorInfoOf(report.status())->reason(), "INVALID_FIELD");
}

TEST_F(ReplayTest, ReportsWhatTheServerRefuses) {
  RecordingBuilder builder;
  builder.AddLayer(0, 4, 1, 1, 72, 72);
  const TemporaryFile file(builder.Bytes());
  const auto report = Replay(*client_, Recording::Open(file.path()).value(), {});
  EXPECT_FALSE(report.ok());
  EXPECT_TRUE(ErrorInfoOf(report.status()).has_value()) << report.status();
}

}  // namespace
}  // namespace oscarkv
