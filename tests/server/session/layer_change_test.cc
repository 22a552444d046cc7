#include "server/session/layer_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/api/page_layout.h"
#include "kernels/api/query_directions.h"
#include "tests/kernels/support/failing_new.h"
#include "tests/server/support/fake_backend.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {

namespace {

using ::testing::ElementsAreArray;

class LayerChangeTest : public ::testing::Test {
 protected:
  // Does all steps of a change that appends `count` tokens, and seals `pages` before.
  void Append(std::int32_t count, std::int64_t pages = 0, bool commit = true,
              bool with_queries = true) {
    const std::int64_t begin = layer_.length();
    const std::vector<std::uint16_t> keys = source_.Keys(begin, count);
    const std::vector<std::uint16_t> values = source_.Values(begin, count);
    const std::vector<std::uint16_t> queries = source_.Queries(begin, count);
    std::optional<LayerChange> made;
    LayerChange& change = made.emplace(&layer_, &pool_, &budget_);
    ASSERT_TRUE(change
                    .Prepare(pages,
                             {.count = count,
                              .dtype = spec_.storage,
                              .keys = keys.data(),
                              .values = values.data()},
                             {.dtype = spec_.storage,
                              .data = queries.data(),
                              .count = with_queries ? count : 0,
                              .begin = begin})
                    .ok());
    std::vector<SealItem> seals(change.seal_items().begin(), change.seal_items().end());
    ASSERT_TRUE(backend_.Seal(seals).ok());
    NeedsNoMemory([&] { change.Apply(); });
    ASSERT_TRUE(backend_.Copy(change.copy_items()).ok());
    ASSERT_TRUE(backend_.Append(change.append_items()).ok());
    if (commit) NeedsNoMemory([&] { change.Commit(); });
    NeedsNoMemory([&] { made.reset(); });
  }

  // Steps after Prepare cannot fail: an allocation in one of them ends the test.
  template <typename Step>
  static void NeedsNoMemory(const Step& step) {
    const testing::FailingNew failing(0);
    step();
    EXPECT_FALSE(failing.struck());
  }

  void AppendTokensAlone(std::int32_t count) { Append(count, 0, true, false); }

  void ExpectTokens(std::int64_t length) { ExpectTokensOf(layer_, length); }
  void ExpectTokensOf(const LayerState& layer, std::int64_t length) {
    ASSERT_EQ(layer.length(), length);
    std::vector<std::uint16_t> keys(static_cast<std::size_t>(length) * 128);
    std::vector<std::uint16_t> values(keys.size());
    const ReadItem item{.layer = layer.View(),
                        .begin = 0,
                        .tokens = length,
                        .keys = keys.data(),
                        .values = values.data()};
    ASSERT_TRUE(backend_.ReadTokens(std::span(&item, 1)).ok());
    EXPECT_EQ(keys, source_.Keys(0, length));
    EXPECT_EQ(values, source_.Values(0, length));
  }

  // Bytes of the sinks block and of the window's.
  std::vector<std::vector<std::byte>> BlocksOf(const LayerState& layer) {
    const LayerView view = layer.View();
    std::vector<std::vector<std::byte>> blocks;
    const auto add = [&](BlockId block, int tokens) {
      auto& bytes = blocks.emplace_back(TokenBlockLayout(spec_, tokens).bytes);
      EXPECT_TRUE(backend_.ReadBlock(block, bytes).ok());
    };
    add(view.sinks, spec_.codec.sinks);
    for (const BlockId block : view.window) add(block, kWindowBlockTokens);
    return blocks;
  }

  const LayerSpec spec_ = SmallLayer(0);
  const Source source_{.spec = &spec_, .seed = 1};
  FakeBackend backend_;
  MemoryBudget budget_{1 << 30};
  BlockPool pool_{&backend_, &budget_};
  LayerState layer_{&spec_, 0, &budget_};
};

TEST_F(LayerChangeTest, FillsSinksThenWindow) {
  Append(3);
  EXPECT_EQ(pool_.blocks(), 1);
  ExpectTokens(3);
  Append(1);
  EXPECT_EQ(pool_.blocks(), 1);
  Append(32);
  EXPECT_EQ(pool_.blocks(), 2);
  Append(1);
  EXPECT_EQ(pool_.blocks(), 3);
  ExpectTokens(37);
}

TEST_F(LayerChangeTest, SealsPagesThatAWholeWindowFollows) {
  Append(4 + 128 + 31);
  EXPECT_EQ(layer_.SealablePages(), 0);
  Append(1);
  EXPECT_EQ(layer_.SealablePages(), 1);
  Append(127);
  EXPECT_EQ(layer_.SealablePages(), 1);
  Append(1);
  EXPECT_EQ(layer_.SealablePages(), 2);
  Append(1, 2);
  EXPECT_EQ(layer_.Stats().sealed_tokens, 256);
  EXPECT_EQ(layer_.Stats().pages_sealed_without_queries, 0);
  ExpectTokens(4 + 256 + 33);
}

// A page is chosen by the queries of its own positions and of the window after it, no others.
TEST_F(LayerChangeTest, SealsByTheQueriesOfPageAndWindow) {
  Append(420);
  LayerChange change(&layer_, &pool_, &budget_);
  ASSERT_TRUE(change.Prepare(3, TokenRows(), QueryRows()).ok());
  ASSERT_EQ(change.seal_items().size(), 3U);
  for (std::int64_t i = 0; i < 3; ++i) {
    const SealItem& item = change.seal_items()[i];
    const std::int64_t begin = 4 + i * kPageTokens;
    const std::int64_t first = (begin + 15) / 16 * 16;
    EXPECT_EQ(item.context, 32);
    EXPECT_EQ(item.tokens[0], layer_.View().window[i * 4]);
    EXPECT_EQ(item.tokens.size(), 5U);
    ASSERT_EQ(item.num_queries, 10);
    const std::vector<std::uint16_t> expected = source_.Queries(first, 10, 16);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), item.queries));
    // The first page's queries give the directions of all.
    ASSERT_NE(item.directions, nullptr);
    EXPECT_EQ(item.directions, change.seal_items()[0].directions);
  }
  const std::vector<std::uint16_t> queries = source_.Queries(16, 10, 16);
  const std::vector<float> directions = PrincipalDirections(spec_, queries.data(), 10);
  EXPECT_TRUE(std::equal(directions.begin(), directions.end(), change.seal_items()[0].directions));
}

