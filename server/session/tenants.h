// What each tenant's sessions take, and may take.
//
// Thread-safety: all functions may be called at once. The lock is a leaf.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "server/base/mutex.h"
#include "server/session/tenant_quotas.h"

namespace oscarkv {

struct TenantUse {
  TenantUse(std::string its_tenant, std::int64_t its_quota)
      : tenant(std::move(its_tenant)), quota(its_quota) {}

  bool is_full() const { return quota > 0 && resident_bytes.load() >= quota; }
  // RESOURCE_EXHAUSTED, QUOTA_EXCEEDED if it is full.
  absl::Status Check() const;

  const std::string tenant;
  const std::int64_t quota;  // 0: none
  // Of all its sessions; what they share each of them counts.
  std::atomic<std::int64_t> resident_bytes{0};
};

class Tenants {
 public:
  explicit Tenants(TenantQuotas quotas) : quotas_(std::move(quotas)) {}
  Tenants(const Tenants&) = delete;
  Tenants& operator=(const Tenants&) = delete;

  // The same for as long as someone holds it.
  std::shared_ptr<TenantUse> Of(const std::string& tenant);

 private:
  const TenantQuotas quotas_;
  Mutex mutex_;
  absl::btree_map<std::string, std::weak_ptr<TenantUse>> uses_ ABSL_GUARDED_BY(mutex_);
  std::size_t sweep_at_ ABSL_GUARDED_BY(mutex_) = 64;
};

}  // namespace oscarkv
