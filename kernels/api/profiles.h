// The named combinations of codec settings.
#pragma once

#include <cstdint>

#include "kernels/api/layer_spec.h"

namespace oscarkv {

enum class Profile : std::uint8_t {
  kDense,    // the default: 2-bit keys and values, plans chosen by recent queries
  kPrecise,  // the same with 4-bit keys
  kPaper,    // the settings of the OScaR paper (arXiv 2605.19660)
  kKivi,     // the settings of KIVI (arXiv 2402.02750), for comparison
};

struct ProfileSettings {
  CodecSpec codec;
  HeadPlan plan;  // of every head under PlanMode::kGiven, where no plan is calibrated
};

// "DENSE", "PRECISE", "PAPER", "KIVI".
const char* NameOf(Profile profile);

ProfileSettings SettingsOf(Profile profile);

}  // namespace oscarkv
