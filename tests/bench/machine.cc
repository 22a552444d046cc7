#include "tests/bench/machine.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "kernels/cpu/executor.h"
#include "kernels/cpu/host_info.h"

namespace oscarkv::bench {
namespace {

// Where the system does not say.
constexpr std::int64_t kUsualCacheBytes = std::int64_t{32} << 20;
constexpr std::int64_t kUsualMemoryBytes = std::int64_t{4} << 30;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Caches of the highest level, each once however many processors share it.
std::int64_t LastLevelCacheBytes() {
  std::map<std::string, std::int64_t> caches;  // by the processors that share one
  int highest = 0;
  const int processors = static_cast<int>(std::thread::hardware_concurrency());
  for (int processor = 0; processor < processors; ++processor) {
    for (int index = 0;; ++index) {
      std::ostringstream folder;
      folder << "/sys/devices/system/cpu/cpu" << processor << "/cache/index" << index << "/";
      const std::string level = FirstLine(folder.str() + "level");
      const std::string size = FirstLine(folder.str() + "size");
      if (level.empty() || size.empty()) break;
      if (std::stoi(level) > highest) {
        highest = std::stoi(level);
        caches.clear();
      }
      if (std::stoi(level) < highest) continue;
      const std::int64_t unit = size.back() == 'M' ? 1 << 20 : size.back() == 'K' ? 1 << 10 : 1;
      caches[FirstLine(folder.str() + "shared_cpu_list")] = std::stoll(size) * unit;
    }
  }
  std::int64_t sum = 0;
  for (const auto& [processors_of_cache, bytes] : caches) sum += bytes;
  return sum > 0 ? sum : kUsualCacheBytes;
}

// The word in brackets of "always [madvise] never".
std::string HugePages() {
  const std::string line = FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::size_t begin = line.find('[');
  const std::size_t end = line.find(']');
  return begin == std::string::npos || end == std::string::npos
             ? ""
             : line.substr(begin + 1, end - begin - 1);
}

// "Name:   123 kB" of a file of such lines, in bytes.
std::optional<std::int64_t> BytesOf(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    std::int64_t kib = 0;
    if (words >> first >> kib && first == name) return kib << 10;
  }
  return std::nullopt;
}

}  // namespace

Machine ThisMachine() {
  Machine machine;
  machine.processor = cpu::ProcessorName();
  machine.cores = cpu::MakeExecutor(0)->threads();
  machine.cache_bytes = LastLevelCacheBytes();
  machine.memory_bytes = cpu::MemoryLimit();
  machine.available_bytes = std::min(
      BytesOf("/proc/meminfo", "MemAvailable:").value_or(kUsualMemoryBytes), machine.memory_bytes);
  machine.huge_pages = HugePages();
  return machine;
}

std::optional<double> HugePageShare() {
  constexpr char kFile[] = "/proc/self/smaps_rollup";
  const std::optional<std::int64_t> all = BytesOf(kFile, "Anonymous:");
  const std::optional<std::int64_t> huge = BytesOf(kFile, "AnonHugePages:");
  if (!all || !huge || *all == 0) return std::nullopt;
  return static_cast<double>(*huge) / static_cast<double>(*all);
}

}  // namespace oscarkv::bench
