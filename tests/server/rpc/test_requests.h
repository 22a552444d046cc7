// Requests for tests: valid as they are made, to be broken or sent.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"
#include "oscarkv/v1/kv_cache.pb.h"
#include "tests/server/support/error_details.h"

namespace oscarkv::testing {

// The shape of a test's sessions; elements are functions of seed and position, so that chunks of a
// session are what the whole would be.
struct TestModel {
  int layers = 2;
  int query_heads = 4;
  int kv_heads = 2;
  int dim = 64;
  v1::DataType dtype = v1::DATA_TYPE_BF16;
  std::uint64_t seed = 1;
};

v1::CreateSessionRequest CreateRequest(const std::string& session, const TestModel& model = {});

enum class TensorKind : std::uint8_t { kKey, kValue, kQuery };

// Adds rows [begin, begin + tokens) to a tensor, which may be empty.
void AddRows(const TestModel& model, TensorKind kind, int layer, std::int64_t begin,
             std::int64_t tokens, v1::Tensor& tensor);

// Adds an item that appends tokens [begin, begin + tokens), and its rows.
void AddAppend(const TestModel& model, const v1::Session& session, std::int64_t begin, int tokens,
               v1::AppendRequest& request);
// The same with the queries of the last `queries` of all tokens.
void AddAttend(const TestModel& model, const v1::Session& session, std::int64_t begin, int tokens,
               int queries, v1::AttendRequest& request);

// A request with one such item.
v1::AppendRequest AppendRequestOf(const TestModel& model, const v1::Session& session, int layer,
                                  std::int64_t begin, int tokens);
v1::AttendRequest AttendRequestOf(const TestModel& model, const v1::Session& session, int layer,
                                  std::int64_t begin, int tokens, int queries);

// As ReasonOf and DetailOf of tests/server/support/error_details.h.
std::string FieldOf(const absl::Status& status);
std::string ReasonOf(const google::rpc::Status& status);
std::string FieldOf(const google::rpc::Status& status);

}  // namespace oscarkv::testing
