#include "server/session/tenants.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"

namespace oscarkv {

absl::Status TenantUse::Check() const {
  if (!is_full()) return absl::OkStatus();
  const std::int64_t used = resident_bytes.load();
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("the sessions of tenant \"", tenant, "\" take ", used,
                                " bytes of memory; its quota is ", quota),
                   {.reason = "QUOTA_EXCEEDED",
                    .metadata = {{"tenant", tenant},
                                 {"quota", absl::StrCat(quota)},
                                 {"used", absl::StrCat(used)}},
                    .retry_after = absl::Seconds(1)});
}

std::shared_ptr<TenantUse> Tenants::Of(const std::string& tenant) {
  MutexLock lock(&mutex_);
  std::weak_ptr<TenantUse>& known = uses_[tenant];
  std::shared_ptr<TenantUse> use = known.lock();
  if (use) return use;
  const auto own = quotas_.by_tenant.find(tenant);
  use = std::make_shared<TenantUse>(
      tenant, own == quotas_.by_tenant.end() ? quotas_.otherwise : own->second);
  known = use;
  if (uses_.size() < sweep_at_) return use;
  for (auto it = uses_.begin(); it != uses_.end();) {
    it = it->second.expired() ? uses_.erase(it) : std::next(it);
  }
  sweep_at_ = 64 + 2 * uses_.size();
  return use;
}

}  // namespace oscarkv
