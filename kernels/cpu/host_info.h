// What this host is, for people and for memory budgets.
#pragma once

#include <cstdint>
#include <string>

namespace oscarkv::cpu {

// The processor's name as the system tells it, else the architecture's.
std::string ProcessorName();

// Bytes of memory that this process may use: of the host, or of its cgroup (version 1 or 2) if that
// is less.
std::int64_t MemoryLimit();

// The part of MemoryLimit that reads cgroups, on files below `root` ("" for the host's own):
// the least limit of the cgroups that /proc/self/cgroup names and of those above them, or
// INT64_MAX if there is none.
std::int64_t CgroupMemoryLimit(const std::string& root);

}  // namespace oscarkv::cpu
