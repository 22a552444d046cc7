#include "server/config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/base/string_view.h"
#include "server/session/session_limits.h"

namespace oscarkv {
namespace {

template <typename T>
struct Choice {
  const char* name;
  T value;
};

// Sets `out` to the choice of that name, if there is one.
template <typename T>
bool Choose(std::string_view name, std::initializer_list<Choice<T>> choices, T& out) {
  for (const Choice<T>& choice : choices) {
    if (name == choice.name) {
      out = choice.value;
      return true;
    }
  }
  return false;
}

bool ParseInt(std::string_view text, std::int64_t low, std::int64_t high, std::int64_t& out) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || value < low || value > high) return false;
  out = value;
  return true;
}

bool ParseInt(std::string_view text, int low, int high, int& out) {
  std::int64_t value = 0;
  if (!ParseInt(text, std::int64_t{low}, std::int64_t{high}, value)) return false;
  out = static_cast<int>(value);
  return true;
}

// More than 0, at most 1.
bool ParseFraction(std::string_view text, double& out) {
  double value = 0;
  if (!absl::SimpleAtod(ToAbsl(text), &value) || !(value > 0 && value <= 1)) return false;
  out = value;
  return true;
}

// A whole number of bytes, KiB, MiB, GiB or TiB.
bool ParseBytes(std::string_view text, std::int64_t low, std::int64_t high, std::int64_t& out) {
  constexpr std::pair<std::string_view, int> kUnits[] = {
      {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  int shift = 0;
  for (const auto& [unit, unit_shift] : kUnits) {
    if (!text.ends_with(unit)) continue;
    shift = unit_shift;
    text.remove_suffix(unit.size());
    break;
  }
  std::int64_t count = 0;
  if (!ParseInt(text, 0, std::numeric_limits<std::int64_t>::max() >> shift, count)) return false;
  const std::int64_t bytes = count << shift;
  if (bytes < low || bytes > high) return false;
  out = bytes;
  return true;
}

// none, or TENANT=BYTES, with commas between them; * is all tenants that are not named.
bool ParseQuotas(std::string_view text, TenantQuotas& out) {
  out = {};
  if (text == "none") return true;
  for (const absl::string_view piece : absl::StrSplit(ToAbsl(text), ',')) {
    const std::string_view part(piece.data(), piece.size());
    const std::size_t equals = part.find('=');
    std::int64_t bytes = 0;
    if (equals == std::string_view::npos ||
        !ParseBytes(part.substr(equals + 1), 1 << 20, std::int64_t{1} << 50, bytes)) {
      return false;
    }
    const std::string tenant(part.substr(0, equals));
    if (tenant == "*" && out.otherwise == 0) {
      out.otherwise = bytes;
    } else if ((!tenant.empty() && !limits::IsId(tenant)) ||
               !out.by_tenant.emplace(tenant, bytes).second) {
      return false;
    }
  }
  return true;
}

bool ParseDuration(std::string_view text, absl::Duration low, absl::Duration high,
                   absl::Duration& out) {
  absl::Duration value;
  if (!absl::ParseDuration(ToAbsl(text), &value) || value < low || value > high) return false;
  out = value;
  return true;
}

bool IsAddress(std::string_view text) {
  if (text.starts_with("unix:")) return text.size() > 5;
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string_view host = text.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (!bracketed && host.find(':') != std::string_view::npos) return false;
  int port = 0;
  return ParseInt(text.substr(colon + 1), 0, 65535, port);
}

// Each `set` is a captureless lambda, so that the table is all there is to a setting.
constexpr Setting kSettings[] = {
    {"address", "OSCARKV_ADDRESS", "127.0.0.1:50051",
     "host:port (port 0: any free one), [ipv6]:port or unix:path",
     "Where to listen. There is no authentication: listen beyond the loopback only on a network "
     "that you trust.",
     [](std::string_view value, Config& config) {
       config.address = value;
       return IsAddress(value);
     }},
    {"backend", "OSCARKV_BACKEND", "auto", "auto or cpu", "What computes. auto: the best there is.",
     [](std::string_view value, Config& config) {
       return Choose(value, {{"auto", BackendKind::kAuto}, {"cpu", BackendKind::kCpu}},
                     config.backend);
     }},
    {"cpu-instructions", "OSCARKV_CPU_INSTRUCTIONS", "auto",
     "auto, or what the processor has of avx512-vnni, avx512, avx2, scalar, neon-dotprod and neon",
     "Instruction set that computes on the CPU. auto: the fastest. All give the same bits.",
     [](std::string_view value, Config& config) {
       const std::vector<std::string> sets = CpuInstructionSets();
       config.cpu_instructions = value == "auto" ? "" : value;
       return value == "auto" || std::find(sets.begin(), sets.end(), value) != sets.end();
     },
     CpuInstructionSets},
    {"threads", "OSCARKV_THREADS", "0", "0 to 1024",
     "Threads that compute. 0: one for each processor that the process may use.",
     [](std::string_view value, Config& config) {
       return ParseInt(value, 0, 1024, config.threads);
     }},
    {"memory-budget", "OSCARKV_MEMORY_BUDGET", "auto",
     "auto, or 1MiB or more: a whole number of bytes, or of KiB, MiB, GiB or TiB",
     "Memory that sessions may take. auto: half of the backend's memory (cpu: of the host, or of "
     "the cgroup's limit).",
     [](std::string_view value, Config& config) {
       config.memory_budget_bytes = 0;
       return value == "auto" ||
              ParseBytes(value, 1 << 20, std::int64_t{1} << 50, config.memory_budget_bytes);
     }},
    {"data-dir", "OSCARKV_DATA_DIR", "none",
     "none, or the path of a directory, or of one to be made in a directory that is there",
     "Where sessions are kept in files: those that memory has no room for, until they are used "
     "again, and checkpoints of all, which a restart finds. Of one server at a time. Without it a "
     "full memory budget refuses, and sessions end with the process.",
     [](std::string_view value, Config& config) {
       config.data_dir = value == "none" ? "" : value;
       return !value.empty();
     }},
    {"checkpoint-interval", "OSCARKV_CHECKPOINT_INTERVAL", "60s", "10ms to 24h",
     "With --data-dir: how long what is appended waits, about, until it is in a file. So much work "
     "a crash may lose; a stop by SIGTERM writes everything.",
     [](std::string_view value, Config& config) {
       return ParseDuration(value, absl::Milliseconds(10), absl::Hours(24),
                            config.checkpoint_interval);
     }},
    {"checkpoint-tokens", "OSCARKV_CHECKPOINT_TOKENS", "0", "0 to 281474976710656",
     "With --data-dir: a session is written to its file sooner, within about a second, once so "
     "many tokens have come on all of its layers. 0: by time alone.",
     [](std::string_view value, Config& config) {
       return ParseInt(value, 0, std::int64_t{1} << 48, config.checkpoint_tokens);
     }},
    {"when-full", "OSCARKV_WHEN_FULL", "refuse", "refuse or drop",
     "Without --data-dir, what happens where memory is full. refuse: requests that need more fail "
     "with RESOURCE_EXHAUSTED. drop: sessions are deleted, those of the lowest priority first, and "
     "among these the least recently used, never pinned ones.",
     [](std::string_view value, Config& config) {
       return Choose(value, {{"refuse", false}, {"drop", true}}, config.drop_when_full);
     }},
    {"high-watermark", "OSCARKV_HIGH_WATERMARK", "0.95",
     "a part of --memory-budget: more than 0, at most 1, and no less than --low-watermark",
     "Where more of the memory is in use, sessions move to their files, or are dropped.",
     [](std::string_view value, Config& config) {
       return ParseFraction(value, config.high_watermark);
     }},
    {"low-watermark", "OSCARKV_LOW_WATERMARK", "0.85",
     "a part of --memory-budget: more than 0, at most 1",
     "How much of the memory may be in use once they have.",
     [](std::string_view value, Config& config) {
       return ParseFraction(value, config.low_watermark);
     }},
    {"tenant-quota", "OSCARKV_TENANT_QUOTA", "none",
     "none, or TENANT=BYTES, with commas between several; * stands for each tenant that is not "
     "named, nothing for sessions without one; bytes as of --memory-budget",
     "Memory that the sessions of a tenant may take, each counting what it shares. A tenant that "
     "takes as much gets no more for tokens, but what its own sessions free as they move to their "
     "files, or are dropped: least recently used first. Else its steps are refused with "
     "RESOURCE_EXHAUSTED. What it takes may be more by the steps that were under way.",
     [](std::string_view value, Config& config) { return ParseQuotas(value, config.quotas); }},
    {"fsync", "OSCARKV_FSYNC", "always", "always or never",
     "With --data-dir: always: a checkpoint counts when the disk has it, and survives a loss of "
     "power. never: when the operating system has it; it survives the end of the process, also by "
     "kill -9, but a loss of power or a crash of the machine may lose or damage any file written "
     "in the last minutes. What is damaged is found and set aside, never served.",
     [](std::string_view value, Config& config) {
       return Choose(value, {{"always", Durability::kSynced}, {"never", Durability::kWritten}},
                     config.durability);
     }},
    {"profile", "OSCARKV_PROFILE", "dense", "dense, precise, paper or kivi",
     "Codec profile of sessions that name none.",
     [](std::string_view value, Config& config) {
       return Choose(value,
                     {{"dense", Profile::kDense},
                      {"precise", Profile::kPrecise},
                      {"paper", Profile::kPaper},
                      {"kivi", Profile::kKivi}},
                     config.profile);
     }},
    {"max-message-bytes", "OSCARKV_MAX_MESSAGE_BYTES", "64MiB",
     "2MiB to 2047MiB: a whole number of bytes, or of KiB, MiB or GiB",
     "The largest message received, and the largest sent. Clients learn it from GetServerInfo.",
     [](std::string_view value, Config& config) {
       return ParseBytes(value, 2 << 20, std::int64_t{2047} << 20, config.max_message_bytes);
     }},
    {"max-concurrent-requests", "OSCARKV_MAX_CONCURRENT_REQUESTS", "256", "1 to 65536",
     "Requests of one tenant that are queued or under way; more are refused with "
     "RESOURCE_EXHAUSTED. Several tenants share an eighth more. A stream counts while it is being "
     "answered.",
     [](std::string_view value, Config& config) {
       return ParseInt(value, 1, 65536, config.max_concurrent_requests);
     }},
    {"settle-after", "OSCARKV_SETTLE_AFTER", "60s", "10ms to 24h",
     "Idle time after which the tokens of a session's finished steps are compressed. Steps that "
     "follow do so by themselves.",
     [](std::string_view value, Config& config) {
       return ParseDuration(value, absl::Milliseconds(10), absl::Hours(24), config.settle_after);
     }},
    {"step-lease", "OSCARKV_STEP_LEASE", "10s", "10ms to 1h",
     "Time after its last append in which a session whose layers have different lengths is not "
     "evicted, and keeps the memory that its first layer took for the others.",
     [](std::string_view value, Config& config) {
       return ParseDuration(value, absl::Milliseconds(10), absl::Hours(1), config.step_lease);
     }},
    {"shutdown-grace", "OSCARKV_SHUTDOWN_GRACE", "10s", "0s to 1h",
     "Time that requests under way have to end once the server is told to stop.",
     [](std::string_view value, Config& config) {
       return ParseDuration(value, absl::ZeroDuration(), absl::Hours(1), config.shutdown_grace);
     }},
    {"metrics-address", "OSCARKV_METRICS_ADDRESS", "127.0.0.1:9464",
     "off, or host:port, a name or IPv4 (port 0: any free one)",
     "Where Prometheus finds /metrics, over HTTP. Whoever reaches it may read it.",
     [](std::string_view value, Config& config) {
       config.metrics_address = value == "off" ? "" : value;
       return value == "off" ||
              (IsAddress(value) && !value.starts_with("unix:") && !value.starts_with("["));
     }},
    {"log-level", "OSCARKV_LOG_LEVEL", "info", "debug, info, warn or error",
     "The least important events that are logged. debug: every request.",
     [](std::string_view value, Config& config) {
       return Choose(value,
                     {{"debug", LogLevel::kDebug},
                      {"info", LogLevel::kInfo},
                      {"warn", LogLevel::kWarn},
                      {"error", LogLevel::kError}},
                     config.log_level);
     }},
    {"log-format", "OSCARKV_LOG_FORMAT", "text", "text or json",
     "Form of the log's lines, which go to standard error.",
     [](std::string_view value, Config& config) {
       return Choose(value, {{"text", LogFormat::kText}, {"json", LogFormat::kJson}},
                     config.log_format);
     }},
};

absl::Status SettingError(const Setting& setting, std::string_view value) {
  std::string message = absl::StrCat("--", setting.flag, " (", setting.environment, ") is `",
                                     ToAbsl(value), "`; expected ", setting.expected);
  if (setting.possible != nullptr) {
    absl::StrAppend(&message, "; this machine has ", absl::StrJoin(setting.possible(), ", "));
  }
  return absl::InvalidArgumentError(message);
}

}  // namespace

std::span<const Setting> Settings() { return kSettings; }

absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv) {
  CLI::App app("Holds KV caches of LLM sessions compressed, and computes attention on them.",
               "oscarkv-server");
  app.set_version_flag("--version", absl::StrCat("oscarkv-server ", ToAbsl(ServerVersion())));
  std::vector<std::string> values(std::size(kSettings));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Setting& setting = kSettings[i];
    values[i] = setting.default_value;
    app.add_option(absl::StrCat("--", setting.flag), values[i],
                   absl::StrCat(setting.help, "\nExpects ", setting.expected,
                                ". Default: ", setting.default_value, "."))
        ->envname(setting.environment)
        ->option_text(absl::StrCat("VALUE  (", setting.environment, ")"));
  }
  CommandLine result;
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success&) {
    result.text = app.get_option("--version")->count() > 0
                      ? absl::StrCat("oscarkv-server ", ToAbsl(ServerVersion()), "\n")
                      : app.help();
    return result;
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(error.what());
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!kSettings[i].set(values[i], result.config)) return SettingError(kSettings[i], values[i]);
  }
  if (result.config.low_watermark > result.config.high_watermark) {
    return absl::InvalidArgumentError(
        absl::StrCat("--low-watermark (OSCARKV_LOW_WATERMARK) is `", result.config.low_watermark,
                     "`; expected at most --high-watermark, ", result.config.high_watermark));
  }
  return result;
}

std::string SettingsAsMarkdown() {
  std::string table =
      "| Flag | Environment variable | Default | Expects | What it does |\n"
      "| --- | --- | --- | --- | --- |\n";
  for (const Setting& setting : kSettings) {
    absl::StrAppend(&table, "| `--", setting.flag, "` | `", setting.environment, "` | `",
                    setting.default_value, "` | ", setting.expected, " | ", setting.help, " |\n");
  }
  return table;
}

std::string_view ServerVersion() { return OSCARKV_VERSION; }

}  // namespace oscarkv
