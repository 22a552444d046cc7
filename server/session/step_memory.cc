#include "server/session/step_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/api/page_layout.h"
#include "server/base/kernel_status.h"

namespace oscarkv {
namespace {

constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

bool FindsDirections(const LayerSpec& spec) {
  return spec.seals() && spec.has_residual() && spec.given_directions.empty();
}

// Of `positions` that follow each other.
std::int64_t SampleBytes(const LayerSpec& spec, std::int64_t positions) {
  const bool sampled = spec.seals() && spec.keys_are_coded() &&
                       (spec.codec.plan == PlanMode::kAuto || FindsDirections(spec));
  if (!sampled) return 0;
  const std::int64_t rows = CeilDiv(positions, spec.query_sample_stride());
  return rows * 2 * spec.query_heads * spec.key_dim;
}

// The most tokens that are in 16 bits at once on the way of several appends of `chunk` tokens: an
// append finds what the one before has not let go of yet.
std::int64_t MostInWindow(const LayerSpec& spec, std::int64_t rollback_tokens, std::int64_t chunk) {
  const std::int64_t kept = spec.seals() ? spec.codec.window + kSealSlack + kPageTokens
                                         : spec.sliding_window + rollback_tokens;
  return kept + 2 * chunk;
}

// Pages that are sealed on the way.
std::int64_t PagesOf(const LayerSpec& spec, std::int64_t rollback_tokens, const LayerStats& at,
                     std::int64_t to, std::int64_t chunk) {
  if (!spec.seals()) return 0;
  // An append seals by the length before it.
  const std::int64_t before = to - at.length > chunk ? to : at.length;
  const std::int64_t tokens = before - spec.codec.window - kSealSlack - at.window_begin;
  const std::int64_t pages = std::max<std::int64_t>(tokens, 0) / kPageTokens;
  if (spec.sliding_window == 0) return pages;
  // Older ones are freed meanwhile.
  const std::int64_t kept = spec.sliding_window + rollback_tokens + 2 * chunk;
  return std::min(pages, CeilDiv(kept, kPageTokens) + 1);
}

// What it needs whether or not it can write into the blocks that it has: those are not known of
// other layers, or may be shared by the time that it comes.
StepNeed NeedOfCopies(const LayerSpec& spec, const LayerStats& at) {
  StepNeed need;
  if (at.length < spec.codec.sinks) need.keep += TokenBlockLayout(spec, spec.codec.sinks).bytes;
  if (at.window_room > 0) need.keep += TokenBlockLayout(spec, kWindowBlockTokens).bytes;
  return need;
}

// New blocks and pages.
StepNeed NeedOfTokens(const LayerSpec& spec, std::int64_t rollback_tokens, const LayerStats& at,
                      std::int64_t to, std::int64_t chunk) {
  const std::int64_t behind = at.length + at.window_room;  // where there is no room any more
  const std::int64_t first = std::max<std::int64_t>(behind, spec.codec.sinks);
  std::int64_t blocks = CeilDiv(std::max<std::int64_t>(to - first, 0), kWindowBlockTokens);
  if (to - at.length > chunk) {
    const std::int64_t there = std::max<std::int64_t>(behind - at.window_begin, 0);
    const std::int64_t most = MostInWindow(spec, rollback_tokens, chunk) + kWindowBlockTokens;
    blocks = std::min(blocks, CeilDiv(std::max<std::int64_t>(most - there, 0), kWindowBlockTokens));
  }
  return {.keep = blocks * TokenBlockLayout(spec, kWindowBlockTokens).bytes,
          .seal = PagesOf(spec, rollback_tokens, at, to, chunk) * PageLayout(spec).bytes};
}

StepNeed Sum(const StepNeed& a, const StepNeed& b) {
  return {.keep = a.keep + b.keep, .seal = a.seal + b.seal};
}

// What the very append needs for its tokens: whether blocks are shared is known under the layer's
// lock, and queries may be refused where the first layer's tokens may.
StepNeed NeedOfAppend(const LayerState& layer, const LayerStats& at, std::int64_t rollback_tokens,
                      std::int64_t to, std::int64_t chunk) {
  const LayerSpec& spec = layer.spec();
  StepNeed need = NeedOfTokens(spec, rollback_tokens, at, to, chunk);
  if (at.length < spec.codec.sinks && (!layer.sinks() || layer.sinks().shared())) {
    need.keep += TokenBlockLayout(spec, spec.codec.sinks).bytes;
  }
  const Window& window = layer.window();
  if (at.window_room > 0 && window.block(window.size() - 1).shared()) {
    need.keep += TokenBlockLayout(spec, kWindowBlockTokens).bytes;
  }
  return need;
}

}  // namespace

StepNeed NeedOf(const LayerSpec& spec, std::int64_t rollback_tokens, const LayerStats& at,
                std::int64_t to, std::int64_t chunk) {
  if (to <= at.length) return {};
  StepNeed need = Sum(NeedOfCopies(spec, at), NeedOfTokens(spec, rollback_tokens, at, to, chunk));
  need.keep +=
      SampleBytes(spec, std::min(to - at.length, MostInWindow(spec, rollback_tokens, chunk)));
  if (FindsDirections(spec)) {
    need.seal += std::int64_t{spec.kv_heads} * spec.key_dim * 4;
  }
  return need;
}

StepMemory::StepMemory(const SessionConfig* config, MemoryBudget* budget)
    : config_(config),
      budget_(budget),
      promises_(config->layers.size()),
      memory_(budget, MemoryKind::kPromised) {}

absl::Status StepMemory::Take(std::size_t index, const LayerState& layer, std::int32_t tokens,
                              PublishedLayers published, MemoryReservation* promise) {
  const LayerStats own = layer.Stats();
  const std::int64_t rollback = config_->rollback_tokens;
  std::vector<StepNeed> needs(config_->layers.size());
  MutexLock lock(&mutex_);
  std::int64_t to = promised_to_;
  std::int64_t chunk = std::max<std::int64_t>(chunk_, tokens);
  if (own.length + tokens > promised_to_) {
    const absl::StatusOr<std::vector<LayerStats>> layers = published();
    if (!layers.ok()) return layers.status();
    to = own.length + tokens;
    bool behind = false;
    for (const LayerStats& other : *layers) {
      to = std::max(to, other.length);
      behind = behind || other.length < promised_to_;
    }
    if (!behind) chunk = tokens;  // a new step
    for (std::size_t i = 0; i < needs.size(); ++i) {
      needs[i] = NeedOf(config_->layers[i], rollback, (*layers)[i], to, chunk);
    }
  }
  needs[index] = NeedOfAppend(layer, own, rollback, to, chunk);
  if (absl::Status s = Promise(needs); !s.ok()) return s;
  promised_to_ = to;
  chunk_ = chunk;
  Give(index, promise);
  return absl::OkStatus();
}

absl::Status StepMemory::Promise(std::span<const StepNeed> needs) {
  StepNeed missing;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const std::int64_t keep = std::max<std::int64_t>(needs[i].keep - promises_[i], 0);
    missing.keep += keep;
    missing.seal += std::max<std::int64_t>(needs[i].all() - promises_[i] - keep, 0);
  }
  if (missing.all() == 0) return absl::OkStatus();
  MemoryReservation more(budget_, MemoryKind::kPromised);
  if (!more.Grow(missing.keep) || !more.Grow(missing.seal, Purpose::kSeal)) {
    return OutOfMemory(absl::StrCat("the memory budget of ", budget_->total(), " bytes has no ",
                                    missing.all(), " left for a step of ", needs.size(),
                                    needs.size() == 1 ? " layer" : " layers"));
  }
  memory_.Absorb(&more, more.bytes());
  for (std::size_t i = 0; i < needs.size(); ++i) {
    promises_[i] = std::max(promises_[i], needs[i].all());
  }
  return absl::OkStatus();
}

