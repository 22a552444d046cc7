// Works of all kinds from many threads: each runs once, and none together with one that it has to
// wait for.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/queue/work_queue.h"

namespace oscarkv {
namespace {

constexpr std::uint64_t kSessions = 6;
constexpr std::uint64_t kLayers = 2;
constexpr int kSubmitters = 4;
constexpr int kRequests = 600;  // of each submitter

// Layers that are in use: what shares one with another work is counted.
class Layers {
 public:
  void Enter(const WorkFacts& facts) {
    for (std::atomic<int>* layer : Of(facts)) {
      if (layer->fetch_add(1) != 0) ++clashes_;
    }
  }
  void Leave(const WorkFacts& facts) {
    for (std::atomic<int>* layer : Of(facts)) layer->fetch_sub(1);
  }
  int clashes() const { return clashes_; }

 private:
  std::vector<std::atomic<int>*> Of(const WorkFacts& facts) {
    std::vector<std::atomic<int>*> layers;
    for (const LayerKey& key : facts.layers) layers.push_back(&in_use_[key.layer]);
    for (std::uint64_t i = 0; !facts.whole_sessions.empty() && i < kLayers; ++i) {
      layers.push_back(&in_use_[facts.whole_sessions[0] * kLayers + i]);
    }
    return layers;
  }

  std::atomic<int> in_use_[kSessions * kLayers] = {};
  std::atomic<int> clashes_ = 0;
};

// A request of one work, or, where it is of kOther, of up to three with pauses for its client.
class Request : public Work {
 public:
  Request(Layers* layers, std::atomic<int>* ended, std::string tenant, std::mt19937& random)
      : layers_(layers), ended_(ended), tenant_(std::move(tenant)), given_up_(random() % 8 == 0) {
    WorkFacts facts = {.kind = static_cast<WorkKind>(random() % kWorkKinds),
                       .tenant = tenant_,
                       .cost = static_cast<std::int64_t>(random() % 120),
                       .items = static_cast<std::int64_t>(1 + random() % 4)};
    const std::uint64_t session = random() % kSessions;
    if (facts.kind != WorkKind::kOther) {
      const std::uint64_t layer = random() % kLayers;
      for (std::uint64_t s = session; s < kSessions; s += 1 + random() % kSessions) {
        facts.layers.push_back({.session = s, .layer = s * kLayers + layer});
      }
    } else if (random() % 4 == 0) {
      facts.whole_sessions = {session};
    } else if (random() % 3 > 0) {
      facts.layers.push_back({.session = session, .layer = session * kLayers + random() % kLayers});
    }
    if (facts.kind == WorkKind::kOther) steps_ = 1 + static_cast<int>(random() % 3);
    set_facts(std::move(facts));
  }

  // Once there is a place for it.
  void SubmitTo(WorkQueue& queue) {
    while (true) {
      absl::StatusOr<WorkQueue::Ticket> ticket = queue.Admit();
      if (ticket.ok()) {
        ticket_ = *std::move(ticket);
        if (ticket_.Submit(this).ok()) return;
      }
      std::this_thread::yield();
    }
  }

 private:
  bool IsGivenUp() const override { return given_up_; }
  void Drop(WhyDropped why) override {
    EXPECT_EQ(why, WhyDropped::kGivenUp);
    ++*ended_;
    delete this;
  }
  void Run() override {
    if (facts().kind == WorkKind::kOther) {
      layers_->Enter(facts());
      std::this_thread::yield();
      layers_->Leave(facts());
    }
    ticket_.EndWork();
    if (--steps_ > 0) return ticket_.Resume(this);
    ++*ended_;
    delete this;
  }

  Layers* const layers_;
  std::atomic<int>* const ended_;
  const std::string tenant_;
  WorkQueue::Ticket ticket_;
  int steps_ = 1;
  const bool given_up_;
};

TEST(WorkQueueStressTest, EachRunsOnceAndNoneWithAnotherOfItsLayers) {
  Layers layers;
  std::atomic<int> ended = 0;
  std::atomic<int> together = 0;
  const auto run_together = [&](std::span<Work* const> works) {
    const int others = together.fetch_add(1);
    EXPECT_LT(others, 2);
    for (const Work* work : works) layers.Enter(work->facts());
    std::this_thread::yield();
    for (const Work* work : works) layers.Leave(work->facts());
    --together;
  };
  WorkQueue queue(3, 16, run_together, {.cost = 100, .items = 10});
  std::vector<std::thread> submitters;
  for (int i = 0; i < kSubmitters; ++i) {
    submitters.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      for (int k = 0; k < kRequests; ++k) {
        auto request =
            std::make_unique<Request>(&layers, &ended, std::to_string(random() % 3), random);
        request.release()->SubmitTo(queue);
      }
    });
  }
  for (std::thread& submitter : submitters) submitter.join();
  queue.Refuse();
  EXPECT_TRUE(queue.WaitUntilIdle(absl::Now() + absl::Seconds(60)));
  EXPECT_EQ(ended, kSubmitters * kRequests);
  EXPECT_EQ(layers.clashes(), 0);
  EXPECT_EQ(queue.Stats().waiting, 0);
}

}  // namespace
}  // namespace oscarkv
