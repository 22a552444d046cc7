// What the numbers were measured on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace oscarkv::bench {

struct Machine {
  std::string processor;
  int cores = 0;                     // that this process may use
  std::int64_t cache_bytes = 0;      // of all last-level caches together
  std::int64_t memory_bytes = 0;     // of the host, or its cgroup's limit
  std::int64_t available_bytes = 0;  // of memory, now
  std::string huge_pages;            // transparent huge pages: "always", "madvise", "never" or ""
};

Machine ThisMachine();

// How much of this process's memory, its files aside, lies in huge pages: 0 to 1, if known.
std::optional<double> HugePageShare();

}  // namespace oscarkv::bench
