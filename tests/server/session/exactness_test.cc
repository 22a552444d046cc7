// What may not depend on how a session came to be, over the CPU backend, bit for bit: pages do not
// depend on how tokens were cut into requests, and a worker that fails in the middle of a step,
// truncates and computes the step again gets the answers of one that never failed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend_factory.h"
#include "server/session/session_store.h"
#include "tests/server/support/faulty_backend.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

constexpr int kLayers = 5;  // of SessionOfAllKinds

class ExactnessTest : public ::testing::Test {
 protected:
  ExactnessTest() {
    BackendResult made = MakeBackend({.kind = BackendKind::kCpu, .threads = 1});
    EXPECT_TRUE(made.status.ok()) << made.status.message;
    cpu_ = std::move(made.backend);
    backend_ = std::make_unique<FaultyBackend>(cpu_.get());
    store_ = std::make_unique<SessionStore>(
        backend_.get(),
        StoreOptions{.memory_budget_bytes = 1 << 28, .settle_after = absl::InfiniteDuration()});
  }

  void Create(SessionConfig config) { ASSERT_TRUE(store_->Create(std::move(config)).ok()); }
  SessionInfo Info(const std::string& id) { return *store_->Get(id); }
  Source SourceOf(const SessionInfo& info, int layer) {
    return {.spec = &info.config->layers[layer], .seed = 20 + static_cast<std::uint64_t>(layer)};
  }

  // Some workers attend; others send their sampled queries along.
  void AppendOrAttend(bool append, const SessionInfo& info, int layer, int begin, int count) {
    const std::string& id = info.config->id;
    const Source source = SourceOf(info, layer);
    Request request = append ? AppendRequest(id, info.generation, source, begin, count, true)
                             : AttendRequest(id, info.generation, source, begin, count, count);
    const absl::Status status =
        append ? Append(store_.get(), layer, &request) : Attend(store_.get(), layer, &request);
    ASSERT_TRUE(status.ok()) << status;
  }

  std::unique_ptr<Backend> cpu_;
  std::unique_ptr<FaultyBackend> backend_;
  std::unique_ptr<SessionStore> store_;
};

TEST_F(ExactnessTest, PagesDoNotDependOnHowTokensWereCut) {
  constexpr int kLength = 450;
  std::mt19937 random(1);
  std::vector<Tokens> expected;
  std::vector<std::string> expected_pages;
  for (const int most : {kLength, 1, 40, 133, 222}) {
    const std::string id = "chunks of up to " + std::to_string(most);
    Create(SessionOfAllKinds(id));
    const SessionInfo info = Info(id);
    const auto pages_before = static_cast<std::ptrdiff_t>(backend_->pages().size());
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int begin = 0; begin < kLength;) {
        const int drawn = std::uniform_int_distribution<int>(1, most)(random);
        const int count = most == kLength ? kLength : std::min(kLength - begin, drawn);
        AppendOrAttend(most % 2 == 0, info, layer, begin, count);
        begin += count;
      }
    }
    store_->Settle();
    std::vector<std::string> pages(backend_->pages().begin() + pages_before,
                                   backend_->pages().end());
    std::sort(pages.begin(), pages.end());  // which were sealed first does depend
    std::vector<Tokens> tokens;
    for (int layer = 0; layer < kLayers; ++layer) {
      const CodecSpec& codec = info.config->layers[layer].codec;
      tokens.push_back(*ReadAll(*store_, id, layer));
      EXPECT_EQ(Info(id).layers[layer].sealed_tokens,
                layer == 4 ? 0 : (kLength - codec.sinks - codec.window) / 128 * 128);
      EXPECT_EQ(Info(id).layers[layer].pages_sealed_without_queries, 0);
    }
    if (expected.empty()) expected = tokens;
    if (expected_pages.empty()) expected_pages = pages;
    EXPECT_TRUE(tokens == expected) << id;
    EXPECT_TRUE(pages == expected_pages) << id;
    ASSERT_TRUE(store_->Delete(id, 0).ok());
  }
}

// One worker's run of decode steps over all layers.
class Worker {
 public:
  Worker(SessionStore* store, std::string id) : store_(store), id_(std::move(id)) {}

  // The answers of one layer's part of the step of `count` tokens at `begin`.
  std::vector<float> Layer(int layer, std::int64_t begin, int count) {
    const SessionInfo info = *store_->Get(id_);
    const Source source{.spec = &info.config->layers[layer],
                        .seed = 20 + static_cast<std::uint64_t>(layer)};
    Request request = AttendRequest(id_, info.generation, source, begin, count, count);
    EXPECT_TRUE(Attend(store_, layer, &request).ok()) << request.item.status;
    std::vector<float> answers = request.outputs;
    answers.insert(answers.end(), request.log_sum_exps.begin(), request.log_sum_exps.end());
    return answers;
  }
  std::vector<float> Step(std::int64_t begin, int count) {
    std::vector<float> answers;
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::vector<float> part = Layer(layer, begin, count);
      answers.insert(answers.end(), part.begin(), part.end());
    }
    return answers;
  }
  void TruncateTo(std::int64_t length) {
    const SessionInfo info = *store_->Get(id_);
    EXPECT_TRUE(store_->Truncate(id_, "", info.generation, length).ok());
  }

 private:
  SessionStore* store_;
  std::string id_;
};

