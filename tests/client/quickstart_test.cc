// The example of the README runs as it stands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>

#include "client/replay/local_server.h"

namespace oscarkv {
namespace {

TEST(QuickstartTest, AppendsAndAttends) {
  const auto server = LocalServer::Start();
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string command = std::string(OSCARKV_QUICKSTART) + " " + (*server)->address();
  std::FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::array<char, 256> line = {};
  std::string output;
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) output += line.data();
  EXPECT_EQ(pclose(pipe), 0);
  // All values are 2, so the output is, whatever the weights; pages hold it to a rounding.
  float first = 0;
  ASSERT_EQ(std::sscanf(output.c_str(), "300 tokens, output[0] = %f", &first), 1) << output;
  EXPECT_NEAR(first, 2, 0.01);
}

}  // namespace
}  // namespace oscarkv
