// Settings of the server: one table, from which come the flags, the environment variables, --help
// and docs/configuration.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/api/profiles.h"
#include "kernels/backend_factory.h"
#include "server/file/durability.h"
#include "server/log.h"
#include "server/session/tenant_quotas.h"

namespace oscarkv {

struct Config {
  std::string address = "127.0.0.1:50051";  // host:port, port 0: any free one; or unix:path
  BackendKind backend = BackendKind::kAuto;
  std::string cpu_instructions;               // of CpuInstructionSets(); empty: the fastest
  int threads = 0;                            // 0: one per processor that this process may use
  std::int64_t memory_budget_bytes = 0;       // 0: half of the backend's memory
  Profile profile = Profile::kDense;          // of sessions that name none
  std::int64_t max_message_bytes = 64 << 20;  // in each direction
  int max_concurrent_requests = 256;          // queued or under way
  std::string data_dir;                       // empty: none
  Durability durability = Durability::kSynced;
  absl::Duration checkpoint_interval = absl::Seconds(60);
  std::int64_t checkpoint_tokens = 0;  // 0: by time alone
  bool drop_when_full = false;         // where there is no data_dir
  TenantQuotas quotas = {};
  double high_watermark = 0.95;
  double low_watermark = 0.85;
  absl::Duration settle_after = absl::Seconds(60);
  absl::Duration step_lease = absl::Seconds(10);
  absl::Duration shutdown_grace = absl::Seconds(10);
  // host:port (IPv4), port 0: any free one; empty: none. The program's default is another: servers
  // in the process of a test or a tool would get in each other's way.
  std::string metrics_address;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
};

struct Setting {
  const char* flag;  // without the dashes
  const char* environment;
  const char* default_value;
  const char* expected;
  const char* help;
  // Sets the field; false if `value` is not as expected.
  bool (*set)(std::string_view value, Config& config);
  // What this machine has of what is expected; null: all.
  std::vector<std::string> (*possible)() = nullptr;
};

std::span<const Setting> Settings();

struct CommandLine {
  Config config;
  std::string text;  // not empty: print it (--help, --version) and end
};

// Flags win over environment variables, which win over defaults. INVALID_ARGUMENT, with a message
// for people, names the flag, its value and what was expected.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, const char* const* argv);

// The table in docs/configuration.md.
std::string SettingsAsMarkdown();

std::string_view ServerVersion();

}  // namespace oscarkv
