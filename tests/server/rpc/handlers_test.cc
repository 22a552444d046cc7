#include "server/rpc/handlers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend_factory.h"
#include "server/rpc/check_items.h"
#include "server/rpc/decode_batch.h"
#include "tests/server/rpc/test_requests.h"

namespace oscarkv {
namespace {

using testing::AppendRequestOf;
using testing::AttendRequestOf;
using testing::FieldOf;
using ::testing::HasSubstr;
using testing::ReasonOf;
using testing::TestModel;

constexpr auto kInvalid = static_cast<int>(absl::StatusCode::kInvalidArgument);

class HandlersTest : public ::testing::Test {
 protected:
  HandlersTest() {
    BackendResult made = MakeBackend({});
    EXPECT_TRUE(made.status.ok()) << made.status.message;
    backend_ = std::move(made.backend);
    store_ = std::make_unique<SessionStore>(
        backend_.get(), StoreOptions{.memory_budget_bytes = 64 << 20, .first_generation = 1000});
    handlers_ = std::make_unique<Handlers>(
        store_.get(), ServerFacts{.version = "test", .max_message_bytes = 1 << 20});
  }

  v1::Session Create(const std::string& id, const TestModel& model = {}) {
    v1::CreateSessionResponse response;
    const absl::Status s = handlers_->CreateSession(testing::CreateRequest(id, model), response);
    EXPECT_TRUE(s.ok()) << s;
    return response.session();
  }

  v1::AppendResponse Append(const v1::AppendRequest& request) {
    v1::AppendResponse response;
    const absl::Status s = handlers_->Append(request, response);
    EXPECT_TRUE(s.ok()) << s;
    EXPECT_EQ(response.results_size(), request.items_size());
    return response;
  }

  v1::AttendResponse Attend(const v1::AttendRequest& request) {
    v1::AttendResponse response;
    const absl::Status s = handlers_->Attend(request, response);
    EXPECT_TRUE(s.ok()) << s;
    EXPECT_EQ(response.results_size(), request.items_size());
    return response;
  }

