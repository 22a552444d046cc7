// The command line `oscarkv`; docs/cli.md is its manual.
#pragma once

#include <ostream>

namespace oscarkv {

// Parses and runs. Results go to `out`, errors to `err`. Returns the exit code: 0, 1 for an error,
// 2 for wrong usage, 130 when interrupted.
int RunCommandLine(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace oscarkv
