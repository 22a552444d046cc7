#include "server/session/session.h"

#include <algorithm>
#include <utility>

namespace oscarkv {
namespace {

// Of a node in the table of sessions, of pointers and of an allocator's bookkeeping, roughly.
constexpr std::size_t kSessionOverhead = 256;
constexpr std::size_t kLayerOverhead = 64;

template <typename T>
std::size_t BytesIn(const std::vector<T>& elements) {
  return elements.capacity() * sizeof(T);
}

std::size_t BytesOf(const SessionConfig& config) {
  std::size_t bytes = sizeof(Session) + sizeof(SessionConfig) + kSessionOverhead;
  for (const std::string* text :
       {&config.id, &config.request_id, &config.content_digest, &config.tenant, &config.group,
        &config.model, &config.model_revision, &config.rope_digest}) {
    bytes += text->capacity();
  }
  // Each key once more in the index, with its tenant and a node.
  for (const PrefixKey& prefix : config.prefix_keys) {
    bytes +=
        2 * (sizeof(PrefixKey) + prefix.key.capacity()) + config.tenant.capacity() + kLayerOverhead;
  }
  bytes += BytesIn(config.layers);
  for (const LayerSpec& spec : config.layers) {
    bytes += sizeof(Session::Layer) + sizeof(LayerStats) + sizeof(std::int64_t) + kLayerOverhead +
             BytesIn(spec.sink_logits) + BytesIn(spec.given_plan) + BytesIn(spec.given_directions);
  }
  return bytes;
}

std::chrono::steady_clock::rep Now() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

std::chrono::steady_clock::time_point TimeOf(std::chrono::steady_clock::rep count) {
  return std::chrono::steady_clock::time_point(std::chrono::steady_clock::duration(count));
}

// Of a layer that is in its file alone.
LayerStats StatsInFile(const LayerSpec& spec, const FileLayer& layer) {
  LayerStats stats{.layer = spec.layer, .length = layer.length()};
  const std::int64_t freed = layer.released_to() - spec.codec.sinks;
  if (freed > 0) {
    stats.kept_from = layer.released_to();
    stats.min_truncate_length = std::min(stats.length, stats.kept_from + spec.sliding_window - 1);
  }
  for (const FilePiece& page : layer.pages()) {
    stats.sealed_tokens += page.tokens;
    stats.pages_sealed_without_queries += page.blind ? 1 : 0;
  }
  stats.logical_bytes = (stats.length - freed) * spec.logical_bytes_per_token();
  return stats;
}

}  // namespace

Session::Session(SessionConfig config, std::uint64_t generation, MemoryBudget* budget,
                 std::atomic<std::int64_t>* all_logical_bytes, absl::Time create_time)
    : config_(std::make_shared<const SessionConfig>(std::move(config))),
      create_time_(create_time),
      all_logical_bytes_(all_logical_bytes),
      own_memory_(budget, MemoryKind::kSession),
      step_memory_(config_.get(), budget),
      generation_(generation),
      unsaved_since_(Now()),
      last_use_(Now()) {
  for (const LayerSpec& spec : config_->layers) {
    layers_.push_back(std::make_unique<Layer>(&spec, *config_, budget));
    published_.push_back({.layer = spec.layer});
  }
}

Session::~Session() {
  if (tenant_) tenant_->resident_bytes.fetch_sub(resident_bytes_);
  // Of a fork that never found its place.
  if (evicted_) return;
  for (const LayerStats& layer : published_) all_logical_bytes_->fetch_sub(layer.logical_bytes);
}

void Session::CountFor(std::shared_ptr<TenantUse> tenant) {
  MutexLock lock(&published_mutex_);
  tenant_ = std::move(tenant);
  tenant_->resident_bytes.fetch_add(resident_bytes_);
}

bool Session::ReserveOwnMemory() {
  const AloneInGate alone(&gate_);
  if (!own_memory_.Grow(static_cast<std::int64_t>(BytesOf(*config_)))) return false;
  own_bytes_.store(own_memory_.bytes());
  return true;
}

std::uint64_t Session::generation() const {
  MutexLock lock(&published_mutex_);
  return generation_;
}

bool Session::deleted() const {
  MutexLock lock(&published_mutex_);
  return deleted_;
}

bool Session::evicted() const {
  MutexLock lock(&published_mutex_);
  return evicted_;
}

Session::Glance Session::LookAt() const {
  MutexLock lock(&published_mutex_);
  return {.committed_length = committed_length_,
          .tried_length = std::max(durable_length_.load(), tried_length_.load()),
          .resident_bytes = resident_bytes_,
          .retention = retention_,
          .pages_sealed_without_queries = blind_pages_,
          .evicted = evicted_};
}

SessionInfo Session::Info() const {
  SessionInfo info;
  info.config = config_;
  info.create_time = create_time_;
  info.reused_length = reused_length_;
  info.durable_length = durable_length_;
  {
    MutexLock lock(&published_mutex_);
    info.generation = generation_;
    info.evicted = evicted_;
    info.layers = published_;
    info.committed_length = committed_length_;
    info.resident_bytes = resident_bytes_;
    info.retention = retention_;
  }
  for (const LayerStats& layer : info.layers) {
    info.logical_bytes += layer.logical_bytes;
    info.min_truncate_length = std::max(info.min_truncate_length, layer.min_truncate_length);
  }
  return info;
}

Retention Session::retention() const {
  MutexLock lock(&published_mutex_);
  return retention_;
}

void Session::SetRetention(const Retention& retention) {
  InitRetention(retention);
  NoteUse();
  NoteUnsaved();
}

void Session::InitRetention(const Retention& retention) {
  MutexLock lock(&published_mutex_);
  retention_ = retention;
}

bool Session::StepIsComplete() const {
  MutexLock lock(&published_mutex_);
  for (const LayerStats& layer : published_) {
    if (layer.length != published_.front().length) return false;
  }
  return true;
}

void Session::Publish(std::size_t index, const LayerStats& stats) {
  MutexLock lock(&published_mutex_);
  if (evicted_) return;
  Replace(&published_[index], stats);
  SumUp();
}

LayerStats Session::Published(std::size_t index) const {
  MutexLock lock(&published_mutex_);
  return published_[index];
}

std::vector<LayerStats> Session::Published() const {
  MutexLock lock(&published_mutex_);
  return published_;
}

bool Session::StepIsUnderWay(absl::Duration lease) const {
  return std::chrono::steady_clock::now() - last_change() < absl::ToChronoNanoseconds(lease) &&
         !StepIsComplete();
}

void Session::EndOldStep(absl::Duration lease) {
  if (std::chrono::steady_clock::now() - last_change() < absl::ToChronoNanoseconds(lease)) return;
  step_memory_.End();
}

void Session::Replace(LayerStats* published, const LayerStats& stats) {
  all_logical_bytes_->fetch_add(stats.logical_bytes - published->logical_bytes,
                                std::memory_order_relaxed);
  *published = stats;
}

void Session::SumUp() {
  committed_length_ = published_.empty() ? 0 : published_.front().length;
  blind_pages_ = 0;
  const std::int64_t before = std::exchange(resident_bytes_, 0);
  for (const LayerStats& layer : published_) {
    committed_length_ = std::min(committed_length_, layer.length);
    blind_pages_ += layer.pages_sealed_without_queries;
    resident_bytes_ += layer.page_bytes + layer.window_bytes + layer.prepared_bytes;
  }
  if (tenant_) tenant_->resident_bytes.fetch_add(resident_bytes_ - before);
}

// Whoever is alone in the gate needs no lock of a layer; and where room is made, others hold some
// of theirs and wait for the room.
std::vector<LayerStats> Session::CutLayers(std::int64_t length) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  step_memory_.End();
  std::vector<LayerStats> stats;
  stats.reserve(layers_.size());
  for (const std::unique_ptr<Layer>& layer : layers_) {
    layer->state.PrepareTruncate(length);
  }
  // From here on nothing can fail.
  for (const std::unique_ptr<Layer>& layer : layers_) {
    layer->state.Truncate(length);
    stats.push_back(layer->state.Stats());
  }
  return stats;
}

