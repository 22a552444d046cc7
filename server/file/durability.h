#pragma once

#include <cstdint>

namespace oscarkv {

// What holds of what has been written to a file, once it is said to be.
enum class Durability : std::uint8_t {
  kWritten,  // the sink has all bytes: survives the end of the process
  kSynced,   // they are on the disk: survives a loss of power too. Costs two syncs a commit.
};

}  // namespace oscarkv
