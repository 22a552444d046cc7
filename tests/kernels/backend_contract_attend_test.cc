// Attend, against the oracle on the same tokens: exactly where they are in 16 bits, within the
// int8 steps where they are codes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/kernels/support/backend_contract.h"

namespace oscarkv::testing {
namespace {

int Trials(int fast, int full) { return std::getenv("OSCARKV_TEST_FULL") != nullptr ? full : fast; }

TEST_P(BackendContract, Explore) {
  const auto backend = Make(2);
  for (int seed = 0; seed < Trials(60, 400); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    MiniSession session(*backend, RandomSpec(random));
    Fill(session, static_cast<int>(random.Int(1, 1000)), 300, random.Chance(0.8), random);
    const LayerSpec& spec = session.spec();
    const int count = static_cast<int>(random.Int(1, 5));
    const auto queries = RandomQueries(spec, count, random);
    const Look look{
        random.Chance(0.7) ? session.length() - count : random.Int(-3, session.length() + 10),
        random.Chance(0.8), random.Chance(0.8)};
    const Answer got = Attend(*backend, session.View(), queries, look);
    const auto decoded = OracleAttend(spec, session.Decoded(), queries, look);
    const auto exact = OracleAttend(spec, session.Exact(), queries, look);
    const double out = RmsDifference(got.outputs, decoded.outputs);
    const double out_codes = RmsDifference(exact.outputs, decoded.outputs);
    const double lse = RmsDifference(got.log_sum_exps, decoded.log_sum_exps);
    const double lse_codes = RmsDifference(exact.log_sum_exps, decoded.log_sum_exps);
    printf(
        "seed %d kb %d vb %d pages %zu dims %d %d G %d: out rel %.2e of codes %.3f   lse %.2e of "
        "codes %.3f\n",
        seed, spec.codec.key_bits, spec.codec.value_bits, session.pages().size(), spec.key_dim,
        spec.value_dim, spec.queries_per_kv_head(), out / (Rms(decoded.outputs) + 1e-30),
        out / (out_codes + 1e-30), lse, lse / (lse_codes + 1e-30));
  }
}

}  // namespace
}  // namespace oscarkv::testing