void Session::PublishAll(const std::vector<LayerStats>& stats) {
  if (evicted_) return;
  for (std::size_t i = 0; i < stats.size(); ++i) Replace(&published_[i], stats[i]);
  SumUp();
}

void Session::TruncateLayers(std::int64_t length) {
  const std::vector<LayerStats> stats = CutLayers(length);
  MutexLock lock(&published_mutex_);
  PublishAll(stats);
}

void Session::Truncate(TruncateRecord asked, std::uint64_t new_generation) {
  const std::vector<LayerStats> stats = CutLayers(asked.length);
  LowerUnchangedTo(asked.length);
  tried_length_.store(std::min(tried_length_.load(), asked.length));
  prefix_limit_ = std::min(prefix_limit_, asked.length);
  last_truncate_ = std::move(asked);
  MutexLock lock(&published_mutex_);
  PublishAll(stats);
  generation_ = new_generation;
}

absl::Status Session::Fork(std::int64_t length, Session* fork) {
  return ShareLayers(
      fork, [length](LayerState* from, LayerState* to) { return from->Fork(length, to); },
      /*alone=*/false);
}

absl::Status Session::Share(Session* copy) {
  return ShareLayers(
      copy, [](LayerState* from, LayerState* to) { return from->Share(to); }, /*alone=*/true);
}

