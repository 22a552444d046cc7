#include "server/session/session_store.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/session/session_export.h"
#include "server/session/session_import.h"
#include "server/session/session_store_impl.h"

namespace oscarkv {

std::optional<std::size_t> SessionConfig::IndexOf(int layer) const {
  const auto it =
      std::lower_bound(layers.begin(), layers.end(), layer,
                       [](const LayerSpec& spec, int wanted) { return spec.layer < wanted; });
  if (it == layers.end() || it->layer != layer) return std::nullopt;
  return static_cast<std::size_t>(it - layers.begin());
}

SessionStore::SessionStore(Backend* backend, const StoreOptions& options)
    : impl_(std::make_unique<Impl>(backend, options)) {}
SessionStore::~SessionStore() = default;

absl::StatusOr<SessionInfo> SessionStore::Create(SessionConfig config, const Retention& retention,
                                                 const std::optional<ParentPrefix>& parent) {
  return impl_->Create(std::move(config), retention, parent);
}

absl::StatusOr<SessionInfo> SessionStore::Get(std::string_view id) const {
  const absl::StatusOr<std::shared_ptr<Session>> session = impl_->Find(id);
  if (!session.ok()) return session.status();
  return (*session)->Info();
}

std::optional<LayerStats> SessionStore::StatsOf(std::string_view id, int layer) const {
  const absl::StatusOr<std::shared_ptr<Session>> session = impl_->Find(id);
  if (!session.ok()) return std::nullopt;
  const std::optional<std::size_t> index = (*session)->IndexOf(layer);
  if (!index) return std::nullopt;
  return (*session)->Published(*index);
}

std::vector<SessionInfo> SessionStore::List(std::string_view after, int limit,
                                            std::optional<std::string_view> tenant) const {
  std::vector<SessionInfo> infos;
  const auto most = static_cast<std::size_t>(std::max(limit, 0));
  for (const auto& session : impl_->sessions().List(after, most, tenant)) {
    infos.push_back(session->Info());
  }
  return infos;
}

absl::Status SessionStore::Delete(std::string_view id, std::uint64_t generation) {
  return impl_->Delete(id, generation);
}

absl::StatusOr<SessionInfo> SessionStore::Truncate(std::string_view id, std::string_view request_id,
                                                   std::uint64_t generation, std::int64_t length) {
  return impl_->Truncate(
      id, {.request_id = std::string(request_id), .generation = generation, .length = length});
}

absl::StatusOr<SessionInfo> SessionStore::SetRetention(std::string_view id,
                                                       std::uint64_t generation,
                                                       const Retention& retention) {
  return impl_->SetRetention(id, generation, retention);
}

void SessionStore::Fork(std::span<ForkItem> items) { impl_->Fork(items); }

absl::StatusOr<std::shared_ptr<const SessionConfig>> SessionStore::ConfigOf(
    std::string_view id) const {
  const absl::StatusOr<std::shared_ptr<Session>> session = impl_->Find(id);
  if (!session.ok()) return session.status();
  return (*session)->config();
}

void SessionStore::Append(std::span<BatchItem* const> items) {
  impl_->RunBatch(items, BatchKind::kAppend);
}

void SessionStore::Attend(std::span<BatchItem* const> items) {
  impl_->RunBatch(items, BatchKind::kAttend);
}

absl::Status SessionStore::Read(const std::shared_ptr<const SessionConfig>& config,
                                std::uint64_t generation, int layer, std::int64_t begin,
                                std::int64_t tokens, std::uint16_t* keys,
                                std::uint16_t* values) const {
  return impl_->Read(
      config, generation, layer,
      {.layer = {}, .begin = begin, .tokens = tokens, .keys = keys, .values = values});
}

absl::StatusOr<std::unique_ptr<SessionExport>> SessionStore::Export(std::string_view id,
                                                                    std::uint64_t generation) {
  return impl_->Export(id, generation);
}

std::unique_ptr<SessionImport> SessionStore::Import(ImportOptions options) {
  return impl_->Import(std::move(options));
}

absl::StatusOr<RecoveryReport> SessionStore::Recover() { return impl_->Recover(); }

absl::StatusOr<SessionInfo> SessionStore::Evict(std::string_view id, std::uint64_t generation) {
  return impl_->Move(id, generation, TierMove::kEvict);
}

absl::StatusOr<SessionInfo> SessionStore::Restore(std::string_view id, std::uint64_t generation) {
  return impl_->Move(id, generation, TierMove::kRestore);
}

absl::StatusOr<SessionInfo> SessionStore::Checkpoint(std::string_view id,
                                                     std::uint64_t generation) {
  return impl_->Move(id, generation, TierMove::kCheckpoint);
}

absl::Status SessionStore::CheckpointAll() { return impl_->CheckpointAll(); }

void SessionStore::Settle() { impl_->settler().SettleAll(); }

StoreTotals SessionStore::Totals() const { return impl_->Totals(); }

absl::Status SessionStore::Health() const { return impl_->Health(); }

}  // namespace oscarkv
