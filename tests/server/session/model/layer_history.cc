#include "tests/server/session/model/layer_history.h"

#include <algorithm>
#include <utility>

#include "server/session/session_store.h"

namespace oscarkv {

std::uint64_t LayerHistory::SeedAt(std::int64_t position) const {
  std::uint64_t seed = 0;
  for (const Run& run : runs_) {
    if (run.begin <= position) seed = run.seed;
  }
  return seed;
}

std::int64_t LayerHistory::SeedEnd(std::int64_t position) const {
  for (const Run& run : runs_) {
    if (run.begin > position) return run.begin;
  }
  return kPositionLimit;
}

void LayerHistory::SetSeed(std::int64_t begin, std::uint64_t seed) {
  std::erase_if(runs_, [begin](const Run& run) { return run.begin >= begin; });
  runs_.push_back({begin, seed});
}

void LayerHistory::Push(const LayerEvent& event) {
  newest_ = std::make_shared<const Node>(Node{std::move(newest_), event});
  ++events_;
}

void LayerHistory::Add(const LayerEvent& event, std::int64_t window, std::int64_t rollback_tokens) {
  Push(event);
  if (event.count > 0) {
    length_ += event.count;
    last_ = {event.begin, event.count, event.seed};
  }
  NoteFreed(rollback_tokens);
  coded_limit_ = std::max(coded_limit_, length_ - window);
}

void LayerHistory::Settle(std::int64_t rollback_tokens) {
  Push({.kind = LayerEvent::Kind::kSettle});
  NoteFreed(rollback_tokens);
}

void LayerHistory::NoteFreed(std::int64_t rollback_tokens) {
  const std::int64_t first_query = last_ ? last_->begin : length_;
  free_limit_ = std::max(free_limit_, std::min(first_query, length_ - rollback_tokens));
}

void LayerHistory::Truncate(std::int64_t length, std::uint64_t next) {
  last_.reset();
  length_ = std::min(length_, length);
  coded_limit_ = std::min(coded_limit_, length_);
  SetSeed(length_, next);
  if (length_ > 0) {
    Push({.kind = LayerEvent::Kind::kTruncate, .begin = length});
    return;
  }
  newest_.reset();
  events_ = 0;
  free_limit_ = 0;
}

std::vector<LayerEvent> LayerHistory::Events() const {
  std::vector<LayerEvent> events;
  for (const Node* node = newest_.get(); node != nullptr; node = node->before.get()) {
    events.push_back(node->event);
  }
  std::reverse(events.begin(), events.end());
  return events;
}

}  // namespace oscarkv
