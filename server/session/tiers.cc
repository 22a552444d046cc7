#include "server/session/tiers.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/time/clock.h"

namespace oscarkv {
namespace {

absl::Time TimeOf(std::chrono::steady_clock::time_point when) {
  return absl::Now() - absl::FromChrono(std::chrono::steady_clock::now() - when);
}

// Of a checkpoint that failed: until it is tried again, at the latest after the interval.
constexpr std::chrono::nanoseconds kRetryAfter = std::chrono::seconds(5);
constexpr int kFailuresOfAPass = 8;

std::chrono::nanoseconds Interval(const StoreOptions& options) {
  return absl::ToChronoNanoseconds(
      std::min(options.checkpoint_interval, absl::Duration(absl::Hours(1 << 20))));
}

// One more for as long as it lives.
class Counted {
 public:
  explicit Counted(std::atomic<int>* count) : count_(count) { count_->fetch_add(1); }
  ~Counted() { count_->fetch_sub(1); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>* const count_;
};

}  // namespace

Tiers::Tiers(const StoreOptions& options, const SessionTable* sessions, DiskTier* disk,
             MemoryBudget* budget, Drop drop)
    : options_(options),
      sessions_(sessions),
      disk_(disk),
      budget_(budget),
      drop_(std::move(drop)),
      health_(options.stalled_after) {}

Tiers::~Tiers() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  stop_.SignalAll();
  if (thread_.joinable()) thread_.join();
}

void Tiers::Start() {
  health_.heartbeat()->Beat();  // from now on it is waited for
  thread_ = std::thread([this] { Loop(); });
}

void Tiers::Loop() {
  const Heartbeat::OfThisThread beats(health_.heartbeat());
  const absl::Duration pause = std::clamp(options_.checkpoint_interval, absl::Milliseconds(1),
                                          absl::Duration(absl::Seconds(1)));
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (!stopping_) stop_.WaitFor(&mutex_, absl::ToChronoNanoseconds(pause));
      if (stopping_) return;
    }
    Heartbeat::BeatThisThread();
    Pass();
  }
}

void Tiers::Pass() noexcept {
  try {
    Expire();
    KeepToQuotas({});
    MakeRoom(0);
    if (disk_) CheckpointDue();
    passes_.fetch_add(1);
    health_.NotePass(absl::OkStatus());
  } catch (const std::exception& exception) {
    failed_passes_.fetch_add(1);
    try {
      const absl::Status s = absl::InternalError(exception.what());
      health_.NotePass(s);
      TellOfFailure("", s);
    } catch (const std::exception&) {  // no memory for the words; the next pass tries again
    }
  }
}

void Tiers::CheckpointDue() {
  const Clock::time_point due = Clock::now() - Interval(options_);
  bool all_written = true;
  int failed = 0;  // in a row
  for (const std::shared_ptr<Session>& session : sessions_->All()) {
    {
      MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    Heartbeat::BeatThisThread();
    if (!session->unsaved()) continue;
    all_written = false;
    // Where the disk fails, it would fail all of them: some at a time are enough to find out when
    // it is well again.
    if (failed >= kFailuresOfAPass) continue;
    if (session->last_checkpoint() > due && !HasManyTokensToSave(*session)) continue;
    failed = Checkpoint(session.get()).ok() ? 0 : failed + 1;
  }
  if (all_written) health_.NoteAllWritten();
}

bool Tiers::HasManyTokensToSave(const Session& session) const {
  if (options_.checkpoint_tokens == 0) return false;
  const Session::Glance glance = session.LookAt();
  return glance.committed_length - glance.tried_length >= options_.checkpoint_tokens;
}

absl::Status Tiers::CheckpointIfChanged(Session* session) {
  return session->unsaved() ? Checkpoint(session) : absl::OkStatus();
}

absl::Status Tiers::Checkpoint(Session* session) {
  const Clock::time_point began = Clock::now();
  const bool unsaved = session->unsaved();
  const std::int64_t changes = session->changes();
  const std::int64_t length = session->LookAt().committed_length;
  const Counted moving(&moving_);
  absl::Status s = disk_->Checkpoint(session);
  checkpoints_.Count(s, began);
  if (unsaved) health_.NoteWrite(s);
  if (s.ok()) {
    session->NoteSaved(changes, began);
    session->SetLastCheckpoint(Clock::now(), length);
    return s;
  }
  // A disk that fails is not tried all the time, but sooner than one that works.
  const auto wait = std::min(Interval(options_), kRetryAfter);
  session->SetLastCheckpoint(Clock::now() - Interval(options_) + wait, length);
  TellOfFailure(session->config()->id, s);
  return s;
}

absl::Status Tiers::Evict(Session* session) {
  if (session->evicted()) return absl::OkStatus();
  const Clock::time_point began = Clock::now();
  const bool unsaved = session->unsaved();
  absl::Status s = disk_->Evict(session);
  evictions_.Count(s, began);
  if (unsaved) health_.NoteWrite(s);
  if (!s.ok()) {
    TellOfFailure(session->config()->id, s);
    return s;
  }
  session->NoteSaved(session->changes(), began);
  session->NoteEviction();
  return s;
}

std::int64_t Tiers::Moves::Successes() const {
  const DurationCounts read = times.Read();
  return std::accumulate(read.counts.begin(), read.counts.end(), std::int64_t{0});
}

void Tiers::Moves::Count(const absl::Status& status, Clock::time_point began) {
  if (status.ok()) {
    times.Add(Clock::now() - began);
  } else {
    failures.fetch_add(1);
  }
}

void Tiers::TellOfFailure(std::string_view session, const absl::Status& status) {
  if (options_.on_tier_failure) options_.on_tier_failure(session, status);
}

absl::Status Tiers::CheckpointAll() {
  absl::Status status;
  if (!disk_) return status;
  for (const std::shared_ptr<Session>& session : sessions_->All()) {
    status.Update(CheckpointIfChanged(session.get()));
  }
  return status;
}

absl::Status Tiers::WithRoom(std::int64_t wanted, Wait wait,
                             absl::FunctionRef<absl::Status()> attempt) {
  absl::Status s = attempt();
  if (!can_make_room() || wait == Wait::kForNothing || !absl::IsResourceExhausted(s)) return s;
  Patience patience(this);
  while (absl::IsResourceExhausted(s) && patience.TryAgain(wanted)) s = attempt();
  return s;
}

absl::Status Tiers::Restore(Session* session, Wait wait) {
  if (!disk_ || !session->evicted()) return absl::OkStatus();
  const Clock::time_point began = Clock::now();
  const bool unsaved = session->unsaved();  // as its retention may be
  const std::int64_t wanted = std::max(disk_->LiveBytes(session), usual_room());
  absl::Status s = WithRoom(wanted, wait, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const Counted moving(&moving_);
    return disk_->Restore(session);
  });
  restores_.Count(s, began);
  if (!s.ok()) return s;
  if (!unsaved) session->NoteSaved(session->changes(), began);  // it is what its file has
  if (Clock::now() - session->last_eviction() < std::chrono::minutes(1)) {
    restores_within_minute_.fetch_add(1);
  }
  return s;
}

