// Runs the command line inside the test's process.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "client/cli/cli.h"

namespace oscarkv {

struct CliResult {
  int code = 0;
  std::string out;
  std::string err;
};

inline CliResult Oscarkv(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "oscarkv");
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out, err;
  const int code = RunCommandLine(static_cast<int>(argv.size()), argv.data(), out, err);
  return {code, out.str(), err.str()};
}

}  // namespace oscarkv