void StepMemory::TakeForQueries(std::size_t index, MemoryReservation* promise) {
  MutexLock lock(&mutex_);
  Give(index, promise);
}

void StepMemory::Give(std::size_t index, MemoryReservation* promise) {
  promise->Absorb(&memory_, promises_[index]);
  promises_[index] = 0;
}

void StepMemory::Return(std::size_t index, const LayerState& layer, bool queries_came,
                        MemoryReservation* promise) {
  const LayerSpec& spec = layer.spec();
  const LayerStats at = layer.Stats();
  MutexLock lock(&mutex_);
  std::int64_t want = 0;
  if (promised_to_ > 0) {
    want = NeedOf(spec, config_->rollback_tokens, at, promised_to_, chunk_).all();
    if (!queries_came) want += SampleBytes(spec, chunk_);
  }
  Give(index, promise);  // what was promised meanwhile
  if (promise->bytes() > want) promise->Shrink(promise->bytes() - want);
  // A change that failed has released what it took. If someone else has it by now, this layer may
  // be refused: the step has failed once anyway.
  if (promise->bytes() < want) {
    [[maybe_unused]] const bool grown = promise->Grow(want - promise->bytes(), Purpose::kSeal);
  }
  promises_[index] = promise->bytes();
  memory_.Absorb(promise, promise->bytes());
}

void StepMemory::End() {
  MutexLock lock(&mutex_);
  promised_to_ = 0;
  chunk_ = 0;
  std::fill(promises_.begin(), promises_.end(), 0);
  memory_.Shrink(memory_.bytes());
}

}  // namespace oscarkv
