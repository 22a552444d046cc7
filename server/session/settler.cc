#include "server/session/settler.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <vector>

#include "server/base/kernel_status.h"
#include "server/session/layer_change.h"

namespace oscarkv {
namespace {

constexpr std::int64_t kPagesAtOnce = 16;

}  // namespace

Settler::Settler(const BatchContext& context, absl::Duration after, absl::Duration step_lease)
    : context_(context), after_(after), step_lease_(step_lease), thread_([this] { Loop(); }) {}

Settler::~Settler() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  stop_.SignalAll();
  thread_.join();
}

void Settler::Loop() {
  // Often enough that idleness is seen soon after it is long enough; rarely enough to cost nothing.
  const absl::Duration pause = std::clamp(std::min(after_, step_lease_) / 4, absl::Milliseconds(1),
                                          absl::Duration(absl::Seconds(1)));
  const std::chrono::nanoseconds idle = absl::ToChronoNanoseconds(after_);
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (!stopping_) stop_.WaitFor(&mutex_, absl::ToChronoNanoseconds(pause));
      if (stopping_) return;
    }
    SettleIdle(idle);
  }
}

bool Settler::Stopping() {
  MutexLock lock(&mutex_);
  return stopping_;
}

void Settler::SettleAll() { SettleIdle(std::chrono::nanoseconds(0)); }

void Settler::SettleIdle(std::chrono::nanoseconds idle) {
  MutexLock lock(&pass_mutex_);
  const auto now = std::chrono::steady_clock::now();
  for (const std::shared_ptr<Session>& session : Sessions()) {
    if (Stopping()) return;
    session->EndOldStep(step_lease_);
    if (now - session->last_change() < idle || !session->TakeUnsettled()) continue;
    if (!SettleSession(session)) session->SetUnsettled();
  }
}

std::vector<std::shared_ptr<Session>> Settler::Sessions() noexcept {
  try {
    return context_.sessions->All();
  } catch (const std::exception&) {
    failures_.fetch_add(1, std::memory_order_relaxed);
    return {};
  }
}

bool Settler::SettleSession(const std::shared_ptr<Session>& session) noexcept {
  if (!session->StepIsComplete()) return false;
  try {
    bool settled = true;
    for (std::size_t i = 0; i < session->layer_count(); ++i) {
      if (!SettleLayer(session, i)) settled = false;
    }
    return settled;
  } catch (const std::exception&) {
    // What was under way on a layer is undone by then, and its lease has ended.
    failures_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
}

bool Settler::SettleLayer(const std::shared_ptr<Session>& session, std::size_t index) {
  std::int64_t at_once = kPagesAtOnce;
  while (true) {
    if (Stopping()) return false;
    const absl::StatusOr<std::int64_t> sealed = SealSome(session, index, at_once);
    if (absl::IsResourceExhausted(sealed.status()) && at_once > 1) {
      at_once = 1;  // each page that is sealed makes room for the next
      continue;
    }
    if (!sealed.ok()) {
      failures_.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    if (*sealed < at_once) return true;
  }
}

absl::StatusOr<std::int64_t> Settler::SealSome(const std::shared_ptr<Session>& session,
                                               std::size_t index, std::int64_t at_once) {
  const LayerLease lease(session, index);
  LayerState& layer = lease.state();
  // Asked under the lease, where this layer's length stays. A deleted session is empty.
  if (!session->StepIsComplete()) return 0;
  const std::int64_t pages = std::min(at_once, layer.SealablePages());
  if (pages == 0) return 0;
  LayerChange change(&layer, context_.pool, context_.budget);
  absl::Status status = change.Prepare(pages, TokenRows(), QueryRows());
  if (!status.ok()) return status;
  std::vector<SealItem> items(change.seal_items().begin(), change.seal_items().end());
  if (!items.empty()) status = FromKernelStatus(context_.backend->Seal(items));
  if (!status.ok()) return status;
  change.Apply();
  change.Commit();
  return change.pages();
}

}  // namespace oscarkv
