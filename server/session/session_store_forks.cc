// How sessions begin as others are: by a prefix, or by a fork.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/session/item_check.h"
#include "server/session/session_store_impl.h"

namespace oscarkv {

namespace {

// Whether tokens of one are what the same tokens are in the other.
bool AreAlike(const SessionConfig& a, const SessionConfig& b) {
  return a.tenant == b.tenant && a.model == b.model && a.model_revision == b.model_revision &&
         a.rope_digest == b.rope_digest && a.storage == b.storage &&
         a.position_base == b.position_base && a.layers == b.layers &&
         a.value_folded == b.value_folded;
}

}  // namespace

void SessionStore::Impl::ReusePrefix(Session* session) {
  const SessionConfig& config = *session->config();
  for (auto prefix = config.prefix_keys.rbegin(); prefix != config.prefix_keys.rend(); ++prefix) {
    for (const auto& holder : prefixes_.Find(config.tenant, prefix->key)) {
      if (!AreAlike(*holder->config(), config)) continue;
      holder->NoteUse();
      // Cheaper than to compute the prefix again.
      if (!tiers_.EnsureResident(holder.get()).ok()) continue;
      const InGate in_gate(&holder->gate());
      if (holder->deleted() || holder->evicted() || !holder->HoldsPrefix(prefix->length)) continue;
      if (holder->LendPrefix(prefix->length, session).ok()) return;
    }
  }
}

absl::Status SessionStore::Impl::BeginWith(const ParentPrefix& parent, Session* session) {
  const absl::StatusOr<std::shared_ptr<Session>> found = Find(parent.session);
  if (!found.ok()) return found.status();
  const SessionConfig& config = *session->config();
  Session& source = **found;
  // To other tenants it is not there.
  if (source.config()->tenant != config.tenant) return SessionNotFound(parent.session);
  if (!AreAlike(*source.config(), config)) {
    return InvalidField("parent.session", parent.session,
                        "a session of the same model, model_revision, rope_digest, storage_dtype, "
                        "position_base and layers");
  }
  source.NoteUse();
  return ForkFrom(&source,
                  {.generation = parent.generation,
                   .length = parent.length,
                   .field = "parent.length",
                   .create = true},
                  session)
      .status();
}

absl::StatusOr<SessionInfo> SessionStore::Impl::ForkFrom(Session* source,
                                                         const ForkRequest& request,
                                                         Session* fork) {
  const AloneInGate alone(&source->gate());
  absl::Status status = CheckNamed(*source, request.generation);
  if (!status.ok()) return status;
  SessionInfo info = source->Info();
  const std::int64_t length = request.length.value_or(info.committed_length);
  status = CheckKept(request.field, length, info.committed_length, info);
  if (status.ok()) status = tiers_.Restore(source);
  if (!status.ok()) return status;
  const auto share = [&]() ABSL_SHARED_LOCKS_REQUIRED(source->gate()) {
    return request.create ? source->LendPrefix(length, fork) : source->Fork(length, fork);
  };
  status = tiers_.WithRoom(tiers_.usual_room(), Tiers::Wait::kForRoom, share);
  if (!status.ok()) return status;
  return info;
}

void SessionStore::Impl::Fork(std::span<ForkItem> items) {
  std::vector<std::shared_ptr<Session>> forks(items.size());
  absl::btree_set<std::string> ids;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!ids.insert(items[i].session).second) {
      items[i].status =
          InvalidField("session", items[i].session, "an id that no other item of the request has");
      continue;
    }
    absl::StatusOr<std::shared_ptr<Session>> fork = MakeFork(&items[i]);
    items[i].status = fork.status();
    if (fork.ok()) forks[i] = *std::move(fork);
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (forks[i]) items[i].status = PutInPlace(std::move(forks[i]), &items[i]);
  }
}

absl::StatusOr<std::shared_ptr<Session>> SessionStore::Impl::MakeFork(ForkItem* item) {
  // What tells it from other requests, where its id is taken.
  const std::string digest =
      absl::StrCat("fork ", item->source, " ", item->generation, " ", item->length.value_or(-1));
  if (const auto other = sessions_.Find(item->session)) {
    SessionConfig asked;
    asked.id = item->session;
    asked.request_id = item->request_id;
    asked.content_digest = digest;
    absl::StatusOr<SessionInfo> info = Repeated(asked, *other);
    if (info.ok()) {
      item->info = *std::move(info);
      return nullptr;
    }
    if (!item->replace) return info.status();
  }

  if (absl::Status s = CheckUsable(item->session); !s.ok()) return s;
  const absl::StatusOr<std::shared_ptr<Session>> found = Find(item->source);
  if (!found.ok()) return found.status();
  Session& source = **found;
  source.NoteUse();  // it is not what makes room for the fork
  SessionConfig config = *source.config();
  config.id = item->session;
  config.request_id = item->request_id;
  config.content_digest = digest;
  config.prefix_keys = {};
  auto fork =
      std::make_shared<Session>(std::move(config), NewGeneration(), &budget_, &logical_bytes_);
  if (absl::Status s = ReserveFor(fork.get()); !s.ok()) return s;
  fork->CountFor(tenants_.Of(fork->config()->tenant));

  if (item->generation == 0) {
    return GenerationMismatch(0, source.generation(), source.Info().committed_length);
  }
  const absl::StatusOr<SessionInfo> forked =
      ForkFrom(&source, {.generation = item->generation, .length = item->length}, fork.get());
  if (!forked.ok()) return forked.status();
  Retention retention = forked->retention;
  retention.pinned = false;
  fork->InitRetention(retention);
  fork->NoteChange();
  return fork;
}

absl::Status SessionStore::Impl::PutInPlace(std::shared_ptr<Session> fork, ForkItem* item) {
  item->info = fork->Info();
  if (!item->replace) {
    const auto other = sessions_.Insert(fork);
    if (!other) return absl::OkStatus();
    absl::StatusOr<SessionInfo> info = Repeated(*fork->config(), *other);
    if (info.ok()) item->info = *info;
    return info.status();
  }
  // Whose place it takes may change meanwhile; the file is the fork's before anybody finds it.
  std::shared_ptr<Session> old;
  do {
    old = sessions_.Find(item->session);
    if (!old || !disk_) continue;
    if (absl::Status s = disk_->Supersede(old.get(), fork.get()); !s.ok()) return s;
  } while (!sessions_.Replace(old, fork));
  if (!old) return absl::OkStatus();
  const AloneInGate alone(&old->gate());
  prefixes_.Remove(*old);
  if (!old->deleted()) old->Delete();
  return absl::OkStatus();
}

}  // namespace oscarkv
