// Attend over parts of a context: shards that are merged, pages that are cut, tokens that are
// masked, chunks of queries.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/api/page_layout.h"
#include "tests/kernels/support/backend_contract.h"
#include "tests/kernels/support/trials.h"

namespace oscarkv::testing {
namespace {

// Merges answers over different parts of a context, as a worker does.
oracle::Attention MergeByLse(const Answer& a, const Answer& b) {
  oracle::Attention merged;
  const std::size_t width = a.outputs.size() / a.log_sum_exps.size();
  for (std::size_t row = 0; row < a.log_sum_exps.size(); ++row) {
    const double x = a.log_sum_exps[row];
    const double y = b.log_sum_exps[row];
    const double max = std::max(x, y);
    const double lse =
        max == -INFINITY ? max : max + std::log(std::exp(x - max) + std::exp(y - max));
    merged.log_sum_exps.push_back(lse);
    for (std::size_t c = 0; c < width; ++c) {
      const std::size_t i = row * width + c;
      merged.outputs.push_back(lse == -INFINITY ? 0
                                                : std::exp(x - lse) * a.outputs[i] +
                                                      std::exp(y - lse) * b.outputs[i]);
    }
  }
  return merged;
}

TEST_P(BackendContract, ShardsMergeToTheWhole) {
  const auto backend = Make(2);
  for (int seed = 100; seed < 100 + Trials(10); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    LayerSpec spec = RandomSpec(random);
    spec.sliding_window = random.Chance(0.3) ? 400 : 0;
    MiniSession session(*backend, spec);
    Fill(session, 1000, 60, true, random);
    const LayerView whole = session.View();
    const std::span<const PageRef> pages = session.pages();
    const std::size_t cut = random.Int(0, static_cast<std::int64_t>(pages.size()));
    const std::span<const PageRef> before = pages.first(cut);
    const std::span<const PageRef> after = pages.subspan(cut);

    LayerView first = whole;  // sinks and the first pages
    first.page_runs = {&before, 1};
    first.window = {};
    first.length = first.window_begin =
        cut == 0 ? spec.codec.sinks : pages[cut - 1].begin + pages[cut - 1].tokens;
    LayerSpec without_sinks = spec;
    without_sinks.codec.sinks = 0;
    LayerView second = whole;  // the other pages and the window
    second.spec = &without_sinks;
    second.sinks = kNoBlock;
    second.page_runs = {&after, 1};

    const int count = static_cast<int>(random.Int(1, 3));
    const std::vector<float> queries = RandomQueries(spec, count, random);
    const std::int64_t begin = session.length() - count;
    const Answer ought = Attend(*backend, whole, queries, {begin});
    const oracle::Attention merged =
        MergeByLse(Attend(*backend, first, queries, {begin, /*causal=*/false, false}),
                   Attend(*backend, second, queries, {begin}));
    EXPECT_LE(RmsDifference(merged.outputs, ought.outputs), 1e-5 * Rms(ought.outputs));
    EXPECT_LE(RmsDifference(merged.log_sum_exps, ought.log_sum_exps), 1e-5);
  }
}

// Gives the tokens [first, kPageTokens) of a page absurd norms, parameters and residuals.
void SpoilTokens(const LayerSpec& spec, int first, std::vector<std::byte>& page) {
  const PageLayout layout(spec);
  const std::uint16_t huge = ToBF16(1e20F);
  const AffineFP16 params{ToFP16(60000), ToFP16(-60000)};
  for (int t = first; t < kPageTokens; ++t) {
    for (int row = 0; row < layout.norm_rows; ++row) {
      std::memcpy(&page[layout.norms + 2 * (row * kPageTokens + t)], &huge, 2);
    }
    for (int head = 0; head < spec.kv_heads; ++head) {
      const std::int64_t region = layout.heads + head * layout.head_bytes;
      for (int group = 0; group < layout.value_groups; ++group) {
        std::memcpy(&page[region + layout.value_params + 4 * (group * kPageTokens + t)], &params,
                    4);
      }
      if (spec.has_residual()) page[region + layout.residuals + t] = std::byte{127};
    }
  }
}

// Tokens that no query sees change nothing at all: not even the int8 step of those that are seen.
TEST_P(BackendContract, UnseenTokensOfAPageDoNotMatter) {
  const auto backend = Make(2);
  for (int seed = 200; seed < 200 + Trials(12); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    LayerSpec spec = RandomSpec(random);
    spec.sliding_window = 0;
    MiniSession session(*backend, spec);
    Fill(session, 128 + spec.codec.window + spec.codec.sinks + 20, 10, true, random);
    const int valid = static_cast<int>(random.Int(1, 127));
    PageRef page = session.pages()[0];
    LayerView cut = session.View();  // by the page table
    page.tokens = valid;
    const std::span<const PageRef> only(&page, 1);
    cut.page_runs = {&only, 1};
    cut.window = {};
    cut.length = cut.window_begin = page.begin + valid;
    LayerView masked = session.View();  // by the queries' position
    const std::vector<float> queries = RandomQueries(spec, 1, random);
    const Look look{page.begin + valid - 1};
    const Answer ought = Attend(*backend, cut, queries, look);
    EXPECT_EQ(Attend(*backend, masked, queries, look).outputs, ought.outputs);

    std::vector<std::byte> bytes = session.PageBytes(0);
    SpoilTokens(spec, valid, bytes);
    ASSERT_TRUE(backend->WriteBlock(page.block, bytes).ok());
    EXPECT_EQ(Attend(*backend, cut, queries, look).outputs, ought.outputs);
    EXPECT_EQ(Attend(*backend, masked, queries, look).outputs, ought.outputs);
    EXPECT_EQ(Attend(*backend, masked, queries, look).log_sum_exps, ought.log_sum_exps);
  }
}

struct Steps {
  std::vector<float> outputs;
  std::vector<std::size_t> pages;  // sealed when each query was answered
};

// Feeds a session step by step, tokens first, then their queries.
Steps RunSteps(Backend& backend, MiniSession& session, const Rows& rows,
               const std::vector<float>& queries, const std::vector<int>& steps) {
  const LayerSpec& spec = session.spec();
  const std::size_t key_row = static_cast<std::size_t>(spec.kv_heads) * spec.key_dim;
  const std::size_t value_row = static_cast<std::size_t>(spec.kv_heads) * spec.value_dim;
  const std::size_t query_row = static_cast<std::size_t>(spec.query_heads) * spec.key_dim;
  Steps out;
  for (const int count : steps) {
    const std::int64_t at = session.length();
    session.Append(std::span(rows.keys).subspan(at * key_row, count * key_row),
                   std::span(rows.values).subspan(at * value_row, count * value_row));
    const auto step_queries = std::span(queries).subspan(at * query_row, count * query_row);
    session.Sample(at, step_queries);
    const Answer answer = Attend(backend, session.View(), step_queries, {at});
    out.outputs.insert(out.outputs.end(), answer.outputs.begin(), answer.outputs.end());
    out.pages.insert(out.pages.end(), count, session.pages().size());
  }
  return out;
}

TEST_P(BackendContract, ChunksAreNeverLessExactThanSingleTokens) {
  const auto backend = Make(2);
  Random random(300);
  LayerSpec spec = MakeSpec(4, 1, 64, 64);
  spec.codec.window = 32;
  constexpr int kTokens = 420;
  const Rows rows = RandomRows(spec, kTokens, random);
  const std::vector<float> queries = RandomQueries(spec, kTokens, random);
  MiniSession single(*backend, spec);
  const Steps one_by_one = RunSteps(*backend, single, rows, queries, std::vector<int>(kTokens, 1));
  const oracle::Attention exact = OracleAttend(spec, single.Exact(), queries, {0});
  const double error = RmsDifference(one_by_one.outputs, exact.outputs);
  EXPECT_GT(error, 0.01);

  for (const std::vector<int>& steps : std::vector<std::vector<int>>{
           {420}, {7, 413}, {200, 200, 20}, {64, 64, 64, 64, 64, 64, 36}, {300, 1, 1, 1, 117}}) {
    MiniSession chunked(*backend, spec);
    const Steps in_chunks = RunSteps(*backend, chunked, rows, queries, steps);
    for (int i = 0; i < kTokens; ++i) EXPECT_LE(in_chunks.pages[i], one_by_one.pages[i]) << i;
    EXPECT_LE(RmsDifference(in_chunks.outputs, exact.outputs), error);
    // Sealed sooner or later, a page has the same bytes.
    chunked.Seal();
    single.Seal();
    ASSERT_EQ(chunked.pages().size(), single.pages().size());
    for (std::size_t page = 0; page < single.pages().size(); ++page) {
      EXPECT_EQ(chunked.PageBytes(static_cast<int>(page)),
                single.PageBytes(static_cast<int>(page)));
    }
  }
}

}  // namespace
}  // namespace oscarkv::testing
