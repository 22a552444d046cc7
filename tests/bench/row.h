// A row of the benchmark: what is measured, at which sizes; and the named sets of rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/api/layer_spec.h"
#include "kernels/api/profiles.h"
#include "tests/bench/bf16_attention.h"

namespace oscarkv::bench {

enum class Operation : std::uint8_t {
  kAttend,      // one query token a session, the last
  kPrefill,     // `queries` query tokens a session, the last
  kAppend,      // `context` tokens a session, from no tokens on
  kSealGiven,   // `context` tokens a session, in pages, by a given plan
  kSealAuto,    // the same, the plan chosen among four
  kReadTokens,  // all tokens of a session, decoded to bf16
};

const char* NameOf(Operation operation);
std::optional<Operation> OperationOf(const std::string& name);
std::optional<Profile> ProfileOf(const std::string& name);

struct Row {
  Operation operation = Operation::kAttend;
  Profile profile = Profile::kDense;
  std::int64_t context = 0;
  int batch = 1;
  int query_heads = 32;
  int kv_heads = 8;
  int head_dim = 128;
  int threads = 1;
  int queries = 1;  // query tokens a session

  std::string name() const;
  LayerSpec spec() const;
  AttentionShape shape() const;
  std::int64_t bytes() const;       // of the tokens of a call, as the cache holds them
  std::int64_t bf16_bytes() const;  // of the same tokens in 16 bits
  bool operator==(const Row&) const = default;
};

// Empty if the row can be measured, else why not. REQUIRES: its numbers are positive.
std::string WhyUnsupported(const Row& row);

// Sets by name, `threads` being all threads; empty if there is no such set.
//   quick  a few small rows, for a first look and for tests
//   must   the rows of the tables in docs/performance.md
//   full   must, and each parameter varied by itself
//   all    every combination of the parameters
std::vector<Row> RowsOf(const std::string& set, int threads);
std::vector<std::string> NamesOfSets();

}  // namespace oscarkv::bench
