#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"

namespace oscarkv {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<CommandLine> Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "oscarkv-server");
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

// Sets an environment variable until the end of the scope.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(ConfigTest, DefaultsOfTheTableAreThoseOfTheStruct) {
  const absl::StatusOr<CommandLine> parsed = Parse({});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const Config defaults;
  EXPECT_EQ(parsed->config.address, defaults.address);
  EXPECT_EQ(parsed->config.backend, defaults.backend);
  EXPECT_EQ(parsed->config.cpu_instructions, defaults.cpu_instructions);
  EXPECT_EQ(parsed->config.threads, defaults.threads);
  EXPECT_EQ(parsed->config.memory_budget_bytes, defaults.memory_budget_bytes);
  EXPECT_EQ(parsed->config.profile, defaults.profile);
  EXPECT_EQ(parsed->config.max_message_bytes, defaults.max_message_bytes);
  EXPECT_EQ(parsed->config.max_concurrent_requests, defaults.max_concurrent_requests);
  EXPECT_EQ(parsed->config.data_dir, defaults.data_dir);
  EXPECT_EQ(parsed->config.checkpoint_interval, defaults.checkpoint_interval);
  EXPECT_EQ(parsed->config.durability, defaults.durability);
  EXPECT_EQ(parsed->config.checkpoint_tokens, defaults.checkpoint_tokens);
  EXPECT_EQ(parsed->config.drop_when_full, defaults.drop_when_full);
  EXPECT_TRUE(parsed->config.quotas.by_tenant.empty());
  EXPECT_EQ(parsed->config.quotas.otherwise, 0);
  EXPECT_EQ(parsed->config.high_watermark, defaults.high_watermark);
  EXPECT_EQ(parsed->config.low_watermark, defaults.low_watermark);
  EXPECT_EQ(parsed->config.settle_after, defaults.settle_after);
  EXPECT_EQ(parsed->config.step_lease, defaults.step_lease);
  EXPECT_EQ(parsed->config.shutdown_grace, defaults.shutdown_grace);
  EXPECT_EQ(parsed->config.metrics_address, "127.0.0.1:9464");
  EXPECT_EQ(defaults.metrics_address, "");  // of servers in the process of a test or a tool
  EXPECT_EQ(parsed->config.log_level, defaults.log_level);
  EXPECT_EQ(parsed->config.log_format, defaults.log_format);
}

