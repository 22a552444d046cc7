#include "server/session/preparer.h"

#include <algorithm>
#include <exception>
#include <utility>

#if defined(__linux__)
#include <sys/resource.h>
#include <unistd.h>
#endif

namespace oscarkv {
namespace {

// Beyond this, requests come faster than one thread can ever follow.
constexpr std::size_t kLongestQueue = 4096;

// Requests that compute go first. Not the least urgency there is: a request may wait for a piece.
void LowerUrgencyOfThisThread() {
#if defined(__linux__)
  constexpr int kNicer = 10;
  const auto thread = static_cast<id_t>(gettid());
  (void)setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + kNicer);
#endif
}

}  // namespace

Preparer::Preparer(Backend* backend, BlockPool* pool, MemoryBudget* budget, int most_pages)
    : backend_(backend), pool_(pool), budget_(budget), most_pages_(most_pages) {}

Preparer::~Preparer() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.SignalAll();
  if (thread_.joinable()) thread_.join();
}

void Preparer::Start() {
  thread_ = std::thread([this] {
    LowerUrgencyOfThisThread();
    Loop();
  });
}

void Preparer::Prepare(LayerState* layer) noexcept {
  if (layer->preparation() || most_pages_ == 0 || layer->SealablePages() == 0) return;
  try {
    std::shared_ptr<Preparation> preparation = Make(*layer);
    if (preparation && Enqueue(preparation)) layer->SetPreparation(std::move(preparation));
  } catch (const std::exception&) {
    failures_.fetch_add(1, std::memory_order_relaxed);
  }
}

std::shared_ptr<Preparation> Preparer::Make(const LayerState& layer) {
  const SealSource source = layer.Source();
  auto sealing = std::make_unique<Sealing>(source, pool_, budget_);
  // Those that the next append seals; if there are none, the one that a later append will.
  const std::int64_t due = layer.DuePages();
  const std::int64_t pages = due > 0 ? std::min(most_pages_, due) : layer.SealablePages();
  if (!sealing->Add(pages, source, Purpose::kAhead).ok()) return nullptr;
  if (!sealing->CopyQueries(source, Purpose::kAhead).ok()) return nullptr;
  return std::make_shared<Preparation>(std::move(sealing));
}

bool Preparer::Enqueue(const std::shared_ptr<Preparation>& preparation) {
  {
    MutexLock lock(&mutex_);
    if (queue_.size() >= kLongestQueue) return false;
    queue_.push_back(preparation);
    if (queue_.size() > 1) return true;
  }
  changed_.Signal();
  return true;
}

bool Preparer::DoNext() noexcept {
  std::shared_ptr<Preparation> next;
  {
    MutexLock lock(&mutex_);
    if (queue_.empty()) return false;
    next = queue_.front();
  }
  const Preparation::State state = next->Advance(backend_);
  if (state == Preparation::State::kBegun) return true;
  if (state == Preparation::State::kFailed) failures_.fetch_add(1, std::memory_order_relaxed);
  if (state == Preparation::State::kDone) {
    pages_.fetch_add(static_cast<std::int64_t>(next->pages()), std::memory_order_relaxed);
  }
  MutexLock lock(&mutex_);
  queue_.pop_front();
  return true;
}

void Preparer::Loop() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (stopping_) return;
    }
    DoNext();
  }
}

}  // namespace oscarkv
