// Requests that were valid once, changed at random in their fields and in their bytes, sent to a
// whole server: each is answered with a code that the contract knows, and the server lives on.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/test_server.h"

namespace oscarkv::testing {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// The codes of the contract's head comment, but for INTERNAL, which is a defect.
bool IsDocumented(absl::StatusCode code) {
  static const std::set<absl::StatusCode> kCodes = {
      absl::StatusCode::kOk,
      absl::StatusCode::kInvalidArgument,
      absl::StatusCode::kNotFound,
      absl::StatusCode::kAlreadyExists,
      absl::StatusCode::kFailedPrecondition,
      absl::StatusCode::kResourceExhausted,
      absl::StatusCode::kUnavailable,
      absl::StatusCode::kDeadlineExceeded,
      absl::StatusCode::kCancelled,
      absl::StatusCode::kDataLoss,
      absl::StatusCode::kUnimplemented,
  };
  return kCodes.contains(code);
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::uint64_t Below(std::uint64_t limit) { return random_() % limit; }

  // Changes one field somewhere in the message.
  void MutateField(Message& message) {
    const auto* descriptor = message.GetDescriptor();
    if (descriptor->field_count() == 0) return;
    const FieldDescriptor* field = descriptor->field(
        static_cast<int>(Below(static_cast<std::uint64_t>(descriptor->field_count()))));
    const Reflection* reflection = message.GetReflection();
    if (Below(8) == 0) return reflection->ClearField(&message, field);
    if (!field->is_repeated()) return SetSingular(message, field);
    const int size = reflection->FieldSize(message, field);
    if (size == 0 || Below(4) == 0) return AddRepeated(message, field);
    if (Below(4) == 0) return reflection->RemoveLast(&message, field);
    const int index = static_cast<int>(Below(static_cast<std::uint64_t>(size)));
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      return MutateField(*reflection->MutableRepeatedMessage(&message, field, index));
    }
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      return reflection->SetRepeatedInt64(&message, field, index, Number());
    }
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) {
      return reflection->SetRepeatedFloat(&message, field, index, Float());
    }
  }

  // Changes some bytes; mostly near the front, since what follows are the elements of tensors.
  void MutateBytes(std::string& bytes) {
    for (std::uint64_t i = Below(3) + 1; i > 0 && !bytes.empty(); --i) {
      const std::size_t reach =
          Below(4) == 0 ? bytes.size() : std::min<std::size_t>(bytes.size(), 64);
      const std::size_t at = Below(reach);
      switch (Below(4)) {
        case 0:
          bytes.resize(at);
          break;
        case 1:
          bytes.insert(at, 1, static_cast<char>(Below(256)));
          break;
        default:
          bytes[at] = static_cast<char>(static_cast<std::uint64_t>(bytes[at]) ^ (1u << Below(8)));
      }
    }
  }

 private:
  std::int64_t Number() {
    static constexpr std::int64_t kNumbers[] = {0,
                                                1,
                                                2,
                                                3,
                                                16,
                                                63,
                                                64,
                                                65,
                                                127,
                                                128,
                                                129,
                                                256,
                                                1024,
                                                65535,
                                                65536,
                                                -1,
                                                -2,
                                                -128,
                                                std::numeric_limits<std::int32_t>::max(),
                                                std::numeric_limits<std::int32_t>::min(),
                                                std::int64_t{1} << 32,
                                                std::int64_t{1} << 48,
                                                std::int64_t{1} << 62,
                                                std::numeric_limits<std::int64_t>::max(),
                                                std::numeric_limits<std::int64_t>::min()};
    return kNumbers[Below(std::size(kNumbers))];
  }

  float Float() {
    static constexpr float kFloats[] = {0,
                                        -0.0f,
                                        1,
                                        -1,
                                        0.125f,
                                        1e30f,
                                        3e38f,
                                        1e-40f,
                                        std::numeric_limits<float>::infinity(),
                                        std::numeric_limits<float>::quiet_NaN()};
    return kFloats[Below(std::size(kFloats))];
  }

  std::string Text() {
    static const std::string kTexts[] = {"",
                                         "a",
                                         "b",
                                         "a b",
                                         "\xc3\xa9",
                                         std::string(200, 'x'),
                                         std::string(1, '\0'),
                                         std::string(5000, '.')};
    return kTexts[Below(std::size(kTexts))];
  }

  void SetSingular(Message& message, const FieldDescriptor* field) {
    const Reflection* reflection = message.GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return MutateField(*reflection->MutableMessage(&message, field));
      case FieldDescriptor::CPPTYPE_INT32:
        return reflection->SetInt32(&message, field, static_cast<std::int32_t>(Number()));
      case FieldDescriptor::CPPTYPE_INT64:
        return reflection->SetInt64(&message, field, Number());
      case FieldDescriptor::CPPTYPE_UINT64:
        return reflection->SetUInt64(&message, field, static_cast<std::uint64_t>(Number()));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return reflection->SetFloat(&message, field, Float());
      case FieldDescriptor::CPPTYPE_BOOL:
        return reflection->SetBool(&message, field, Below(2) == 1);
      case FieldDescriptor::CPPTYPE_ENUM:
        return reflection->SetEnumValue(&message, field, static_cast<int>(Below(7)) - 1);
      case FieldDescriptor::CPPTYPE_STRING:
        return reflection->SetString(&message, field, Text());
      default:
        FAIL() << "a type that requests do not have: " << field->full_name();
    }
  }

  void AddRepeated(Message& message, const FieldDescriptor* field) {
    const Reflection* reflection = message.GetReflection();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Message* added = reflection->AddMessage(&message, field);
      const int size = reflection->FieldSize(message, field);
      if (size > 1) added->CopyFrom(reflection->GetRepeatedMessage(message, field, 0));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      reflection->AddInt64(&message, field, Number());
    } else {
      reflection->AddFloat(&message, field, Float());
    }
  }

  std::mt19937_64 random_;
};

