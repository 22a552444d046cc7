#include "server/log.h"

#include <atomic>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "server/base/string_view.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace oscarkv {
namespace {

std::atomic<LogLevel> log_level{LogLevel::kInfo};
std::atomic<LogFormat> log_format{LogFormat::kText};

// Never destroyed: threads of gRPC may log until the process ends.
spdlog::logger& Logger() {
  static auto* logger = [] {
    auto* made = new spdlog::logger("oscarkv", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->set_level(spdlog::level::trace);
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

const char* NameOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kError:
      break;
  }
  return "error";
}

// Quoted where a reader could not tell where the value ends.
std::string TextValue(const std::string& value) {
  if (value.find_first_of(" \"=\n\t\r\\") == std::string::npos) return value;
  return absl::StrCat("\"", absl::CEscape(value), "\"");
}

}  // namespace

void InitLog(LogLevel level, LogFormat format) {
  log_level = level;
  log_format = format;
}

bool LogEnabled(LogLevel level) { return level >= log_level.load(std::memory_order_relaxed); }

std::string FormatLogLine(LogFormat format, LogLevel level, std::string_view time,
                          std::string_view event, LogFields fields) {
  if (format == LogFormat::kText) {
    std::string line = absl::StrCat(ToAbsl(time), " ", NameOf(level), " ", ToAbsl(event));
    for (const auto& [key, value] : fields) {
      if (!value.empty()) absl::StrAppend(&line, " ", ToAbsl(key), "=", TextValue(value));
    }
    return line;
  }
  nlohmann::ordered_json line = {{"time", time}, {"level", NameOf(level)}, {"event", event}};
  for (const auto& [key, value] : fields) {
    if (!value.empty()) line[std::string(key)] = value;
  }
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void Log(LogLevel level, std::string_view event, LogFields fields) {
  if (!LogEnabled(level)) return;
  const std::string time =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone());
  Logger().log(spdlog::level::info, FormatLogLine(log_format, level, time, event, fields));
}

}  // namespace oscarkv
