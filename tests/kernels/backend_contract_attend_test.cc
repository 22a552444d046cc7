// Attend, against the oracle on the same tokens: exactly where they are in 16 bits, within the
// int8 steps where they are codes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/kernels/support/backend_contract.h"
#include "tests/kernels/support/trials.h"

namespace oscarkv::testing {
namespace {

// fp32 arithmetic, and nothing else, lies between the backend and the oracle.
constexpr double kExact = 1e-5;

// Root mean square over rows of what quantization has changed of the logits that a row sees, each
// weighed as attention weighs its token.
double LogitError(const oracle::Attention& quantized, const oracle::Attention& exact) {
  const std::size_t rows = quantized.log_sum_exps.size();
  const std::size_t tokens = rows == 0 ? 0 : quantized.logits.size() / rows;
  double sum = 0;
  for (std::size_t i = 0; i < rows * tokens; ++i) {
    if (std::isinf(quantized.logits[i])) continue;
    const double weight = std::exp(quantized.logits[i] - quantized.log_sum_exps[i / tokens]);
    const double error = quantized.logits[i] - exact.logits[i];
    sum += weight * error * error;
  }
  return rows == 0 ? 0 : std::sqrt(sum / static_cast<double>(rows));
}

// Compares an answer with the oracle's on what the cache holds. The int8 steps may add `share` of
// what quantization itself has changed.
void ExpectClose(Backend& backend, const MiniSession& session, const LayerView& view,
                 const std::vector<float>& queries, Look look, double share) {
  const LayerSpec& spec = *view.spec;
  const Answer got = Attend(backend, view, queries, look);
  const oracle::Attention ought = OracleAttend(spec, session.Decoded(), queries, look);
  const oracle::Attention exact = OracleAttend(spec, session.Exact(), queries, look);
  EXPECT_LE(RmsDifference(got.outputs, ought.outputs),
            share * RmsDifference(exact.outputs, ought.outputs) + kExact * Rms(ought.outputs));
  // To first order, the error of a log-sum-exp is the mean of the logits' errors, each weighed as
  // its token is, so the int8 steps change it by at most their share of the logits' errors, rms. As
  // errors of different signs cancel, two thirds of that must do. (The change by quantization
  // itself is no measure: it is a mean as well, and now and then nearly 0.)
  EXPECT_LE(RmsDifference(got.log_sum_exps, ought.log_sum_exps),
            share * 2 / 3 * LogitError(ought, exact) + kExact);
}

Look RandomLook(const MiniSession& session, int count, Random& random) {
  Look look;
  look.query_begin =
      random.Chance(0.6) ? session.length() - count : random.Int(-3, session.length() + 300);
  look.causal = random.Chance(0.7);
  look.count_sink_logits = random.Chance(0.8);
  return look;
}

TEST_P(BackendContract, AttendsAsTheOracle) {
  const auto backend = Make(2);
  for (int seed = 0; seed < Trials(36, 1500); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    MiniSession session(*backend, RandomSpec(random));
    const bool with_queries = random.Chance(0.8);
    // Drawn one by one: compilers differ in the order in which they evaluate arguments.
    const auto largest_step = static_cast<int>(random.Int(1, 200));
    const auto tokens =
        static_cast<int>(random.Chance(0.2) ? random.Int(1, 40) : random.Int(1, 1000));
    Fill(session, tokens, largest_step, with_queries, random);
    if (random.Chance(0.3)) session.Truncate(random.Int(0, session.length()));
    const int count = static_cast<int>(random.Int(1, 5));
    const std::vector<float> queries = RandomQueries(session.spec(), count, random);
    ExpectClose(*backend, session, session.View(), queries, RandomLook(session, count, random),
                0.30);
  }
}

TEST_P(BackendContract, AttendsAtEveryHeadDimAndGroup) {
  const auto backend = Make(2);
  int seed = 1000;
  for (const int dim : kHeadDims) {
    // Every group at the commonest width, some at the others.
    for (int group = 1; group <= kMaxQueryHeadsPerKvHead; group += dim == 128 ? 1 : 5) {
      SCOPED_TRACE("head_dim " + std::to_string(dim) + ", query heads " + std::to_string(group));
      Random random(seed++);
      LayerSpec spec = MakeSpec(group, 1, dim, kHeadDims[random.Int(0, 6)]);
      spec.codec.value_group = group % 2 == 0 ? kSmallGroup : 0;
      spec.codec.key_group = group % 3 == 0 ? kSmallGroup : kPageTokens;
      spec.codec.key_bits = group % 4 == 0 ? 4 : 2;
      MiniSession session(*backend, spec);
      Fill(session, 300, 40, true, random);
      const std::vector<float> queries = RandomQueries(spec, 2, random);
      ExpectClose(*backend, session, session.View(), queries, {session.length() - 2}, 0.30);
    }
  }
}

// A query that sees one token only has that token's logit for its log-sum-exp.
std::vector<float> Logits(Backend& backend, LayerView view, LayerSpec spec,
                          const std::vector<float>& queries, const PageRef& page) {
  spec.sliding_window = 1;
  view.spec = &spec;
  std::vector<float> logits;
  for (int t = 0; t < page.tokens; ++t) {
    const Answer answer = Attend(backend, view, queries, {page.begin + t});
    logits.insert(logits.end(), answer.log_sum_exps.begin(), answer.log_sum_exps.end());
  }
  return logits;
}

std::vector<double> OracleLogits(LayerSpec spec, const oracle::Tokens& tokens,
                                 const std::vector<float>& queries, const PageRef& page) {
  spec.sliding_window = 1;
  std::vector<double> logits;
  for (int t = 0; t < page.tokens; ++t) {
    const auto answer = OracleAttend(spec, tokens, queries, {page.begin + t});
    logits.insert(logits.end(), answer.log_sum_exps.begin(), answer.log_sum_exps.end());
  }
  return logits;
}

// The int8 steps' share of the logits' error, rms.
double Int8Share(Backend& backend, int bits, Rotation rotation, std::uint64_t seed) {
  Random random(seed);
  LayerSpec spec = MakeSpec(4, 1, kHeadDims[random.Int(0, 6)], 64);
  spec.codec.key_bits = bits;
  spec.codec.plan = PlanMode::kGiven;
  spec.codec.residual = random.Chance(0.5);
  spec.given_plan = {{rotation, Fit::kVariance}};
  MiniSession session(backend, spec);
  Fill(session, 300, 16, true, random);
  const std::vector<float> queries = RandomQueries(spec, 1, random);
  const PageRef page = session.pages()[0];
  const auto got = Logits(backend, session.View(), spec, queries, page);
  const auto ought = OracleLogits(spec, session.Decoded(), queries, page);
  const auto exact = OracleLogits(spec, session.Exact(), queries, page);
  return RmsDifference(got, ought) / RmsDifference(exact, ought);
}

TEST_P(BackendContract, Int8StepsAddLittleToTheErrorOfLogits) {
  const auto backend = Make(2);
  for (std::uint64_t seed = 0; seed < static_cast<std::uint64_t>(Trials(12)); ++seed) {
    for (const int bits : {2, 4}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", bits " + std::to_string(bits));
      EXPECT_LE(Int8Share(*backend, bits, Rotation::kHadamard, seed), 0.10);
      EXPECT_LE(Int8Share(*backend, bits, Rotation::kNone, seed), 0.30);
    }
  }
}

TEST_P(BackendContract, RowsThatSeeNothingAreEmpty) {
  const auto backend = Make(2);
  Random random(7);
  LayerSpec spec = MakeSpec(6, 2, 64, 80);
  MiniSession session(*backend, spec);
  const std::vector<float> queries = RandomQueries(spec, 3, random);
  const auto expect_empty = [&](const LayerView& view, Look look) {
    const Answer answer = Attend(*backend, view, queries, look);
    for (const float x : answer.outputs) ASSERT_EQ(x, 0);
    for (const float x : answer.log_sum_exps) ASSERT_EQ(x, -INFINITY);
  };
  expect_empty(session.View(), {0});
  expect_empty(session.View(), {0, /*causal=*/false});
  Fill(session, 400, 50, true, random);
  expect_empty(session.View(), {-3});
  spec.sliding_window = 10;  // queries far past the end see nothing of this cache
  LayerView view = session.View();
  view.spec = &spec;
  expect_empty(view, {session.length() + 50});
}

// The sinks' block may be larger than a window block, and be cut by masks anywhere.
TEST_P(BackendContract, ManySinks) {
  const auto backend = Make(2);
  Random random(9);
  LayerSpec spec = MakeSpec(2, 1, 64, 64);
  spec.codec.sinks = 100;
  MiniSession session(*backend, spec);
  for (const int length : {90, 200}) {
    Fill(session, length - static_cast<int>(session.length()), 30, true, random);
    for (const int sliding : {0, 20}) {
      LayerSpec with_sliding = spec;
      with_sliding.sliding_window = sliding;
      LayerView view = session.View();
      view.spec = &with_sliding;
      const std::vector<float> queries = RandomQueries(spec, length + 20, random);
      ExpectClose(*backend, session, view, queries, {-5}, 0);
    }
  }
}

TEST_P(BackendContract, ALearnedSinkAloneIsTheLogSumExp) {
  const auto backend = Make(2);
  Random random(8);
  LayerSpec spec = MakeSpec(2, 1, 64, 64);
  spec.sink_logits = {0.5F, -2};
  MiniSession session(*backend, spec);
  const std::vector<float> queries = RandomQueries(spec, 1, random);
  const Answer counted = Attend(*backend, session.View(), queries, {0});
  EXPECT_EQ(counted.log_sum_exps, spec.sink_logits);
  for (const float x : counted.outputs) EXPECT_EQ(x, 0);
  const Answer omitted = Attend(*backend, session.View(), queries, {0, true, false});
  EXPECT_EQ(omitted.log_sum_exps, (std::vector<float>{-INFINITY, -INFINITY}));
}

TEST_P(BackendContract, NoQueriesAndNoItemsAreFine) {
  const auto backend = Make(1);
  MiniSession session(*backend, MakeSpec(1, 1, 64, 64));
  AttendItem item;
  item.layer = session.View();
  EXPECT_TRUE(backend->Attend({&item, 1}).ok());
  EXPECT_TRUE(backend->Attend({}).ok());
}

TEST_P(BackendContract, AnswersDoNotDependOnThreads) {
  for (const int key_bits : {2, 4}) {
    LayerSpec spec = MakeSpec(6, 2, 80, 64);
    spec.codec.key_bits = key_bits;
    spec.codec.window = 64;
    Answer first;
    std::vector<std::byte> first_page;
    for (const int threads : {1, 2, 5}) {
      const auto backend = Make(threads);
      Random random(20);
      MiniSession session(*backend, spec);
      Fill(session, 2500, 700, true, random);  // more pages than one thread takes at a time
      const std::vector<float> queries = RandomQueries(spec, 9, random);
      const Answer answer = Attend(*backend, session.View(), queries, {session.length() - 9});
      const std::vector<std::byte> page = session.PageBytes(0);
      if (threads == 1) {
        first = answer;
        first_page = page;
      }
      EXPECT_EQ(answer.outputs, first.outputs) << threads << " threads";
      EXPECT_EQ(answer.log_sum_exps, first.log_sum_exps) << threads << " threads";
      EXPECT_EQ(page, first_page) << threads << " threads";
    }
  }
}

TEST_P(BackendContract, AnswersDoNotDependOnTheBatchOrOnOtherQueries) {
  const auto backend = Make(2);
  Random random(31);
  const LayerSpec spec = MakeSpec(8, 2, 96, 96);
  const LayerSpec other_spec = MakeSpec(3, 1, 64, 64);
  MiniSession session(*backend, spec);
  MiniSession other(*backend, other_spec);
  Fill(session, 900, 100, true, random);
  Fill(other, 500, 100, true, random);
  const std::vector<float> queries = RandomQueries(spec, 1, random);
  const std::vector<float> other_queries = RandomQueries(other_spec, 4, random);
  const Answer alone = Attend(*backend, session.View(), queries, {899});

  std::vector<float> outputs[2];
  std::vector<float> lses[2];
  AttendItem items[2];
  items[0].layer = other.View();
  items[0].num_queries = 4;
  items[0].query_begin = 496;
  items[0].queries = other_queries.data();
  items[1].layer = session.View();
  items[1].num_queries = 1;
  items[1].query_begin = 899;
  items[1].queries = queries.data();
  for (int i = 0; i < 2; ++i) {
    const LayerSpec& of_item = *items[i].layer.spec;
    items[i].dtype = DType::kFP32;
    outputs[i].resize(items[i].num_queries * of_item.query_heads * of_item.value_dim);
    lses[i].resize(items[i].num_queries * of_item.query_heads);
    items[i].outputs = outputs[i].data();
    items[i].log_sum_exps = lses[i].data();
  }
  ASSERT_TRUE(backend->Attend(items).ok());
  EXPECT_EQ(outputs[1], alone.outputs);
  EXPECT_EQ(lses[1], alone.log_sum_exps);
}

// Queries of 16 bits at odd addresses mean what they mean in fp32.
TEST_P(BackendContract, QueriesOfAnyTypeAndAlignment) {
  const auto backend = Make(2);
  Random random(41);
  const LayerSpec spec = MakeSpec(4, 2, 80, 64);
  MiniSession session(*backend, spec);
  Fill(session, 300, 64, true, random);
  const std::vector<float> queries = RandomQueries(spec, 2, random);
  for (const DType dtype : {DType::kBF16, DType::kFP16, DType::kFP32}) {
    std::vector<float> rounded = queries;
    std::vector<std::byte> bytes(queries.size() * SizeOf(dtype) + 1);
    if (dtype == DType::kFP32) {
      std::memcpy(bytes.data() + 1, queries.data(), queries.size() * sizeof(float));
    } else {
      const std::vector<std::uint16_t> bits = Round16(dtype, queries);
      std::memcpy(bytes.data() + 1, bits.data(), bits.size() * 2);
      for (std::size_t i = 0; i < bits.size(); ++i) rounded[i] = FromBits16(dtype, bits[i]);
    }
    const Answer ought = Attend(*backend, session.View(), rounded, {298});
    Answer got = ought;
    std::fill(got.outputs.begin(), got.outputs.end(), 0.0F);
    AttendItem item;
    item.layer = session.View();
    item.num_queries = 2;
    item.query_begin = 298;
    item.dtype = dtype;
    item.queries = bytes.data() + 1;
    item.outputs = got.outputs.data();
    item.log_sum_exps = got.log_sum_exps.data();
    ASSERT_TRUE(backend->Attend({&item, 1}).ok());
    EXPECT_EQ(got.outputs, ought.outputs) << NameOf(dtype);
  }
}

}  // namespace
}  // namespace oscarkv::testing
