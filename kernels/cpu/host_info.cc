#include "kernels/cpu/host_info.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>

namespace oscarkv::cpu {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

// The number in a file; kNoLimit if there is no file or no number in it ("max").
std::int64_t LimitIn(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return kNoLimit;
  std::int64_t limit = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), limit);
  return error == std::errc() && limit > 0 ? limit : kNoLimit;
}

// The least of the limits of a cgroup and those above it.
std::int64_t LimitAlong(const std::string& mount, std::string group, const std::string& file) {
  std::int64_t limit = kNoLimit;
  while (true) {
    limit = std::min(limit, LimitIn(mount + group + "/" + file));
    const std::size_t slash = group.rfind('/');
    if (slash == std::string::npos) return limit;
    group.resize(slash);
  }
}

}  // namespace

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  utsname name{};
  return uname(&name) == 0 ? name.machine : "unknown processor";
}

std::int64_t CgroupMemoryLimit(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  std::int64_t limit = kNoLimit;
  while (std::getline(file, line)) {
    // hierarchy:controllers:path; version 2 is hierarchy 0 without controllers.
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    // With both colons for commas: each name lies between two.
    std::string controllers = line.substr(first, second - first + 1);
    controllers.front() = controllers.back() = ',';
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers == ",,") {
      limit = std::min(limit, LimitAlong(root + "/sys/fs/cgroup", path, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      limit = std::min(limit,
                       LimitAlong(root + "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"));
    }
  }
  return limit;
}

std::int64_t MemoryLimit() {
  const std::int64_t host = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) *
                            static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  return std::min(host, CgroupMemoryLimit(""));
}

}  // namespace oscarkv::cpu