  std::int64_t LengthOf(const std::string& id, int layer = 0) {
    return store_->Get(id)->layers[static_cast<std::size_t>(layer)].length;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<SessionStore> store_;
  std::unique_ptr<Handlers> handlers_;
};

void SetBits(v1::Tensor& tensor, std::size_t element, std::uint16_t bits) {
  std::memcpy(tensor.mutable_raw()->data() + 2 * element, &bits, 2);
}

TEST_F(HandlersTest, NanAndInfinityAreRefusedWhereTheyAre) {
  const v1::Session a = Create("a");
  const v1::Session b = Create("b");
  struct Bad {
    const char* field;
    v1::Tensor* (v1::AttendRequest::*tensor)();
    std::size_t heads;
  };
  const Bad kTensors[] = {{"items[1].key", &v1::AttendRequest::mutable_key, 2},
                          {"items[1].value", &v1::AttendRequest::mutable_value, 2},
                          {"items[1].query", &v1::AttendRequest::mutable_query, 4}};
  for (const Bad& bad : kTensors) {
    for (const std::uint16_t bits : {0x7fc0, 0xffc1, 0x7f80, 0xff80}) {
      v1::AttendRequest request;
      testing::AddAttend({}, a, LengthOf("a"), 3, 3, request);
      testing::AddAttend({}, b, 0, 3, 3, request);
      // Of the second item: token 2, head 1, channel 7.
      const std::size_t row = bad.heads * 64;
      SetBits(*(request.*bad.tensor)(), 3 * row + 2 * row + 64 + 7, bits);
      const std::int64_t before = LengthOf("a");
      const v1::AttendResponse response = Attend(request);
      EXPECT_EQ(response.results(0).status().code(), 0);
      EXPECT_EQ(LengthOf("a"), before + 3);
      const v1::ItemResult& result = response.results(1);
      EXPECT_EQ(result.status().code(), kInvalid);
      EXPECT_EQ(FieldOf(result.status()), bad.field);
      EXPECT_THAT(result.status().message(), HasSubstr("token 2, head 1, channel 7"));
      EXPECT_EQ(result.generation(), b.generation());
      EXPECT_EQ(LengthOf("b"), 0);
    }
  }
}

TEST_F(HandlersTest, Fp32BeyondTheStorageDtypeIsRefused) {
  const TestModel half = {.dtype = v1::DATA_TYPE_FP16};
  const v1::Session session = Create("a", half);
  TestModel sent = half;
  sent.dtype = v1::DATA_TYPE_FP32;
  v1::AppendRequest request = AppendRequestOf(sent, session, 0, 0, 2);
  ASSERT_EQ(Append(request).results(0).status().code(), 0);
  const float beyond = 70000;
  request = AppendRequestOf(sent, session, 0, 2, 2);
  std::memcpy(request.mutable_value()->mutable_raw()->data(), &beyond, sizeof beyond);
  EXPECT_EQ(FieldOf(Append(request).results(0).status()), "items[0].value");
  EXPECT_EQ(LengthOf("a"), 2);
}

TEST_F(HandlersTest, TensorsOfAnotherShapeOrDtypeAreRefusedPerItem) {
  Create("a");
  const v1::Session wide = Create("wide", {.dim = 128});
  const v1::Session half = Create("half", {.dtype = v1::DATA_TYPE_FP16});
  const v1::Session a = Create("a");
  v1::AppendRequest request;
  for (const v1::Session& session : {wide, half, a}) testing::AddAppend({}, session, 0, 2, request);
  const v1::AppendResponse response = Append(request);
  EXPECT_EQ(FieldOf(response.results(0).status()), "items[0].key.shape");
  EXPECT_EQ(FieldOf(response.results(1).status()), "items[1].key.dtype");
  EXPECT_EQ(response.results(2).status().code(), 0);
  EXPECT_EQ(response.results(2).length(), 2);
}

TEST_F(HandlersTest, EachItemHasItsOwnFate) {
  const v1::Session a = Create("a");
  v1::Session old = Create("old");
  v1::Session unknown = a;
  unknown.set_id("unknown");
  old.set_generation(1);
  const v1::Session ahead = Create("ahead");
  v1::AttendRequest request;
  testing::AddAttend({}, unknown, 0, 1, 1, request);
  testing::AddAttend({}, a, 0, 2, 2, request);
  testing::AddAttend({}, old, 0, 1, 1, request);
  testing::AddAttend({}, ahead, 7, 1, 1, request);
  testing::AddAttend({}, a, 2, 1, 1, request);
  const v1::AttendResponse response = Attend(request);
  EXPECT_EQ(ReasonOf(response.results(0).status()), "SESSION_NOT_FOUND");
  EXPECT_EQ(response.results(0).generation(), 0u);
  EXPECT_EQ(response.results(1).status().code(), 0);
  EXPECT_EQ(response.results(1).length(), 2);
  EXPECT_EQ(ReasonOf(response.results(2).status()), "GENERATION_MISMATCH");
  EXPECT_NE(response.results(2).generation(), 1u);
  EXPECT_EQ(ReasonOf(response.results(3).status()), "LENGTH_MISMATCH");
  EXPECT_EQ(FieldOf(response.results(4).status()), "items[4].session");

  // Rows of items that failed are zero, and their log-sum-exp is -inf.
  ASSERT_EQ(response.output().shape(0), 6);
  ASSERT_EQ(response.output().raw().size(), 6u * 4 * 64 * 2);
  std::vector<float> log_sum_exps(6 * 4);
  std::memcpy(log_sum_exps.data(), response.log_sum_exp().raw().data(), 6 * 4 * 4);
  for (std::size_t row = 0; row < 6; ++row) {
    const bool applied = row == 1 || row == 2;
    const std::string output = response.output().raw().substr(row * 512, 512);
    EXPECT_EQ(output == std::string(512, '\0'), !applied) << row;
    EXPECT_EQ(std::isinf(log_sum_exps[row * 4]), !applied) << row;
  }
}

TEST_F(HandlersTest, ALayerThatIsNotThereIsToldPerItem) {
  const v1::Session session = Create("a");
  const v1::AppendResponse response = Append(AppendRequestOf({}, session, 9, 0, 1));
  EXPECT_EQ(ReasonOf(response.results(0).status()), "LAYER_NOT_FOUND");
  EXPECT_EQ(response.results(0).generation(), session.generation());
}

TEST_F(HandlersTest, AReplyThatWouldNotFitIsRefusedBeforeAnythingChanges) {
  const v1::Session session = Create("a");
  v1::AttendRequest request = AttendRequestOf({}, session, 0, 0, 1500, 1500);
  request.set_output_dtype(v1::DATA_TYPE_FP32);
  v1::AttendResponse response;
  const absl::Status status = handlers_->Attend(request, response);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "REPLY_TOO_LARGE");
  EXPECT_EQ(FieldOf(status), "query.shape");
  EXPECT_EQ(testing::DetailOf(status, "limit"), "1048576");
  EXPECT_EQ(LengthOf("a"), 0);
  request.set_output_dtype(v1::DATA_TYPE_BF16);
  EXPECT_EQ(Attend(request).results(0).status().code(), 0);
}

TEST_F(HandlersTest, ResultsThatMightNotFitAreRefusedBeforeAnythingChanges) {
  const v1::Session session = Create("a");
  v1::Session nobody = session;
  v1::AppendRequest append = AppendRequestOf({}, session, 0, 0, 1);
  v1::AttendRequest attend = AttendRequestOf({}, session, 0, 0, 1, 1);
  for (int i = 1; i < 600; ++i) {
    nobody.set_id("nobody" + std::to_string(i));
    testing::AddAppend({}, nobody, 0, 1, append);
    testing::AddAttend({}, nobody, 0, 1, 1, attend);
  }
  v1::AppendResponse appended;
  v1::AttendResponse attended;
  for (const absl::Status& status :
       {handlers_->Append(append, appended), handlers_->Attend(attend, attended)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ReasonOf(status), "REPLY_TOO_LARGE");
    EXPECT_EQ(FieldOf(status), "items");
  }
  EXPECT_EQ(LengthOf("a"), 0);
}

// Between the checks of an item and its application another session can take its id, even with
// the generation that the item names.
TEST_F(HandlersTest, AnItemIsTiedToTheSessionThatItWasCheckedBy) {
  const v1::Session session = Create("a");
  v1::AttendRequest request = AttendRequestOf({}, session, 0, 0, 1, 1);
  request.mutable_items(0)->set_generation(session.generation() + 1);
  absl::StatusOr<DecodedBatch> batch = DecodeAttend(request);
  ASSERT_TRUE(batch.ok());
  ASSERT_EQ(CheckItems(*store_, *batch), 64);
  ASSERT_TRUE(store_->Delete("a", 0).ok());
  const v1::Session wide = Create("a", {.dim = 256});
  ASSERT_EQ(wide.generation(), session.generation() + 1);

  const float untouched = 7;
  std::vector<float> outputs(4 * 64, untouched);
  std::vector<float> log_sum_exps(4, untouched);
  BatchItem& item = batch->items[0];
  item.outputs = outputs.data();
  item.log_sum_exps = log_sum_exps.data();
  BatchItem* const items[] = {&batch->items[0]};
  store_->Attend(items);
  EXPECT_EQ(ReasonOf(item.status), "GENERATION_MISMATCH");
  EXPECT_EQ(outputs, std::vector<float>(4 * 64, untouched));
  EXPECT_EQ(log_sum_exps, std::vector<float>(4, untouched));
  EXPECT_EQ(LengthOf("a"), 0);
}

TEST_F(HandlersTest, ForksTellOfEachOfThem) {
  const v1::Session source = Create("a");
  for (const int layer : {0, 1}) Append(AppendRequestOf({}, source, layer, 0, 9));
  v1::ForkSessionRequest request;
  for (const char* id : {"b", "c", "d"}) {
    v1::Fork& fork = *request.add_forks();
    fork.set_source("a");
    fork.set_generation(source.generation());
    fork.set_session(id);
    fork.set_request_id("once");
  }
  request.mutable_forks(1)->set_length(10);
  request.mutable_forks(2)->set_length(4);
  v1::ForkSessionResponse response;
  ASSERT_TRUE(handlers_->ForkSession(request, response).ok());
  ASSERT_EQ(response.results_size(), 3);
  EXPECT_EQ(response.results(0).session().id(), "b");
  EXPECT_EQ(response.results(0).session().committed_length(), 9);
  EXPECT_EQ(FieldOf(response.results(1).status()), "forks[1].length");
  EXPECT_FALSE(response.results(1).has_session());
  EXPECT_EQ(response.results(2).session().committed_length(), 4);
  EXPECT_EQ(LengthOf("d", 1), 4);
}

TEST_F(HandlersTest, WrongForksAreRefusedTogether) {
  const v1::Session source = Create("a");
  v1::ForkSessionResponse response;
  EXPECT_EQ(FieldOf(handlers_->ForkSession({}, response)), "forks");
  v1::Fork good;
  good.set_source("a");
  good.set_generation(source.generation());
  good.set_session("b");
  good.set_request_id("once");
  const auto field_of = [&](const std::function<void(v1::Fork&)>& spoil) {
    v1::ForkSessionRequest request;
    *request.add_forks() = good;
    *request.add_forks() = good;
    spoil(*request.mutable_forks(1));
    return FieldOf(handlers_->ForkSession(request, response));
  };
  EXPECT_EQ(field_of([](v1::Fork& fork) { fork.set_source("a b"); }), "forks[1].source");
  EXPECT_EQ(field_of([](v1::Fork& fork) { fork.clear_generation(); }), "forks[1].generation");
  EXPECT_EQ(field_of([](v1::Fork& fork) { fork.set_length(-1); }), "forks[1].length");
  EXPECT_EQ(field_of([](v1::Fork& fork) { fork.clear_session(); }), "forks[1].session");
  EXPECT_EQ(field_of([](v1::Fork& fork) { fork.clear_request_id(); }), "forks[1].request_id");
  EXPECT_EQ(store_->Totals().sessions, 1);
}

TEST_F(HandlersTest, ATruncationMayBeRepeatedByItsRequestId) {
  const v1::Session session = Create("a");
  for (const int layer : {0, 1}) Append(AppendRequestOf({}, session, layer, 0, 9));
  v1::TruncateSessionRequest request;
  request.set_session("a");
  request.set_generation(session.generation());
  request.set_length(4);
  request.set_request_id("once");
  v1::TruncateSessionResponse first;
  v1::TruncateSessionResponse again;
  ASSERT_TRUE(handlers_->TruncateSession(request, first).ok());
  ASSERT_TRUE(handlers_->TruncateSession(request, again).ok());
  EXPECT_EQ(first.session().committed_length(), 4);
  EXPECT_EQ(first.ShortDebugString(), again.ShortDebugString());

  // Another length, another id, and none at all are not repeats.
  request.set_length(3);
  EXPECT_EQ(ReasonOf(handlers_->TruncateSession(request, again)), "GENERATION_MISMATCH");
  request.set_length(4);
  request.set_request_id("twice");
  EXPECT_EQ(ReasonOf(handlers_->TruncateSession(request, again)), "GENERATION_MISMATCH");
  request.clear_request_id();
  EXPECT_EQ(ReasonOf(handlers_->TruncateSession(request, again)), "GENERATION_MISMATCH");
  request.set_request_id(std::string(129, 'a'));
  EXPECT_EQ(FieldOf(handlers_->TruncateSession(request, again)), "request_id");
}

TEST_F(HandlersTest, RetentionIsSetAtCreateAndChangedLater) {
  v1::CreateSessionRequest create = testing::CreateRequest("a");
  create.mutable_retention()->set_priority(7);
  create.mutable_retention()->mutable_ttl()->set_seconds(3600);
  create.mutable_retention()->mutable_ttl()->set_nanos(5);
  v1::CreateSessionResponse created;
  ASSERT_TRUE(handlers_->CreateSession(create, created).ok());
  EXPECT_EQ(created.session().retention().ShortDebugString(),
            create.retention().ShortDebugString());

  v1::UpdateSessionRequest update;
  update.set_session("a b");
  v1::UpdateSessionResponse refused;
  EXPECT_EQ(FieldOf(handlers_->UpdateSession(update, refused)), "session");
  update.set_session("a");
  EXPECT_EQ(FieldOf(handlers_->UpdateSession(update, refused)), "retention");
  update.mutable_retention()->set_pinned(true);
  update.set_generation(created.session().generation() + 1);
  EXPECT_EQ(ReasonOf(handlers_->UpdateSession(update, refused)), "GENERATION_MISMATCH");
  update.set_generation(created.session().generation());
  v1::UpdateSessionResponse updated;
  for (int time = 0; time < 2; ++time) {
    updated.Clear();
    ASSERT_TRUE(handlers_->UpdateSession(update, updated).ok());
    EXPECT_EQ(updated.session().retention().ShortDebugString(), "pinned: true");
  }
  v1::GetSessionRequest get;
  v1::GetSessionResponse got;
  get.set_session("a");
  ASSERT_TRUE(handlers_->GetSession(get, got).ok());
  EXPECT_EQ(got.ShortDebugString(), updated.ShortDebugString());
}

TEST_F(HandlersTest, ASessionBeginsWithTokensOfItsParent) {
  const TestModel model;
  const v1::Session parent = Create("a");
  for (int layer = 0; layer < model.layers; ++layer) {
    Attend(AttendRequestOf(model, parent, layer, 0, 200, 1));
  }
  v1::CreateSessionRequest create = testing::CreateRequest("b");
  create.mutable_parent()->set_session("a b");
  v1::CreateSessionResponse created;
  EXPECT_EQ(FieldOf(handlers_->CreateSession(create, created)), "parent.session");
  create.mutable_parent()->set_session("a");
  create.mutable_parent()->set_length(-1);
  EXPECT_EQ(FieldOf(handlers_->CreateSession(create, created)), "parent.length");
  create.mutable_parent()->set_length(201);
  EXPECT_EQ(FieldOf(handlers_->CreateSession(create, created)), "parent.length");
  create.mutable_parent()->set_length(150);
  create.mutable_parent()->set_generation(parent.generation());
  ASSERT_TRUE(handlers_->CreateSession(create, created).ok());
  EXPECT_EQ(created.session().reused_length(), 150);
  EXPECT_EQ(created.session().committed_length(), 150);
  Attend(AttendRequestOf(model, created.session(), 0, 150, 1, 1));
}

TEST_F(HandlersTest, TimesToLiveAreChecked) {
  const auto field_of = [&](std::int64_t seconds, int nanos) {
    v1::CreateSessionRequest create = testing::CreateRequest("a");
    create.mutable_retention()->mutable_ttl()->set_seconds(seconds);
    create.mutable_retention()->mutable_ttl()->set_nanos(nanos);
    v1::CreateSessionResponse created;
    return FieldOf(handlers_->CreateSession(create, created));
  };
  EXPECT_EQ(field_of(0, 0), "retention.ttl");
  EXPECT_EQ(field_of(-1, 0), "retention.ttl");
  EXPECT_EQ(field_of(1, -1), "retention.ttl");
  EXPECT_EQ(field_of(1, 1'000'000'000), "retention.ttl");
  EXPECT_EQ(field_of(9'000'000'000, 1), "retention.ttl");
  EXPECT_EQ(store_->Totals().sessions, 0);
  EXPECT_EQ(field_of(9'000'000'000, 0), "");
}

TEST_F(HandlersTest, ValuesBeyondTheOutputDtypeSaturate) {
  TestModel model;
  const v1::Session session = Create("a");
  v1::AttendRequest request = AttendRequestOf(model, session, 0, 0, 1, 1);
  for (std::size_t i = 0; i < 2 * 64; ++i) {
    SetBits(*request.mutable_value(), i, i % 2 == 0 ? 0x5380 : 0xd380);  // +-2^40
  }
  request.set_output_dtype(v1::DATA_TYPE_FP16);
  const v1::AttendResponse response = Attend(request);
  ASSERT_EQ(response.results(0).status().code(), 0);
  std::vector<std::uint16_t> output(4 * 64);
  std::memcpy(output.data(), response.output().raw().data(), output.size() * 2);
  for (std::size_t i = 0; i < output.size(); ++i)
    EXPECT_EQ(output[i], i % 2 == 0 ? 0x7bff : 0xfbff);
}

// At the largest magnitudes that are taken nothing overflows, in pages or out of them.
TEST_F(HandlersTest, LargestInputsGiveFiniteOutputs) {
  const TestModel model;
  for (const v1::Profile profile :
       {v1::PROFILE_DENSE, v1::PROFILE_PRECISE, v1::PROFILE_PAPER, v1::PROFILE_KIVI}) {
    const std::string id = v1::Profile_Name(profile);
    v1::CreateSessionRequest create = CreateRequest(id, model);
    create.mutable_codec()->set_profile(profile);
    create.mutable_layers(0)->set_scale(65536);
    v1::CreateSessionResponse created;
    ASSERT_TRUE(handlers_->CreateSession(create, created).ok());
    for (int begin = 0; begin < 600; begin += 300) {
      v1::AttendRequest request = AttendRequestOf(model, created.session(), 0, begin, 300, 300);
      for (v1::Tensor* tensor :
           {request.mutable_key(), request.mutable_value(), request.mutable_query()}) {
        for (std::size_t i = 0; i < tensor->raw().size() / 2; ++i) {
          SetBits(*tensor, i, i * i % 7 < 4 ? 0x5380 : 0xd380);  // +-2^40
        }
      }
      request.set_output_dtype(v1::DATA_TYPE_FP32);
      const v1::AttendResponse response = Attend(request);
      ASSERT_EQ(response.results(0).status().code(), 0);
      for (const v1::Tensor* tensor : {&response.output(), &response.log_sum_exp()}) {
        for (std::size_t i = 0; i < tensor->raw().size(); i += 4) {
          float x = 0;
          std::memcpy(&x, tensor->raw().data() + i, 4);
          ASSERT_TRUE(std::isfinite(x)) << id << " " << begin << " " << i;
        }
      }
      SetBits(*request.mutable_key(), 3, 0x5381);  // the next larger number
      request.mutable_items(0)->set_expected_length(begin + 300);
      EXPECT_EQ(Attend(request).results(0).status().code(), 3);
    }
  }
}

TEST_F(HandlersTest, SessionRequestsNameWhatIsWrong) {
  const v1::Session session = Create("a");
  v1::GetSessionResponse got;
  v1::GetSessionRequest get;
  EXPECT_EQ(FieldOf(handlers_->GetSession(get, got)), "session");
  get.set_session("nobody");
  EXPECT_EQ(ReasonOf(handlers_->GetSession(get, got)), "SESSION_NOT_FOUND");

  v1::DeleteSessionResponse deleted;
  v1::DeleteSessionRequest remove;
  remove.set_session("a b");
  EXPECT_EQ(FieldOf(handlers_->DeleteSession(remove, deleted)), "session");
  remove.set_session("a");
  remove.set_generation(session.generation() + 1);
  EXPECT_EQ(ReasonOf(handlers_->DeleteSession(remove, deleted)), "GENERATION_MISMATCH");

  v1::TruncateSessionResponse truncated;
  v1::TruncateSessionRequest truncate;
  truncate.set_session("a");
  EXPECT_EQ(FieldOf(handlers_->TruncateSession(truncate, truncated)), "generation");
  truncate.set_generation(session.generation());
  truncate.set_length(-1);
  EXPECT_EQ(FieldOf(handlers_->TruncateSession(truncate, truncated)), "length");

  v1::EvictSessionResponse evicted;
  v1::EvictSessionRequest evict;
  evict.set_session("a b");
  EXPECT_EQ(FieldOf(handlers_->EvictSession(evict, evicted)), "session");
  evict.set_session("a");
  EXPECT_EQ(ReasonOf(handlers_->EvictSession(evict, evicted)), "NO_DATA_DIR");

  v1::ListSessionsResponse listed;
  v1::ListSessionsRequest list;
  list.set_page_size(-1);
  EXPECT_EQ(FieldOf(handlers_->ListSessions(list, listed)), "page_size");
  list.set_page_size(1);
  list.set_page_token("not/an/id");
  EXPECT_EQ(FieldOf(handlers_->ListSessions(list, listed)), "page_token");
  list.clear_page_token();
  list.set_tenant("a b");
  EXPECT_EQ(FieldOf(handlers_->ListSessions(list, listed)), "tenant");
}

}  // namespace
}  // namespace oscarkv