absl::Status Session::ShareLayers(
    Session* other, absl::FunctionRef<absl::Status(LayerState* from, LayerState* to)> share,
    bool alone) {
  absl::Status s = ShareEachLayer(other, share, alone);
  if (s.ok()) return s;
  const AloneInGate alone_in_other(&other->gate_);
  other->TruncateLayers(0);
  return s;
}

// Who is not known to others needs no lock, and has none taken within another session's: they may
// be taken the other way round once it is known.
absl::Status Session::ShareEachLayer(
    Session* other, absl::FunctionRef<absl::Status(LayerState* from, LayerState* to)> share,
    bool alone) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& from = *layers_[i];
    Layer& to = *other->layers_[i];
    LayerStats stats;
    {
      std::optional<MutexLock> lock;
      if (!alone) lock.emplace(&from.mutex);
      if (absl::Status s = share(&from.state, &to.state); !s.ok()) return s;
      stats = to.state.Stats();
    }
    other->Publish(i, stats);
  }
  return absl::OkStatus();
}

absl::Status Session::LendPrefix(std::int64_t length, Session* fork) {
  fork->NoteChange();
  fork->reused_length_ = length;
  absl::Status s = Fork(length, fork);
  if (!s.ok()) fork->reused_length_ = 0;
  return s;
}

// Whoever is alone in the gate needs no lock of a layer.
std::vector<LayerState*> Session::Layers() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::vector<LayerState*> layers;
  layers.reserve(layers_.size());
  for (const std::unique_ptr<Layer>& layer : layers_) layers.push_back(&layer->state);
  return layers;
}

SessionCommit Session::CommitAt(absl::Time time) {
  SessionCommit commit{.generation = generation(),
                       .time = time,
                       .last_truncate = last_truncate_,
                       .retention = retention(),
                       .prefix_limit = prefix_limit_};
  // One that has no request id cannot be repeated.
  if (last_truncate_ && last_truncate_->request_id.empty()) commit.last_truncate.reset();
  for (const LayerState* layer : Layers()) {
    commit.layers.push_back({.length = layer->length(), .last_append = layer->last_append()});
  }
  return commit;
}