// Requests for a server that holds sessions a and b; valid until they are changed.
class Requests {
 public:
  explicit Requests(Stub& stub) : stub_(stub) { Refresh(); }

  // Sessions as they should be, whatever was done to them.
  void Refresh() {
    for (const char* id : {"a", "b", "c"}) {
      v1::DeleteSessionRequest remove;
      remove.set_session(id);
      v1::DeleteSessionResponse removed;
      const absl::Status s = Call(stub_, &Stub::DeleteSession, remove, removed);
      EXPECT_TRUE(s.ok() || s.code() == absl::StatusCode::kNotFound) << s;
    }
    a_ = Create(stub_, "a");
    b_ = Create(stub_, "b");
    Append(stub_, AppendRequestOf({}, b_, 0, 0, 300));
  }

  struct Sent {
    const char* method;
    std::unique_ptr<Message> request;
    std::unique_ptr<Message> response;
  };

  Sent Make(std::uint64_t kind) {
    switch (kind) {
      case 0:
        return Of("CreateSession", CreateRequest("a"), v1::CreateSessionResponse());
      case 1:
        return Of("GetSession", Named<v1::GetSessionRequest>(), v1::GetSessionResponse());
      case 2:
        return Of("ListSessions", v1::ListSessionsRequest(), v1::ListSessionsResponse());
      case 3:
        return Of("TruncateSession", WithGeneration<v1::TruncateSessionRequest>(),
                  v1::TruncateSessionResponse());
      case 4:
        return Of("ReadTokens", WithGeneration<v1::ReadTokensRequest>(), v1::ReadTokensResponse());
      case 5:
        return Of("DeleteSession", Named<v1::DeleteSessionRequest>(), v1::DeleteSessionResponse());
      case 6:
      case 7:
        return Of("Append", AppendRequest(), v1::AppendResponse());
      case 8: {
        v1::AppendStreamRequest request;
        *request.mutable_append() = AppendRequest();
        return Of("AppendStream", request, v1::AppendStreamResponse());
      }
      case 9:
        return Of("ForkSession", ForkRequest(), v1::ForkSessionResponse());
      case 10:
        return Of("ExportSession", WithGeneration<v1::ExportSessionRequest>(),
                  v1::ExportSessionResponse());
      case 11:
        return Of("ImportSession", ImportRequest(), v1::ImportSessionResponse());
      case 12: {
        v1::DecodeRequest request;
        *request.mutable_attend() = AttendRequest();
        return Of("Decode", request, v1::DecodeResponse());
      }
      default:
        return Of("Attend", AttendRequest(), v1::AttendResponse());
    }
  }
  static constexpr std::uint64_t kKinds = 15;

 private:
  template <typename Request, typename Response>
  static Sent Of(const char* method, const Request& request, const Response& response) {
    return {method, std::make_unique<Request>(request), std::make_unique<Response>(response)};
  }

  template <typename Request>
  Request Named() const {
    Request request;
    request.set_session("b");
    return request;
  }