TEST(ConfigTest, EveryFlagSetsItsField) {
  const std::string instructions = "--cpu-instructions=" + CpuInstructionSets().back();
  const absl::StatusOr<CommandLine> parsed = Parse({"--address=[::1]:0",
                                                    "--backend=cpu",
                                                    instructions.c_str(),
                                                    "--threads=3",
                                                    "--memory-budget=2GiB",
                                                    "--profile=kivi",
                                                    "--max-message-bytes=4194304",
                                                    "--max-concurrent-requests",
                                                    "7",
                                                    "--data-dir=/some/where",
                                                    "--checkpoint-interval=5s",
                                                    "--fsync=never",
                                                    "--tenant-quota=red-1=3GiB,*=1TiB,=4MiB",
                                                    "--checkpoint-tokens=4096",
                                                    "--when-full=drop",
                                                    "--high-watermark=0.5",
                                                    "--low-watermark=0.25",
                                                    "--settle-after=1500ms",
                                                    "--step-lease=3s",
                                                    "--shutdown-grace=0s",
                                                    "--metrics-address=0.0.0.0:0",
                                                    "--log-level=error",
                                                    "--log-format=json"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const Config& config = parsed->config;
  EXPECT_EQ(config.address, "[::1]:0");
  EXPECT_EQ(config.backend, BackendKind::kCpu);
  EXPECT_EQ(config.cpu_instructions, CpuInstructionSets().back());
  EXPECT_EQ(config.threads, 3);
  EXPECT_EQ(config.memory_budget_bytes, std::int64_t{2} << 30);
  EXPECT_EQ(config.profile, Profile::kKivi);
  EXPECT_EQ(config.max_message_bytes, 4 << 20);
  EXPECT_EQ(config.max_concurrent_requests, 7);
  EXPECT_EQ(config.data_dir, "/some/where");
  EXPECT_EQ(config.checkpoint_interval, absl::Seconds(5));
  EXPECT_EQ(config.durability, Durability::kWritten);
  EXPECT_EQ(config.metrics_address, "0.0.0.0:0");
  EXPECT_EQ(config.checkpoint_tokens, 4096);
  EXPECT_TRUE(config.drop_when_full);
  EXPECT_EQ(config.quotas.by_tenant, (absl::btree_map<std::string, std::int64_t>{
                                         {"", 4 << 20}, {"red-1", std::int64_t{3} << 30}}));
  EXPECT_EQ(config.quotas.otherwise, std::int64_t{1} << 40);
  EXPECT_EQ(config.high_watermark, 0.5);
  EXPECT_EQ(config.low_watermark, 0.25);
  EXPECT_EQ(config.settle_after, absl::Milliseconds(1500));
  EXPECT_EQ(config.step_lease, absl::Seconds(3));
  EXPECT_EQ(config.shutdown_grace, absl::ZeroDuration());
  EXPECT_EQ(config.log_level, LogLevel::kError);
  EXPECT_EQ(config.log_format, LogFormat::kJson);
}

TEST(ConfigTest, FlagsWinOverTheEnvironmentWhichWinsOverDefaults) {
  const Environment threads("OSCARKV_THREADS", "5");
  const Environment profile("OSCARKV_PROFILE", "paper");
  const absl::StatusOr<CommandLine> parsed = Parse({"--threads", "6"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->config.threads, 6);
  EXPECT_EQ(parsed->config.profile, Profile::kPaper);
}

TEST(ConfigTest, BadValuesNameFlagValueAndWhatIsExpected) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> kBad = {
      {"address",
       {"", "localhost", ":1", "a:b", "host:-1", "host:65536", "host:1x", "::1:80", "unix:"}},
      {"backend", {"", "gpu", "CPU"}},
      {"cpu-instructions", {"", "AVX2", "avx", "avx9", "auto,scalar"}},
      {"threads", {"", "-1", "1025", "2x", "1.5", "99999999999999999999"}},
      {"memory-budget", {"", "0", "1048575", "-1GiB", "GiB", "1GB", "1 GiB", "9999999999TiB"}},
      {"profile", {"", "DENSE", "fast"}},
      {"max-message-bytes", {"", "0", "1MiB", "2048MiB", "64M"}},
      {"max-concurrent-requests", {"", "0", "65537", "many"}},
      {"data-dir", {""}},
      {"checkpoint-interval", {"", "1ms", "25h", "10"}},
      {"checkpoint-tokens", {"", "-1", "1k", "281474976710657"}},
      {"when-full", {"", "DROP", "evict"}},
      {"tenant-quota",
       {"", "1GiB", "a=", "a=1KiB", "a=1GiB,", "a=1GiB,a=2GiB", "*=1GiB,*=1GiB", "a b=1GiB",
        "**=1GiB"}},
      {"high-watermark", {"", "0", "-0.5", "1.01", "nan", "95%"}},
      {"low-watermark", {"", "0", "2", "nan", "half"}},
      {"fsync", {"", "on", "ALWAYS"}},
      {"settle-after", {"", "5", "-5s", "1ms", "25h", "inf"}},
      {"step-lease", {"", "5", "-5s", "1ms", "61m", "inf"}},
      {"shutdown-grace", {"", "-1s", "61m", "soon"}},
      {"metrics-address", {"", "on", "localhost", ":9464", "[::1]:9464", "unix:/tmp/m", "h:65536"}},
      {"log-level", {"", "trace"}},
      {"log-format", {"", "xml"}},
  };
  ASSERT_EQ(kBad.size(), Settings().size());
  for (const auto& [flag, values] : kBad) {
    const auto setting = std::find_if(Settings().begin(), Settings().end(),
                                      [name = flag](const Setting& s) { return s.flag == name; });
    ASSERT_NE(setting, Settings().end()) << flag;
    for (const std::string& value : values) {
      Config config;
      EXPECT_FALSE(setting->set(value, config)) << flag << " " << value;
      if (value.empty()) continue;  // CLI11's own message
      const std::string argument = "--" + flag + "=" + value;
      const absl::Status status = Parse({argument.c_str()}).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << argument;
      const std::string message(status.message());
      EXPECT_THAT(message, HasSubstr("--" + flag));
      EXPECT_THAT(message, HasSubstr("`" + value + "`"));
      EXPECT_THAT(message, HasSubstr(setting->expected));
    }
  }
}

TEST(ConfigTest, TheLowWatermarkIsBelowTheHighOne) {
  EXPECT_TRUE(Parse({"--low-watermark=0.9", "--high-watermark=0.9"}).ok());
  const absl::Status status = Parse({"--low-watermark=0.91", "--high-watermark=0.9"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("`0.91`"));
}

TEST(ConfigTest, OnlyInstructionsOfThisProcessorAreTaken) {
  const std::vector<std::string> sets = CpuInstructionSets();
  for (const char* name : {"avx512-vnni", "avx512", "avx2", "scalar", "neon-dotprod", "neon"}) {
    const std::string argument = std::string("--cpu-instructions=") + name;
    const absl::StatusOr<CommandLine> parsed = Parse({argument.c_str()});
    if (std::find(sets.begin(), sets.end(), name) != sets.end()) {
      ASSERT_TRUE(parsed.ok()) << parsed.status();
      EXPECT_EQ(parsed->config.cpu_instructions, name);
    } else {
      EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << name;
      EXPECT_THAT(std::string(parsed.status().message()),
                  HasSubstr("; this machine has " + absl::StrJoin(sets, ", ")));
    }
  }
  EXPECT_EQ(Parse({"--cpu-instructions=auto"})->config.cpu_instructions, "");
}

TEST(ConfigTest, UnknownFlagsAndMissingValuesAreRefused) {
  EXPECT_FALSE(Parse({"--adress=127.0.0.1:1"}).ok());
  EXPECT_FALSE(Parse({"--threads"}).ok());
  EXPECT_FALSE(Parse({"stray"}).ok());
}

TEST(ConfigTest, HelpNamesEverySetting) {
  const absl::StatusOr<CommandLine> parsed = Parse({"--help"});
  ASSERT_TRUE(parsed.ok());
  for (const Setting& setting : Settings()) {
    EXPECT_THAT(parsed->text, HasSubstr(std::string("--") + setting.flag));
    EXPECT_THAT(parsed->text, HasSubstr(setting.environment));
    EXPECT_THAT(parsed->text, HasSubstr(setting.expected));
  }
}

TEST(ConfigTest, VersionIsOneLine) {
  EXPECT_EQ(Parse({"--version"})->text, "oscarkv-server " + std::string(ServerVersion()) + "\n");
}

TEST(ConfigTest, EnvironmentNamesFollowFromFlags) {
  std::set<std::string> names;
  for (const Setting& setting : Settings()) {
    std::string expected = "OSCARKV_";
    for (const char c : std::string(setting.flag)) {
      expected += c == '-' ? '_' : static_cast<char>(std::toupper(c));
    }
    EXPECT_EQ(setting.environment, expected);
    names.insert(setting.flag);
  }
  EXPECT_EQ(names.size(), Settings().size());
}

TEST(ConfigTest, TheDocumentHoldsTheTable) {
  std::ifstream file(OSCARKV_SOURCE_DIR "/docs/configuration.md");
  const std::string document(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(document, HasSubstr(SettingsAsMarkdown()))
      << "docs/configuration.md must hold this table:\n"
      << SettingsAsMarkdown();
}

}  // namespace
}  // namespace oscarkv
