#include "server/log.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace oscarkv {
namespace {

constexpr char kTime[] = "2026-01-02T03:04:05.000006Z";

TEST(LogTest, TextQuotesWhatNeedsIt) {
  EXPECT_EQ(FormatLogLine(LogFormat::kText, LogLevel::kWarn, kTime, "rpc",
                          {{"a", "plain"}, {"b", "two words"}, {"c", "x=\"1\"\n"}, {"d", ""}}),
            "2026-01-02T03:04:05.000006Z warn rpc a=plain b=\"two words\" c=\"x=\\\"1\\\"\\n\"");
}

TEST(LogTest, JsonIsOneParsableLineWhateverTheValue) {
  const std::string wild = "line\nquote\" \\ \xff \x01";
  const std::string line =
      FormatLogLine(LogFormat::kJson, LogLevel::kInfo, kTime, "serving", {{"address", wild}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const nlohmann::json parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["time"], kTime);
  EXPECT_EQ(parsed["level"], "info");
  EXPECT_EQ(parsed["event"], "serving");
  EXPECT_EQ(parsed["address"].get<std::string>().substr(0, 10), "line\nquote");
}

TEST(LogTest, LevelsBelowTheChosenOneAreOff) {
  InitLog(LogLevel::kWarn, LogFormat::kText);
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
  EXPECT_TRUE(LogEnabled(LogLevel::kError));
  InitLog(LogLevel::kInfo, LogFormat::kText);
  EXPECT_TRUE(LogEnabled(LogLevel::kInfo));
}

}  // namespace
}  // namespace oscarkv