absl::Status Tiers::EnsureResident(Session* session, Wait wait) {
  if (!disk_ || !session->evicted()) return absl::OkStatus();
  session->NoteUse();
  const AloneInGate alone(&session->gate());
  return Restore(session, wait);
}

bool Tiers::Patience::TryAgain(std::int64_t wanted) {
  while (std::chrono::steady_clock::now() < end_) {
    const std::int64_t most = std::max(wanted, tiers_->budget_->total() / 2);
    const Room room = tiers_->MakeRoom(std::min(wanted * times_, most));
    const bool asked_for_most = wanted * times_ >= most;
    if (!asked_for_most) times_ *= 2;
    if (room == Room::kMade) return !asked_for_most || --last_tries_ >= 0;
    if (room == Room::kNone && asked_for_most) return false;
    if (room == Room::kBusy) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

Tiers::Room Tiers::MakeRoom(std::int64_t wanted) {
  if (!can_make_room()) return Room::kNone;
  const std::int64_t before = budget_->used();
  MutexLock lock(&room_mutex_);
  // Someone else has made room meanwhile.
  if (wanted > 0 && budget_->used() < before) return Room::kMade;
  const auto least =
      static_cast<std::int64_t>(options_.low_watermark * static_cast<double>(budget_->total()));
  Room room = moving_ > 0 ? Room::kBusy : Room::kNone;
  if (wanted > 0 && budget_->used() + wanted <= high()) return Room::kMade;  // there is some
  const Clock::time_point planned = Clock::now();
  const std::vector<EvictionDecision> plan = Plan(wanted, &room);
  for (std::size_t at = 0; at < plan.size() && budget_->used() + wanted > least;) {
    room = std::min(room, CarryOut(NextUnit(plan, &at), planned));
  }
  if (budget_->used() < before) return Room::kMade;  // whoever did it
  return room;
}

void Tiers::Expire() {
  const Clock::time_point now = Clock::now();
  // A group has expired only where each of its sessions has.
  const std::vector<std::shared_ptr<Session>> sessions = sessions_->All();
  if (std::none_of(sessions.begin(), sessions.end(), [now](const auto& session) {
        const Retention retention = session->retention();
        return !retention.pinned && absl::FromChrono(now - session->last_use()) >= retention.ttl;
      })) {
    return;
  }
  MutexLock lock(&room_mutex_);
  const std::vector<EvictionDecision> plan = PlanEvictions(Input());
  for (std::size_t at = 0; at < plan.size();) CarryOut(NextUnit(plan, &at), now);
}

bool Tiers::KeepToQuotas(std::span<const std::string_view> wanted) {
  if (!can_make_room()) return false;
  const Clock::time_point now = Clock::now();
  const std::vector<std::shared_ptr<Session>> sessions = sessions_->All();
  if (std::none_of(sessions.begin(), sessions.end(),
                   [](const auto& session) { return session->tenant()->is_full(); })) {
    return true;  // someone else has made room meanwhile
  }
  bool made = false;
  MutexLock lock(&room_mutex_);
  const std::vector<EvictionDecision> plan = PlanEvictions(Input(wanted));
  for (std::size_t at = 0; at < plan.size();) {
    made = CarryOut(NextUnit(plan, &at), now) == Room::kMade || made;
  }
  return made;
}

std::vector<EvictionDecision> Tiers::Plan(std::int64_t wanted, Room* room) {
  const std::int64_t used = budget_->used();
  if (used + wanted <= high()) return {};  // what most passes find
  EvictionInput input = Input();
  input.used_bytes = used;
  input.wanted_bytes = wanted;
  for (const EvictionCandidate& candidate : input.candidates) {
    if (candidate.busy) *room = std::min(*room, Room::kBusy);
  }
  return PlanEvictions(input);
}

EvictionInput Tiers::Input(std::span<const std::string_view> wanted) {
  EvictionInput input;
  input.now = absl::Now();
  input.budget_bytes = budget_->total();
  input.low_watermark = options_.low_watermark;
  input.high_watermark = options_.high_watermark;
  input.can_spill = disk_ != nullptr;
  input.may_drop = disk_ == nullptr && options_.drop_when_full;
  for (const std::shared_ptr<Session>& session : sessions_->All()) {
    const Session::Glance glance = session->LookAt();
    const SessionConfig& config = *session->config();
    const Retention& retention = glance.retention;
    // One that is on the disk matters to its group, and to its own end.
    if (glance.evicted && config.group.empty() && retention.ttl == absl::InfiniteDuration()) {
      continue;
    }
    const TenantUse& tenant = *session->tenant();
    // At its quota it gets no more: what is left is below.
    if (tenant.is_full())
      input.quota_bytes[tenant.tenant] = std::max<std::int64_t>(tenant.quota - 1, 1);
    std::int64_t bytes = glance.evicted ? 0 : glance.resident_bytes;
    if (disk_ == nullptr) bytes += session->own_bytes();
    input.candidates.push_back(
        {.id = config.id,
         .group = config.group,
         .tenant = config.tenant,
         .resident_bytes = bytes,
         .priority = retention.priority,
         .last_use = TimeOf(session->last_use()),
         .ttl = retention.ttl,
         .pinned = retention.pinned,
         .busy = std::find(wanted.begin(), wanted.end(), config.id) != wanted.end() ||
                 (!glance.evicted && session->StepIsUnderWay(options_.step_lease)),
         .spillable = disk_ != nullptr,
         .spilled = glance.evicted});
  }
  return input;
}

Tiers::Unit Tiers::NextUnit(const std::vector<EvictionDecision>& plan, std::size_t* at) const {
  Unit unit{.sessions = {}, .action = plan[*at].action, .reason = plan[*at].reason};
  for (; *at < plan.size(); ++*at) {
    std::shared_ptr<Session> session = sessions_->Find(plan[*at].id);
    if (!session) continue;
    if (!unit.sessions.empty()) {
      const SessionConfig& first = *unit.sessions.front()->config();
      const SessionConfig& config = *session->config();
      if (first.group.empty() || config.group != first.group || config.tenant != first.tenant) {
        break;
      }
    }
    unit.action = plan[*at].action;
    unit.reason = plan[*at].reason;
    unit.sessions.push_back(std::move(session));
  }
  return unit;
}

Tiers::Room Tiers::CarryOut(const Unit& unit,
                            Clock::time_point planned) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::deque<TryAloneInGate> gates;
  for (const std::shared_ptr<Session>& session : unit.sessions) {
    const bool alone = gates.emplace_back(&session->gate()).alone();
    if (!alone || session->FileIsBusy()) return Room::kBusy;
    if (!session->evicted() && session->StepIsUnderWay(options_.step_lease)) return Room::kBusy;
    if (session->last_use() > planned || session->retention().pinned) return Room::kBusy;
  }
  Room room = Room::kNone;
  for (const std::shared_ptr<Session>& session : unit.sessions) {
    Heartbeat::BeatThisThread();
    if (session->deleted()) continue;
    if (unit.action == EvictionAction::kDrop) {
      if (DropOne(unit.reason, session.get()).ok()) room = Room::kMade;
    } else if (!session->evicted()) {
      if (Evict(session.get()).ok()) room = Room::kMade;
    }
  }
  return room;
}

absl::Status Tiers::DropOne(EvictionReason reason, Session* session) {
  absl::Status s = drop_(session);
  if (!s.ok()) {
    TellOfFailure(session->config()->id, s);
    return s;
  }
  (reason == EvictionReason::kTtl ? expired_ : dropped_).fetch_add(1);
  if (options_.on_dropped) options_.on_dropped(session->config()->id, reason);
  return s;
}

}  // namespace oscarkv
