// Sealing ahead changes nothing that can be seen: random requests to two sessions, of which one is
// prepared, by as many pieces as chance has it, give the same answers and the same pages, bit for
// bit, over the CPU backend.

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend_factory.h"
#include "server/session/settler.h"
#include "tests/server/support/session_rig.h"

namespace oscarkv {
namespace {

// A session that is prepared and its twin that is not, to which the same requests go.
class Twins {
 public:
  Twins(Backend* backend, std::uint32_t seed)
      : random_(seed),
        rig_(backend, 1 << 28, Draw(1, 4)),
        settler_(rig_.context(), absl::InfiniteDuration(), absl::InfiniteDuration()) {
    SessionConfig config = SessionOfAllKinds("prepared");
    // One more kind: plans are given, directions are found.
    config.layers[3] = SmallLayer(3);
    config.layers[3].codec.plan = PlanMode::kGiven;
    config.layers[3].given_plan.assign(2, {.fit = Fit::kVariance});
    prepared_ = rig_.Create(config);
    config.id = "twin";
    twin_ = rig_.Create(config);
  }

  void Step() {
    rig_.DoPieces(Draw(0, 6) == 0 ? 1 << 20 : Draw(0, 3));
    const int layer = Draw(0, 4);
    const std::int64_t length = twin_->Info().layers[layer].length;
    switch (Draw(0, 9)) {
      case 0:
        return Truncate();
      case 1:
        // Both may be in the middle of a step: then nothing is settled.
        return settler_.SettleAll();
      case 2:
        return Look(layer, length);
      case 3:
        if (last_[layer].count > 0) Send(layer, last_[layer]);  // a repeat
        return;
      default:
        last_[layer] = {.begin = length,
                        .count = Draw(0, 3) == 0 ? Draw(1, 300) : Draw(1, 40),
                        .attends = Draw(0, 1) == 0,
                        .with_queries = Draw(0, 2) > 0};
        return Send(layer, last_[layer]);
    }
  }

  void ExpectSame() {
    for (std::size_t layer = 0; layer < 5; ++layer) {
      const LayerStats a = rig_.Stats(*prepared_, layer);
      const LayerStats b = rig_.Stats(*twin_, layer);
      EXPECT_EQ(a.length, b.length);
      EXPECT_EQ(a.sealed_tokens, b.sealed_tokens);
      EXPECT_EQ(a.pages_sealed_without_queries, b.pages_sealed_without_queries);
      EXPECT_EQ(a.page_bytes, b.page_bytes);
      EXPECT_EQ(a.window_bytes, b.window_bytes);
      EXPECT_EQ(b.prepared_bytes, 0);
      EXPECT_TRUE(rig_.Pages(prepared_.get(), layer) == rig_.Pages(twin_.get(), layer)) << layer;
    }
    EXPECT_EQ(rig_.taken(), prepared_->Info().resident_bytes + twin_->Info().resident_bytes);
  }

  std::int64_t pages_prepared() { return rig_.preparer().pages(); }

 private:
  struct Sent {
    std::int64_t begin = 0;
    std::int32_t count = 0;
    bool attends = false;
    bool with_queries = false;
  };

  int Draw(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }

  Source SourceOf(int layer) const {
    return {.spec = &twin_->config()->layers[layer],
            .seed = 30 + static_cast<std::uint64_t>(layer)};
  }

  // What all of it depends on: the same request to both.
  void Send(int layer, const Sent& sent) {
    std::vector<Request> requests;
    for (const auto& session : {prepared_, twin_}) {
      const std::string& id = session->config()->id;
      const std::uint64_t generation = session->generation();
      requests.push_back(sent.attends ? AttendRequest(id, generation, SourceOf(layer), sent.begin,
                                                      sent.count, std::min(sent.count, 2))
                                      : AppendRequest(id, generation, SourceOf(layer), sent.begin,
                                                      sent.count, sent.with_queries));
    }
    Compare(layer, sent.attends, &requests);
  }

  // Queries alone, of tokens that came without them or not, in the middle of the layer or at its
  // end: they may become part of the sample of a page that is due.
  void Look(int layer, std::int64_t length) {
    if (length == 0) return;
    const int count = std::min<int>(Draw(1, 40), static_cast<int>(length));
    const std::int64_t begin = length - count - Draw(0, static_cast<int>(length) - count) / 2;
    std::vector<Request> requests;
    for (const auto& session : {prepared_, twin_}) {
      requests.push_back(AttendRequest(session->config()->id, session->generation(),
                                       SourceOf(layer), begin, count, count));
      BatchItem& item = requests.back().item;
      item.num_tokens = 0;
      item.expected_length.reset();
      item.keys = {};
      item.values = {};
      item.query_start = begin;
    }
    Compare(layer, true, &requests);
  }

  void Compare(int layer, bool attends, std::vector<Request>* requests) {
    for (Request& request : *requests) {
      request.item.layer = layer;
      const bool prepared = &request == requests->data();
      const absl::Status status =
          attends ? rig_.Attend(&request, prepared) : rig_.Append(&request, prepared);
      ASSERT_TRUE(status.ok()) << status;
    }
    EXPECT_EQ((*requests)[0].outputs, (*requests)[1].outputs);
    EXPECT_EQ((*requests)[0].log_sum_exps, (*requests)[1].log_sum_exps);
    EXPECT_EQ((*requests)[0].item.repeated, (*requests)[1].item.repeated);
  }

  void Truncate() {
    const SessionInfo info = twin_->Info();
    std::int64_t longest = 0;
    for (const LayerStats& layer : info.layers) longest = std::max(longest, layer.length);
    // Mostly the last tokens, as a worker that begins a step again does.
    const std::int64_t length = Draw(0, 3) > 0 ? std::max<std::int64_t>(0, longest - Draw(0, 50))
                                               : Draw(0, static_cast<int>(longest));
    rig_.Truncate(prepared_.get(), length);
    rig_.Truncate(twin_.get(), length);
    for (Sent& sent : last_) sent.count = 0;
  }

  std::mt19937 random_;
  SessionRig rig_;
  std::shared_ptr<Session> prepared_;
  std::shared_ptr<Session> twin_;
  Settler settler_;
  Sent last_[5];
};

TEST(PreparerExactnessTest, APreparedSessionIsAsItsTwin) {
  BackendResult made = MakeBackend({.kind = BackendKind::kCpu, .threads = 1});
  ASSERT_TRUE(made.status.ok()) << made.status.message;
  const std::uint32_t runs = std::getenv("OSCARKV_TEST_FULL") ? 200 : 20;
  std::int64_t pages = 0;
  for (std::uint32_t seed = 0; seed < runs; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Twins twins(made.backend.get(), seed);
    for (int step = 0; step < 200; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      twins.Step();
      twins.ExpectSame();
      if (::testing::Test::HasFailure()) return;
    }
    pages += twins.pages_prepared();
  }
  EXPECT_GT(pages, 5 * runs);
}

}  // namespace
}  // namespace oscarkv