  v1::ForkSessionRequest ForkRequest() const {
    v1::ForkSessionRequest request;
    for (const char* id : {"c", "a"}) {
      v1::Fork& fork = *request.add_forks();
      fork.set_source("b");
      fork.set_generation(b_.generation());
      fork.set_length(200);
      fork.set_session(id);
      fork.set_request_id("fork");
      fork.set_replace(true);
    }
    return request;
  }

  // The header alone: a file without bytes.
  static v1::ImportSessionRequest ImportRequest() {
    v1::ImportSessionRequest request;
    v1::ImportSessionHeader& header = *request.mutable_header();
    header.set_session("c");
    header.set_request_id("import");
    header.set_tenant("a");
    header.set_model("a");
    return request;
  }

  template <typename Request>
  Request WithGeneration() const {
    Request request = Named<Request>();
    request.set_generation(b_.generation());
    return request;
  }

  v1::AppendRequest AppendRequest() const {
    v1::AppendRequest request;
    AddAppend({}, a_, 0, 2, request);
    AddAppend({}, b_, 300, 3, request);
    return request;
  }

  v1::AttendRequest AttendRequest() const {
    v1::AttendRequest request;
    AddAttend({}, a_, 0, 2, 1, request);
    AddAttend({}, b_, 300, 1, 2, request);
    return request;
  }

  Stub& stub_;
  v1::Session a_;
  v1::Session b_;
};

// The status of the answer, or the worst in it.
void ExpectDocumented(const absl::Status& status, const Message& response,
                      const std::string& what) {
  EXPECT_TRUE(IsDocumented(status.code())) << what << ": " << status;
  EXPECT_TRUE(status.ok() || !ReasonOf(status).empty()) << what << ": " << status;
  const auto expect_items = [&](const auto& results) {
    for (const v1::ItemResult& result : results) {
      EXPECT_TRUE(IsDocumented(static_cast<absl::StatusCode>(result.status().code())))
          << what << ": " << result.status().message();
    }
  };
  if (const auto* append = dynamic_cast<const v1::AppendResponse*>(&response)) {
    expect_items(append->results());
  } else if (const auto* attend = dynamic_cast<const v1::AttendResponse*>(&response)) {
    expect_items(attend->results());
  } else if (const auto* stream = dynamic_cast<const v1::AppendStreamResponse*>(&response)) {
    EXPECT_TRUE(IsDocumented(static_cast<absl::StatusCode>(stream->status().code()))) << what;
    expect_items(stream->append().results());
  } else if (const auto* decode = dynamic_cast<const v1::DecodeResponse*>(&response)) {
    EXPECT_TRUE(IsDocumented(static_cast<absl::StatusCode>(decode->status().code()))) << what;
    expect_items(decode->attend().results());
  }
}

TEST(MutationTest, EveryAnswerIsDocumentedAndTheServerLivesOn) {
  const bool full = std::getenv("OSCARKV_TEST_FULL") != nullptr;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(full ? 300 : 12);
  const int most = full ? 10'000'000 : 40'000;
  Config config = TestConfig();
  config.memory_budget_bytes = 32 << 20;
  TestServer server(config);
  Requests requests(server.stub());
  Mutator mutator(20260101);
  int sent = 0;
  int applied = 0;
  for (; sent < most && std::chrono::steady_clock::now() < end && !HasFailure(); ++sent) {
    if (sent % 50 == 0) requests.Refresh();
    const Requests::Sent made = requests.Make(mutator.Below(Requests::kKinds));
    for (std::uint64_t i = mutator.Below(3); i > 0; --i) mutator.MutateField(*made.request);
    // Partial: texts that are no UTF-8 are part of the test.
    std::string bytes = made.request->SerializePartialAsString();
    if (mutator.Below(3) == 0) mutator.MutateBytes(bytes);
    std::string reply;
    const absl::Status status = CallRaw(
        server.channel(), absl::StrCat("/oscarkv.v1.KvCacheService/", made.method), bytes, reply);
    EXPECT_TRUE(!status.ok() || made.response->ParseFromString(reply));
    ExpectDocumented(
        status, *made.response,
        absl::StrCat(made.method, " ", made.request->ShortDebugString().substr(0, 500)));
    applied += status.ok();
  }
  // Enough of them got through to what lies behind the checks, and enough did not.
  EXPECT_GT(applied, sent / 10);
  EXPECT_LT(applied, sent * 9 / 10);
  EXPECT_GE(sent, full ? 100'000 : 200);
  std::printf("%d requests, %d of them applied\n", sent, applied);
  requests.Refresh();
}

}  // namespace
}  // namespace oscarkv::testing
