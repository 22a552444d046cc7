// What a fork of a long session costs, in time and memory, beside what a worker without forks does:
// append the same tokens to another session.
//
//   fork_cost [tokens [layers [forks]]]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "kernels/api/profiles.h"
#include "kernels/backend_factory.h"
#include "server/session/session_store.h"
#include "tests/bench/gaussian.h"
#include "tests/bench/number_argument.h"

namespace oscarkv::bench {
namespace {

constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kChunkTokens = 1024;

void Require(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "fork_cost: could not %s\n", what.c_str());
  std::exit(1);
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// DENSE with plans that are given: how a page is sealed makes no difference to a fork.
SessionConfig Config(const std::string& id, int layers) {
  SessionConfig config;
  config.id = id;
  config.request_id = id;
  for (int layer = 0; layer < layers; ++layer) {
    const ProfileSettings settings = SettingsOf(Profile::kDense);
    LayerSpec spec;
    spec.layer = layer;
    spec.query_heads = 4 * kKvHeads;
    spec.kv_heads = kKvHeads;
    spec.key_dim = spec.value_dim = kHeadDim;
    spec.scale = 0.088F;
    spec.codec = settings.codec;
    spec.codec.plan = PlanMode::kGiven;
    spec.given_plan.assign(kKvHeads, settings.plan);
    config.layers.push_back(spec);
  }
  config.value_folded.assign(config.layers.size(), false);
  return config;
}

void Append(SessionStore& store, const SessionInfo& session, int tokens) {
  static const std::vector<std::uint16_t> numbers =
      GaussianNumbers(std::int64_t{kChunkTokens} * kKvHeads * kHeadDim, 1);
  const Rows rows{
      .dtype = DType::kBF16, .heads = kKvHeads, .dim = kHeadDim, .data = numbers.data()};
  for (int begin = 0; begin < tokens; begin += kChunkTokens) {
    for (const LayerStats& layer : session.layers) {
      BatchItem item;
      item.session = session.config->id;
      item.layer = layer.layer;
      item.generation = session.generation;
      item.expected_length = begin;
      item.num_tokens = std::min(kChunkTokens, tokens - begin);
      item.keys = item.values = rows;
      BatchItem* const items[] = {&item};
      store.Append(items);
      Require(item.status.ok(), "append: " + item.status.ToString());
    }
  }
  store.Settle();
}

double AppendAgain(SessionStore& store, int tokens, int layers) {
  const auto session = store.Create(Config("again", layers));
  Require(session.ok(), "create a session");
  const auto begin = std::chrono::steady_clock::now();
  Append(store, *session, tokens);
  const double seconds = Seconds(begin);
  Require(store.Delete("again", 0).ok(), "delete a session");
  return seconds;
}

// Sorted seconds of each fork; `first_bytes`: what the store takes after the first.
std::vector<double> Fork(SessionStore& store, int forks, std::int64_t* first_bytes) {
  std::vector<double> times;
  for (int i = 0; i < forks; ++i) {
    ForkItem item;
    item.source = "source";
    item.generation = store.Get("source")->generation;
    item.session = "fork-" + std::to_string(i);
    item.request_id = item.session;
    const auto begin = std::chrono::steady_clock::now();
    store.Fork({&item, 1});
    times.push_back(Seconds(begin));
    Require(item.status.ok(), "fork: " + item.status.ToString());
    if (i == 0) *first_bytes = store.Totals().resident_bytes;
  }
  std::sort(times.begin(), times.end());
  return times;
}

void Run(int tokens, int layers, int forks) {
  BackendResult backend = MakeBackend({.kind = BackendKind::kCpu});
  Require(backend.status.ok(), "make a backend");
  SessionStore store(backend.backend.get(), {.memory_budget_bytes = std::int64_t{64} << 30,
                                             .settle_after = absl::InfiniteDuration()});
  const auto source = store.Create(Config("source", layers));
  Require(source.ok(), "create a session");
  Append(store, *source, tokens);
  const double again = AppendAgain(store, tokens, layers);
  const auto alone = static_cast<double>(store.Totals().resident_bytes);
  std::int64_t first_bytes = 0;
  const std::vector<double> times = Fork(store, forks, &first_bytes);
  const double median = times[times.size() / 2];
  std::printf("%d tokens on %d layers of %d kv heads of %d: %.1f MB\n", tokens, layers, kKvHeads,
              kHeadDim, alone / 1e6);
  std::printf(
      "a fork: median %.1f us, longest %.1f us of %d; appending the tokens again: %.3g s, "
      "%.3gx\n",
      1e6 * median, 1e6 * times.back(), forks, again, again / median);
  std::printf("memory: the first fork %.4f%% of the session; with %d forks %.3fx the session\n",
              100 * (static_cast<double>(first_bytes) / alone - 1), forks,
              static_cast<double>(store.Totals().resident_bytes) / alone);
}

}  // namespace
}  // namespace oscarkv::bench

int main(int argc, char** argv) {
  using oscarkv::bench::NumberArgument;
  const auto number = [&](int index, int usual, int least, int most) {
    return argc > index ? NumberArgument(argv[index], least, most) : std::optional<int>(usual);
  };
  const auto tokens = number(1, 131072, 1, 1 << 20);
  const auto layers = number(2, 8, 1, 64);
  const auto forks = number(3, 1000, 1, 100000);
  if (!tokens || !layers || !forks || argc > 4) {
    std::fprintf(stderr,
                 "usage: fork_cost [tokens [layers [forks]]]\n"
                 "  tokens  1 to 1048576, default 131072\n"
                 "  layers  1 to 64, default 8\n"
                 "  forks   1 to 100000, default 1000\n");
    return 2;
  }
  oscarkv::bench::Run(*tokens, *layers, *forks);
}
