// What a WorkQueue runs: a request, or one step of one.
//
// Thread-safety: none. Who makes the work, then the queue, then the thread that runs it have it one
// after the other.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace oscarkv {

// Works of one kind, kOther apart, can be run together.
enum class WorkKind : std::uint8_t { kOther, kAppend, kAttend };
inline constexpr int kWorkKinds = 3;

// One layer of one session that a work needs alone, by hashes: what collides is taken for one, and
// waits for each other without need.
struct LayerKey {
  std::uint64_t session = 0;
  std::uint64_t layer = 0;  // of that session
};

// What the queue knows of a work.
struct WorkFacts {
  WorkKind kind = WorkKind::kOther;
  // Who it is charged to. Points into what lives as long as the work.
  std::string_view tenant{};
  // What it is charged, about proportional to the time that it takes: KiB that its tokens would
  // take in 16 bits, those that it appends, and those that it attends to times its queries.
  std::int64_t cost = 1;
  std::int64_t items = 1;
  std::vector<LayerKey> layers{};
  // Needed alone, with all their layers; by hash, each once.
  std::vector<std::uint64_t> whole_sessions{};
};

enum class WhyDropped : std::uint8_t { kGivenUp, kNoMemory };

class Work {
 public:
  Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  virtual ~Work() = default;

  // Runs work of kOther, all of it; of another kind, what is left once it has been run together
  // with others: its reply. May delete the work. Must not throw.
  virtual void Run() = 0;

  // Whether no one waits for it any more. Called while it waits, under the queue's lock: quick, and
  // must not throw.
  virtual bool IsGivenUp() const { return false; }

  // In place of all that: tells its client why. May delete the work. Must not throw.
  virtual void Drop(WhyDropped why) = 0;

  const WorkFacts& facts() const {
    static const WorkFacts kNone;
    return facts_ == nullptr ? kNone : *facts_;
  }

 protected:
  // REQUIRES: the work is not in a queue.
  void set_facts(WorkFacts facts) { facts_ = std::make_shared<const WorkFacts>(std::move(facts)); }

 private:
  friend class WorkQueue;
  friend class WorkList;

  // Not copied by the queue, which needs them when the work may be gone.
  std::shared_ptr<const WorkFacts> facts_;
  // The queue's.
  std::chrono::steady_clock::time_point queued_{};
  std::optional<WhyDropped> dropped_{};
  Work* next_ = nullptr;
};

// Works in the order in which they came, each in one list at most. Takes no memory.
class WorkList {
 public:
  bool empty() const { return first_ == nullptr; }

  void Push(Work* work) {
    work->next_ = nullptr;
    (empty() ? first_ : last_->next_) = work;
    last_ = work;
  }
  // REQUIRES: !empty().
  Work* Pop() {
    Work* const work = first_;
    first_ = work->next_;
    return work;
  }

 private:
  Work* first_ = nullptr;
  Work* last_ = nullptr;
};

}  // namespace oscarkv