// Pages before the first queries have no residual; those from there on have.
TEST_F(LayerChangeTest, FindsDirectionsWithTheFirstQueries) {
  AppendTokensAlone(200);
  Append(300);
  LayerChange change(&layer_, &pool_, &budget_);
  ASSERT_TRUE(change.Prepare(3, TokenRows(), QueryRows()).ok());
  EXPECT_EQ(change.seal_items()[0].num_queries, 0);
  EXPECT_EQ(change.seal_items()[0].queries, nullptr);
  EXPECT_EQ(change.seal_items()[0].directions, nullptr);
  EXPECT_GT(change.seal_items()[1].num_queries, 0);
  EXPECT_NE(change.seal_items()[1].directions, nullptr);
  std::vector<SealItem> seals(change.seal_items().begin(), change.seal_items().end());
  ASSERT_TRUE(backend_.Seal(seals).ok());
  change.Apply();
  change.Commit();
  EXPECT_NE(layer_.View().directions, nullptr);
  EXPECT_EQ(layer_.Stats().pages_sealed_without_queries, 1);
}

TEST_F(LayerChangeTest, UndoneChangeLeavesNoTrace) {
  for (const std::int32_t before : {0, 2, 4, 36, 37, 164, 180, 300}) {
    layer_.Truncate(0);
    if (before > 0) Append(before);
    const LayerView view = layer_.View();
    const std::vector<BlockId> window(view.window.begin(), view.window.end());
    const std::int64_t window_begin = view.window_begin;
    const LayerStats stats = layer_.Stats();
    const std::int64_t used = budget_.used();
    Append(70, layer_.SealablePages(), /*commit=*/false);
    ExpectTokens(before);
    EXPECT_EQ(budget_.used(), used);
    EXPECT_EQ(pool_.blocks(), backend_.blocks());
    EXPECT_THAT(layer_.View().window, ElementsAreArray(window));
    EXPECT_EQ(layer_.View().window_begin, window_begin);
    EXPECT_EQ(layer_.View().directions, nullptr);
    EXPECT_TRUE(layer_.View().page_runs.empty());
    EXPECT_EQ(layer_.Stats().window_bytes, stats.window_bytes);
  }
}

// A block that someone else holds too is never written, whether or not the change is undone.
TEST_F(LayerChangeTest, CopiesASharedPartlyFilledBlock) {
  for (const bool commit : {false, true}) {
    for (const std::int32_t before : {1, 4, 5, 36, 40}) {
      layer_.Truncate(0);
      Append(before);
      LayerState fork(&spec_, 0, &budget_);
      ASSERT_TRUE(layer_.Fork(before, &fork).ok());
      const std::vector<std::vector<std::byte>> bytes = BlocksOf(fork);
      Append(40, 0, commit);
      ExpectTokens(before + (commit ? 40 : 0));
      ExpectTokensOf(fork, before);
      EXPECT_EQ(BlocksOf(fork), bytes);
    }
  }
}

// Whatever becomes of a fork, the layer is as it was, and the other way round.
TEST_F(LayerChangeTest, AForkOfEveryLengthIsALayerOfItsOwn) {
  Append(4 + 128 + 40);
  Append(140, 1);
  const std::int64_t whole = layer_.length();
  const std::int64_t used = budget_.used();
  for (std::int64_t length = 0; length <= whole; ++length) {
    LayerState fork(&spec_, 0, &budget_);
    ASSERT_TRUE(layer_.Fork(length, &fork).ok());
    ExpectTokensOf(fork, length);
    LayerState second(&spec_, 0, &budget_);
    ASSERT_TRUE(fork.Fork(length / 2, &second).ok());
    fork.PrepareTruncate(length / 3);
    fork.Truncate(length / 3);
    ExpectTokensOf(fork, length / 3);
    ExpectTokensOf(second, length / 2);
  }
  ExpectTokens(whole);
  EXPECT_EQ(budget_.used(), used);
  LayerState fork(&spec_, 0, &budget_);
  ASSERT_TRUE(layer_.Fork(whole, &fork).ok());
  layer_.Truncate(0);
  ExpectTokensOf(fork, whole);
}

