#include "server/session/session_store_impl.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/base/kernel_status.h"
#include "server/session/item_check.h"

namespace oscarkv {

absl::StatusOr<SessionInfo> SessionStore::Impl::Create(SessionConfig config,
                                                       const Retention& retention,
                                                       const std::optional<ParentPrefix>& parent) {
  // A repeat needs no memory.
  if (const auto other = sessions_.Find(config.id)) return Repeated(config, *other);
  if (absl::Status s = CheckUsable(config.id); !s.ok()) return s;
  const auto session =
      std::make_shared<Session>(std::move(config), NewGeneration(), &budget_, &logical_bytes_);
  if (absl::Status s = ReserveFor(session.get()); !s.ok()) return s;
  session->CountFor(tenants_.Of(session->config()->tenant));
  session->InitRetention(retention);
  if (!parent) {
    ReusePrefix(session.get());
  } else if (absl::Status s = BeginWith(*parent, session.get()); !s.ok()) {
    return s;
  }
  if (const auto other = sessions_.Insert(session)) return Repeated(*session->config(), *other);
  const InGate in_gate(&session->gate());  // where it is not deleted meanwhile
  if (!session->deleted()) prefixes_.Add(session);
  return session->Info();
}

absl::Status SessionStore::Impl::CheckNamed(const Session& session, std::uint64_t generation) {
  if (session.deleted()) return SessionNotFound(session.config()->id);
  const std::uint64_t current = session.generation();
  if (generation == 0 || generation == current) return absl::OkStatus();
  return GenerationMismatch(generation, current, session.Info().committed_length);
}

absl::Status SessionStore::Impl::ReserveFor(Session* session) {
  return tiers_.WithRoom(tiers_.usual_room(), Tiers::Wait::kForRoom, [&] {
    if (session->ReserveOwnMemory()) return absl::OkStatus();
    return OutOfMemory(absl::StrCat("the memory budget of ", budget_.total(),
                                    " bytes has no room for another session"));
  });
}

absl::StatusOr<SessionInfo> SessionStore::Impl::Repeated(const SessionConfig& asked,
                                                         const Session& other) {
  const SessionConfig& there = *other.config();
  if (asked.request_id == there.request_id && asked.content_digest == there.content_digest) {
    return other.Info();
  }
  return MakeError(
      absl::StatusCode::kAlreadyExists,
      absl::StrCat("session \"", asked.id, "\" exists, made by another request"),
      {.reason = "SESSION_EXISTS", .metadata = {{"field", "session"}, {"value", asked.id}}});
}

absl::StatusOr<std::shared_ptr<Session>> SessionStore::Impl::Find(std::string_view id) const {
  std::shared_ptr<Session> session = sessions_.Find(id);
  if (!session) return SessionNotFound(id);
  return session;
}

absl::Status SessionStore::Impl::Delete(std::string_view id, std::uint64_t generation) {
  const absl::StatusOr<std::shared_ptr<Session>> found = Find(id);
  if (!found.ok()) return found.status();
  Session& session = **found;
  session.AwaitFile();
  const AloneInGate alone(&session.gate());
  if (absl::Status s = CheckNamed(session, generation); !s.ok()) return s;
  return DeleteFound(&session);
}

absl::Status SessionStore::Impl::DeleteFound(Session* session) {
  if (disk_) {
    if (absl::Status s = disk_->Remove(session); !s.ok()) return s;
  }
  session->Delete();
  prefixes_.Remove(*session);
  sessions_.Erase(*session);  // a fork may have taken its place
  return absl::OkStatus();
}

absl::StatusOr<SessionInfo> SessionStore::Impl::SetRetention(std::string_view id,
                                                             std::uint64_t generation,
                                                             const Retention& retention) {
  const absl::StatusOr<std::shared_ptr<Session>> found = Find(id);
  if (!found.ok()) return found.status();
  Session& session = **found;
  const AloneInGate alone(&session.gate());
  if (absl::Status s = CheckNamed(session, generation); !s.ok()) return s;
  session.SetRetention(retention);
  return session.Info();
}

absl::StatusOr<SessionInfo> SessionStore::Impl::Truncate(std::string_view id,
                                                         const TruncateRecord& asked) {
  const absl::StatusOr<std::shared_ptr<Session>> found = Find(id);
  if (!found.ok()) return found.status();
  Session& session = **found;
  session.NoteUse();
  session.AwaitFile();
  const AloneInGate alone(&session.gate());
  if (session.deleted()) return SessionNotFound(id);
  const SessionInfo info = session.Info();
  if (session.IsRepeat(asked)) return info;
  if (asked.generation != info.generation) {
    return GenerationMismatch(asked.generation, info.generation, info.committed_length);
  }
  std::int64_t longest = 0;
  for (const LayerStats& layer : info.layers) longest = std::max(longest, layer.length);
  absl::Status status = CheckKept("length", asked.length, longest, info);
  if (status.ok()) status = tiers_.Restore(&session);
  const std::uint64_t new_generation = NewGeneration();
  if (status.ok()) session.NoteChange();  // also if it fails half-way: then its file lacks tokens
  if (status.ok() && disk_) status = disk_->Truncate(asked, new_generation, &session);
  if (!status.ok()) return status;
  session.Truncate(asked, new_generation);
  return session.Info();
}

absl::Status SessionStore::Impl::Read(const std::shared_ptr<const SessionConfig>& config,
                                      std::uint64_t generation, int layer,
                                      const ReadItem& request) {
  absl::StatusOr<std::shared_ptr<Session>> found = Find(config->id);
  if (!found.ok()) return found.status();
  if ((*found)->config() != config) {
    const SessionInfo info = (*found)->Info();
    return GenerationMismatch(generation, info.generation, info.committed_length);
  }
  const std::optional<std::size_t> index = (*found)->IndexOf(layer);
  if (!index) return LayerNotFound(config->id, layer);
  (*found)->NoteUse();
  if (absl::Status s = tiers_.EnsureResident(found->get()); !s.ok()) return s;
  const LayerLease lease(*std::move(found), *index);
  if (lease.session().deleted()) return SessionNotFound(config->id);
  if (lease.session().evicted()) {
    return MakeError(absl::StatusCode::kUnavailable, "the session was evicted meanwhile",
                     {.reason = "SESSION_EVICTED", .retry_after = absl::Milliseconds(10)});
  }
  const std::uint64_t current = lease.session().generation();
  const std::int64_t length = lease.state().length();
  if (generation != current) return GenerationMismatch(generation, current, length);
  if (request.begin < 0 || request.begin > length) {
    return InvalidField("begin", absl::StrCat(request.begin), absl::StrCat("0 to ", length));
  }
  if (request.tokens < 0 || request.tokens > length - request.begin) {
    return InvalidField("num_tokens", absl::StrCat(request.tokens),
                        absl::StrCat("0 to ", length - request.begin));
  }
  if (request.tokens == 0) return absl::OkStatus();
  const std::int64_t kept_from = lease.state().kept_from();
  if (request.begin < kept_from &&
      request.begin + request.tokens > lease.state().spec().codec.sinks) {
    return TokensFreed("begin", request.begin, kept_from);
  }
  ReadItem item = request;
  item.layer = lease.state().View();
  return FromKernelStatus(backend_->ReadTokens(std::span(&item, 1)));
}

bool SessionStore::Impl::TryAgain(std::span<BatchItem* const> refused, BatchKind kind,
                                  absl::FunctionRef<bool()> make_room) {
  try {
    if (!make_room()) return false;
    Batch(context(), refused, kind).Run();
    return true;
  } catch (const std::bad_alloc&) {  // none of these is applied, but others may be
    for (BatchItem* item : refused) item->status = no_host_memory_;
    return false;
  }
}

void SessionStore::Impl::RunBatch(std::span<BatchItem* const> items, BatchKind kind) {
  std::vector<BatchItem*> refused;
  refused.reserve(tiers_.can_make_room() ? items.size() : 0);
  Batch(context(), items, kind).Run();
  if (!tiers_.can_make_room()) return;
  const auto find_refused = [&](bool by_quota) {
    refused.clear();
    for (BatchItem* item : items) {
      if (absl::IsResourceExhausted(item->status) && item->over_quota == by_quota) {
        refused.push_back(item);
      }
    }
    return !refused.empty();
  };
  if (find_refused(true)) {
    TryAgain(refused, kind, [&] {
      std::vector<std::string_view> wanted;  // to make room with these would be no use
      for (const BatchItem* item : refused) wanted.push_back(item->session);
      return tiers_.KeepToQuotas(wanted);
    });
  }
  std::optional<Tiers::Patience> patience;
  std::size_t before = items.size() + 1;
  while (find_refused(false)) {
    // As many as memory has room for go at once.
    if (refused.size() < std::exchange(before, refused.size())) patience.emplace(&tiers_);
    if (!TryAgain(refused, kind, [&] { return patience->TryAgain(tiers_.usual_room()); })) return;
  }
}

StoreTotals SessionStore::Impl::Totals() const {
  const BackendInfo backend = backend_->Info();
  StoreTotals totals = {
      .sessions = static_cast<std::int64_t>(sessions_.size()),
      .budget_bytes = budget_.total(),
      .resident_bytes = budget_.used(),
      .logical_bytes = logical_bytes_.load(std::memory_order_relaxed),
      .block_bytes = backend.block_bytes,
      .held_bytes = backend.held_bytes,
      .evictions = tiers_.evictions().Successes(),
      .restores = tiers_.restores().Successes(),
      .checkpoints = tiers_.checkpoints().Successes(),
      .eviction_failures = tiers_.evictions().failures,
      .restore_failures = tiers_.restores().failures,
      .checkpoint_failures = tiers_.checkpoints().failures,
      .tier_failures = tiers_.evictions().failures + tiers_.checkpoints().failures,
      .eviction_times = tiers_.evictions().times.Read(),
      .restore_times = tiers_.restores().times.Read(),
      .checkpoint_times = tiers_.checkpoints().times.Read(),
      .expired_sessions = tiers_.expired(),
      .dropped_sessions = tiers_.dropped(),
      .restores_within_minute = tiers_.restores_within_minute(),
      .passes = tiers_.passes(),
      .failed_passes = tiers_.failed_passes(),
      .settle_failures = settler_.failures(),
      .pages_prepared = preparer_.pages(),
      .prepare_failures = preparer_.failures()};
  for (std::size_t kind = 0; kind < kMemoryKinds; ++kind) {
    totals.resident_bytes_of[kind] = budget_.used(static_cast<MemoryKind>(kind));
  }
  totals.resident_bytes -=
      totals.resident_bytes_of[static_cast<std::size_t>(MemoryKind::kPromised)];
  if (disk_) {
    totals.file_written_bytes = disk_->written_bytes();
    totals.file_read_bytes = disk_->read_bytes();
  }
  AddSessions(&totals);
  return totals;
}

void SessionStore::Impl::AddSessions(StoreTotals* totals) const {
  const auto now = std::chrono::steady_clock::now();
  auto oldest = now;
  for (const std::shared_ptr<Session>& session : sessions_.All()) {
    const Session::Glance glance = session->LookAt();
    totals->evicted_sessions += glance.evicted ? 1 : 0;
    (glance.evicted ? totals->evicted_tokens : totals->tokens) += glance.committed_length;
    totals->pages_sealed_without_queries += glance.pages_sealed_without_queries;
    if (disk_) oldest = std::min(oldest, session->unsaved_since().value_or(now));
  }
  totals->checkpoint_lag = absl::FromChrono(now - oldest);
}

}  // namespace oscarkv
