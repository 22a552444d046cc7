// Sessions for tests: small layers, rows that are a function of their position, and requests that
// own what they point to.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/api/layer_spec.h"
#include "server/session/session_store.h"

namespace oscarkv {

// Two kv heads of 64, four query heads, window 32, 4 sinks; otherwise profile DENSE.
LayerSpec SmallLayer(int layer);
// `layers` layers as SmallLayer's, with ids 0, 1, 2...
SessionConfig SmallSession(std::string id, int layers = 1);
// Layers of each kind: as DENSE, without window to speak of, as the paper, of 16-bit keys, sliding.
// Frees no tokens, however long it gets.
SessionConfig SessionOfAllKinds(std::string id);

// Rows [count][heads][dim] of finite 16-bit elements; row i depends on seed and begin + i alone.
std::vector<std::uint16_t> MakeRows(DType storage, std::uint64_t seed, std::int64_t begin,
                                    std::int64_t count, int heads, int dim);

// What a worker would send of one layer: keys, values and queries by position.
struct Source {
  const LayerSpec* spec = nullptr;
  std::uint64_t seed = 0;

  std::vector<std::uint16_t> Keys(std::int64_t begin, std::int64_t count) const;
  std::vector<std::uint16_t> Values(std::int64_t begin, std::int64_t count) const;
  std::vector<std::uint16_t> Queries(std::int64_t begin, std::int64_t count,
                                     std::int64_t stride = 1) const;
};

// An item and its data. Movable; the item's pointers stay good.
struct Request {
  std::string session;
  std::vector<std::uint16_t> keys;
  std::vector<std::uint16_t> values;
  std::vector<std::uint16_t> queries;
  std::vector<float> outputs;
  std::vector<float> log_sum_exps;
  BatchItem item;
};

// Appends [begin, begin + count), with the queries of the sample if `with_queries`.
Request AppendRequest(const std::string& session, std::uint64_t generation, const Source& source,
                      std::int64_t begin, std::int32_t count, bool with_queries);
// Appends [begin, begin + count), where count > 0, and attends with the last `queries` positions.
Request AttendRequest(const std::string& session, std::uint64_t generation, const Source& source,
                      std::int64_t begin, std::int32_t count, std::int32_t queries);

// A batch of items of one layer.
void AppendAll(SessionStore* store, int layer, std::span<BatchItem> items);
void AttendAll(SessionStore* store, int layer, std::span<BatchItem> items);

// One item alone; returns its status.
absl::Status Append(SessionStore* store, int layer, Request* request);
absl::Status Attend(SessionStore* store, int layer, Request* request);

// All tokens of a layer, as the store reads them back: keys, then values; 0 for those that have
// been freed.
struct Tokens {
  std::vector<std::uint16_t> keys;
  std::vector<std::uint16_t> values;
  friend bool operator==(const Tokens&, const Tokens&) = default;
};
absl::StatusOr<Tokens> ReadAll(const SessionStore& store, const std::string& session,
                               std::size_t layer_index);

}  // namespace oscarkv
