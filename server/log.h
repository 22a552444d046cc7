// The server's log: one line an event on standard error, as text or as JSON.
//
// Thread-safety: Log may be called at once from all threads.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace oscarkv {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarn, kError };
enum class LogFormat : std::uint8_t { kText, kJson };

using LogFields = std::initializer_list<std::pair<std::string_view, std::string>>;

// Until the first call: from kInfo on, as text.
void InitLog(LogLevel level, LogFormat format);

bool LogEnabled(LogLevel level);
// Fields without a value are left out.
void Log(LogLevel level, std::string_view event, LogFields fields = {});

// The line that Log writes, without its end. `time` is RFC 3339.
std::string FormatLogLine(LogFormat format, LogLevel level, std::string_view time,
                          std::string_view event, LogFields fields);

}  // namespace oscarkv
