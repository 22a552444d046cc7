// The command line of oscarkv_bench.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/bench/measure.h"
#include "tests/bench/row.h"

namespace oscarkv::bench {

struct Options {
  std::vector<Row> rows;
  std::string json;  // file to write; empty: none
  std::string revision;
  std::string cpu_instructions;  // of CpuInstructionSets(); empty: the fastest
  bool list = false;
  Effort effort;
};

// Prints help or what is wrong, and returns the exit status, if the program is not to go on; else
// says which combinations of the command line are left out, as they cannot be measured.
// `threads`: all of this machine.
std::optional<int> ParseOptions(int argc, char** argv, int threads, Options& options);

}  // namespace oscarkv::bench