// The layer gives the block away, and with it what keeps it in place until it has been read.
TEST_F(LayerChangeTest, ACopyInThePlaceOfABlockDropsWhatIsPrepared) {
  for (const bool with_copy : {false, true}) {
    layer_.Truncate(0);
    Append(4 + 128 + 40);
    ASSERT_EQ(layer_.SealablePages(), 1);
    auto sealing = std::make_unique<Sealing>(layer_.Source(), &pool_, &budget_);
    ASSERT_TRUE(sealing->Add(1, layer_.Source(), Purpose::kAhead).ok());
    ASSERT_TRUE(sealing->CopyQueries(layer_.Source(), Purpose::kAhead).ok());
    layer_.SetPreparation(std::make_shared<Preparation>(std::move(sealing)));
    LayerState fork(&spec_, 0, &budget_);
    if (with_copy) {
      ASSERT_TRUE(layer_.Fork(layer_.length(), &fork).ok());
    }
    Append(1);
    EXPECT_EQ(layer_.preparation() == nullptr, with_copy);
    ExpectTokens(4 + 128 + 41);
  }
}

TEST_F(LayerChangeTest, PagesAreDueSomeTokensAfterTheyCouldBeSealed) {
  Append(4 + 128 + 32);
  EXPECT_EQ(layer_.SealablePages(), 1);
  EXPECT_EQ(layer_.DuePages(), 0);
  Append(kSealSlack - 1);
  EXPECT_EQ(layer_.DuePages(), 0);
  Append(1);
  EXPECT_EQ(layer_.DuePages(), 1);
  EXPECT_EQ(layer_.Stats().due_pages, 1);
  Append(128 - kSealSlack);
  EXPECT_EQ(layer_.SealablePages(), 2);
  EXPECT_EQ(layer_.DuePages(), 1);
}

TEST_F(LayerChangeTest, TruncatesExactlyAtEveryLength) {
  for (std::int64_t length = 0; length <= 310; length += 3) {
    layer_.Truncate(0);
    EXPECT_EQ(budget_.used(), 0);
    Append(300);
    Append(10, layer_.SealablePages());
    layer_.Truncate(length);
    ExpectTokens(length);
    Append(400, layer_.SealablePages());
    Append(1, layer_.SealablePages());
    ExpectTokens(length + 401);
    EXPECT_GE(layer_.Stats().sealed_tokens, 256);
  }
}

// Directions belong to the page that found them: without it the next one with queries finds its
// own, as if the first had never been.
TEST_F(LayerChangeTest, DirectionsGoWithThePageThatFoundThem) {
  const auto directions = [&] {
    const float* first = layer_.View().directions;
    return first ? std::vector<float>(first, first + 2 * 64) : std::vector<float>();
  };
  AppendTokensAlone(200);  // the first page is sealed without queries
  Append(220);
  Append(1, layer_.SealablePages());
  const std::vector<float> found = directions();
  ASSERT_EQ(found.size(), 2U * 64);
  for (const std::int64_t length : {4 + 129, 4 + 128}) {
    layer_.Truncate(length);
    EXPECT_EQ(directions(), length > 4 + 128 ? found : std::vector<float>()) << length;
    EXPECT_EQ(layer_.Stats().window_bytes, 4 * 2 * 2 * 128 + (length > 4 + 128 ? 2 * 64 * 4 : 0));
  }
  Append(300);
  Append(1, layer_.SealablePages());
  EXPECT_EQ(layer_.Stats().pages_sealed_without_queries, 1);
  // By positions 144, 160, ... of the second page and the window after it.
  const std::vector<std::uint16_t> queries = source_.Queries(144, 10, 16);
  EXPECT_EQ(directions(), PrincipalDirections(spec_, queries.data(), 10));
}

TEST_F(LayerChangeTest, SampleIsCountedAndEndsWithTheLayersNeed) {
  Append(100);  // positions 16, 32, ... 96: those from the first page on
  const std::int64_t row = 2 * 4 * 64;
  const std::int64_t blocks = layer_.View().window.size() * 32 * 2 * 2 * 128 + 4 * 2 * 2 * 128;
  EXPECT_EQ(layer_.Stats().window_bytes, blocks + 6 * row);
  layer_.Truncate(64);  // 16, 32, 48 stay
  EXPECT_EQ(layer_.Stats().window_bytes, (2 * 32 + 4) * 2 * 2 * 128 + 3 * row);
}

}  // namespace
}  // namespace oscarkv
