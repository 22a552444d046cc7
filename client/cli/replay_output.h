// Reports of replays, for programs and for people.
#pragma once

#include <ostream>
#include <vector>

#include "client/replay/replay.h"

namespace oscarkv {

// One object, or a list of them if there are several; docs/cli.md describes the fields.
void PrintReplayJson(std::ostream& out, const std::vector<ReplayReport>& reports);
// A table with a line for each layer and one for each summary.
void PrintReplayTable(std::ostream& out, const std::vector<ReplayReport>& reports);

// "DENSE" for PROFILE_DENSE.
std::string ProfileName(v1::Profile profile);

}  // namespace oscarkv