absl::Status Session::Load(const SessionFileState& state, SessionLoader* loader) {
  // All that may throw comes before a layer is touched.
  const std::vector<LayerState*> layers = Layers();
  std::optional<TruncateRecord> last_truncate = state.last_commit()->last_truncate;
  if (absl::Status s = loader->Load(state, layers); !s.ok()) {
    TruncateLayers(0);
    return s;
  }
  const SessionCommit& commit = *state.last_commit();
  last_truncate_ = std::move(last_truncate);
  prefix_limit_ = commit.prefix_limit;
  {
    MutexLock lock(&published_mutex_);
    if (std::exchange(evicted_, false)) {
      // Evicted ones are not in the sum. Their retention may have changed since.
      for (LayerStats& layer : published_) layer.logical_bytes = 0;
    } else {
      retention_ = commit.retention;
    }
  }
  for (std::size_t i = 0; i < layers.size(); ++i) Publish(i, layers[i]->Stats());
  NoteChange();
  return absl::OkStatus();
}

void Session::TakeCommit(const SessionCommit& commit) {
  last_truncate_ = commit.last_truncate;
  InitRetention(commit.retention);
  prefix_limit_ = commit.prefix_limit;
}

void Session::Evict(const SessionFileState& state) {
  const std::vector<LayerStats> stats = CutLayers(0);
  MutexLock lock(&published_mutex_);
  PublishAll(stats);
  evicted_ = true;
  for (std::size_t i = 0; i < published_.size(); ++i) {
    published_[i] = StatsInFile(config_->layers[i], state.layers()[i]);
  }
  SumUp();
}

void Session::LowerUnchangedTo(std::int64_t position) {
  std::int64_t known = unchanged_to_.load();
  while (position < known && !unchanged_to_.compare_exchange_weak(known, position)) {
  }
}

void Session::Delete() {
  const std::vector<LayerStats> stats = CutLayers(0);
  own_memory_.Shrink(own_memory_.bytes());
  own_bytes_.store(0);
  MutexLock lock(&published_mutex_);
  PublishAll(stats);
  deleted_ = true;
}

void Session::NoteUse() { last_use_.store(Now()); }

void Session::SetLastUse(std::chrono::steady_clock::time_point when) {
  last_use_.store(when.time_since_epoch().count());
}

std::chrono::steady_clock::time_point Session::last_use() const { return TimeOf(last_use_.load()); }

std::optional<std::chrono::steady_clock::time_point> Session::unsaved_since() const {
  const std::chrono::steady_clock::rep since = unsaved_since_.load();
  if (since == 0) return std::nullopt;
  return TimeOf(since);
}

void Session::NoteSaved(std::int64_t changes, std::chrono::steady_clock::time_point began) {
  std::int64_t known = durable_changes_.load();
  while (changes > known && !durable_changes_.compare_exchange_weak(known, changes)) {
  }
  if (changes < known) return;  // someone has written more
  unsaved_since_.store(0);
  // What came meanwhile is younger than that.
  if (changes_.load() != changes) unsaved_since_.store(began.time_since_epoch().count());
}

std::chrono::steady_clock::time_point Session::last_checkpoint() const {
  return TimeOf(last_checkpoint_.load());
}

void Session::SetLastCheckpoint(std::chrono::steady_clock::time_point when, std::int64_t length) {
  tried_length_.store(length);
  last_checkpoint_.store(when.time_since_epoch().count());
}

std::chrono::steady_clock::time_point Session::last_eviction() const {
  return TimeOf(last_eviction_.load());
}

void Session::NoteEviction() { last_eviction_.store(Now()); }

void Session::NoteUnsaved() {
  changes_.fetch_add(1);
  std::chrono::steady_clock::rep nothing = 0;
  unsaved_since_.compare_exchange_strong(nothing, Now());
}

void Session::NoteChange() {
  NoteUnsaved();
  last_change_.store(Now());
  SetUnsettled();
}

std::chrono::steady_clock::time_point Session::last_change() const {
  return TimeOf(last_change_.load());
}

LayerLease::LayerLease(std::shared_ptr<Session> session, std::size_t index)
    : session_(std::move(session)), index_(index) {
  session_->gate().EnterShared();
  session_->layer(index_).mutex.Lock();
}

LayerLease::~LayerLease() {
  session_->Publish(index_, state().Stats());
  session_->layer(index_).mutex.Unlock();
  session_->gate().LeaveShared();
}

}  // namespace oscarkv
