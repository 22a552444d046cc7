// How much memory tenants may take.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/btree_map.h"

namespace oscarkv {

// Of the memory that the sessions of a tenant take, in bytes; 0: none.
struct TenantQuotas {
  absl::btree_map<std::string, std::int64_t> by_tenant = {};
  std::int64_t otherwise = 0;  // of all others, each
};

}  // namespace oscarkv