TEST_F(ExactnessTest, ARecomputedStepAnswersAsIfNothingHadHappened) {
  const int rounds = std::getenv("OSCARKV_TEST_FULL") ? 20 : 1;
  for (int round = 0; round < rounds; ++round) {
    std::mt19937 random(static_cast<std::uint32_t>(round));
    const auto draw = [&](int from, int to) {
      return std::uniform_int_distribution<int>(from, to)(random);
    };
    Create(SessionOfAllKinds("undisturbed"));
    Create(SessionOfAllKinds("disturbed"));
    Worker undisturbed(store_.get(), "undisturbed");
    Worker disturbed(store_.get(), "disturbed");
    std::int64_t begin = 0;
    while (begin < 450) {
      const int count = begin == 0 ? draw(1, 150) : draw(1, 3);
      const std::vector<float> expected = undisturbed.Step(begin, count);
      // The worker fails after some layers, or all, and begins the step again: with a truncate,
      // or with a repeat of what it had sent.
      while (draw(0, 2) == 0) {
        const int reached = draw(0, kLayers);
        for (int layer = 0; layer < reached; ++layer) disturbed.Layer(layer, begin, count);
        if (draw(0, 3) > 0) disturbed.TruncateTo(begin);
      }
      ASSERT_EQ(disturbed.Step(begin, count), expected) << "at " << begin;
      begin += count;
    }
    ASSERT_EQ(Info("disturbed").resident_bytes, Info("undisturbed").resident_bytes);
    for (int layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(*ReadAll(*store_, "disturbed", layer), *ReadAll(*store_, "undisturbed", layer));
    }
    ASSERT_TRUE(store_->Delete("undisturbed", 0).ok());
    ASSERT_TRUE(store_->Delete("disturbed", 0).ok());
  }
}

// |a - b| / |b|.
double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += std::pow(a[i] - b[i], 2);
    norm += std::pow(b[i], 2);
  }
  return std::sqrt(error / norm);
}

// A repeat that comes after the settler finds tokens in pages that its first try saw in 16 bits.
// It is a repeat all the same, changes nothing, and differs by what pages lose, no more.
TEST_F(ExactnessTest, ARepeatAfterSettlingAnswersWithinQuantizationError) {
  Create(SessionOfAllKinds("s"));
  const SessionInfo created = Info("s");
  std::vector<Request> steps;
  for (int layer = 0; layer < kLayers; ++layer) {
    steps.push_back(AttendRequest("s", created.generation, SourceOf(created, layer), 0, 300, 8));
    ASSERT_TRUE(Attend(store_.get(), layer, &steps.back()).ok());
  }
  store_->Settle();
  const SessionInfo settled = Info("s");
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(settled.layers[layer].sealed_tokens, layer == 4 ? 0 : 256);
    const std::vector<float> outputs = steps[layer].outputs;
    ASSERT_TRUE(Attend(store_.get(), layer, &steps[layer]).ok());
    EXPECT_TRUE(steps[layer].item.repeated);
    EXPECT_EQ(steps[layer].item.length_after, 300);
    const double distance = Distance(steps[layer].outputs, outputs);
    EXPECT_LT(distance, 0.6) << layer;
    // Nothing was sealed of the last layer: its answer is the same.
    EXPECT_EQ(distance > 0, layer != 4) << layer;
  }
  EXPECT_EQ(Info("s").resident_bytes, settled.resident_bytes);
}

TEST_F(ExactnessTest, AttendsOverEveryKindOfLayerFromNothingOn) {
  Create(SessionOfAllKinds("s"));
  const SessionInfo info = Info("s");
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const int count : {0, 1, 2, 3, 1}) {
      const std::int64_t begin = Info("s").layers[layer].length;
      Request request = AttendRequest("s", info.generation, SourceOf(info, layer), begin, count, 2);
      ASSERT_TRUE(Attend(store_.get(), layer, &request).ok()) << request.item.status;
      EXPECT_EQ(std::isinf(request.log_sum_exps[0]), begin + count < 2) << layer;
      EXPECT_EQ(std::isinf(request.log_sum_exps[4]), begin + count < 1) << layer;
    }
  }
}

}  // namespace
}  // namespace oscarkv
