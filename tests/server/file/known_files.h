// Files whose every byte is known: the worked example of server/file/SESSION_FILE.md and
// tests/data/session-v1.okv.
#pragma once

#include "server/file/session_fields.h"
#include "tests/server/file/file_testing.h"

namespace oscarkv {

// One layer with a sink and two tokens in the window, committed once.
FileBytes ExampleFile();

// What tests/data/session-v1.okv holds: records of every type.
SessionFields GoldenFields();
SessionCommit GoldenCommit();
// Bytes of a payload, finite as 16-bit elements: byte i is (seed + i * i) mod 59.
FileBytes GoldenPayload(int seed, std::size_t bytes);
FileBytes GoldenFile();

}  // namespace oscarkv
