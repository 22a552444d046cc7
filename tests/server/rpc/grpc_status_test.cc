#include "server/rpc/grpc_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"
#include "server/base/error.h"
#include "tests/server/rpc/received_status.h"
#include "tests/server/rpc/test_requests.h"

namespace oscarkv {
namespace {

using testing::DecodeStatus;
using testing::FieldOf;
using testing::FromGrpcStatus;
using testing::ReasonOf;

absl::Status Full(absl::StatusCode code) {
  return MakeError(code, "what went wrong",
                   {.reason = "SOME_REASON",
                    .metadata = {{"field", "items[2].key"}, {"length", "17"}},
                    .retry_after = absl::Milliseconds(1250)});
}

TEST(GrpcStatusTest, EveryCodeComesBackWithItsDetails) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status sent = Full(static_cast<absl::StatusCode>(code));
    const grpc::Status wire = ToGrpcStatus(sent);
    EXPECT_EQ(static_cast<int>(wire.error_code()), code);
    EXPECT_EQ(wire.error_message(), "what went wrong");
    const absl::Status back = FromGrpcStatus(wire);
    EXPECT_EQ(back.code(), sent.code());
    EXPECT_EQ(ReasonOf(back), "SOME_REASON");
    EXPECT_EQ(FieldOf(back), "items[2].key");
    EXPECT_EQ(testing::DetailOf(back, "length"), "17");
    EXPECT_EQ(DetailsOf(back)->retry_after, absl::Milliseconds(1250));
  }
}

TEST(GrpcStatusTest, OkStaysOkWithoutDetails) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  EXPECT_EQ(EncodeStatus(absl::OkStatus()).ByteSizeLong(), 0u);
  EXPECT_TRUE(DecodeStatus(google::rpc::Status()).ok());
}

TEST(GrpcStatusTest, DetailsAreTheMessagesThatClientsOfOtherLanguagesKnow) {
  google::rpc::Status wire;
  ASSERT_TRUE(wire.ParseFromString(
      ToGrpcStatus(Full(absl::StatusCode::kResourceExhausted)).error_details()));
  ASSERT_EQ(wire.details_size(), 2);
  google::rpc::ErrorInfo error;
  ASSERT_TRUE(wire.details(0).UnpackTo(&error));
  EXPECT_EQ(error.domain(), "oscarkv");
  EXPECT_EQ(error.reason(), "SOME_REASON");
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(wire.details(1).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 250'000'000);
}

TEST(GrpcStatusTest, AnErrorWithoutDetailsGetsTheCodeAsItsReason) {
  const google::rpc::Status wire = EncodeStatus(absl::UnknownError("x"));
  EXPECT_EQ(ReasonOf(wire), "UNKNOWN");
}

TEST(GrpcStatusTest, AnErrorOfAnotherServerKeepsCodeAndMessage) {
  const absl::Status back =
      FromGrpcStatus(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no such method"));
  EXPECT_EQ(back, absl::UnimplementedError("no such method"));
}

TEST(GrpcStatusTest, TextsOfClientsAreClippedAndMadePrintable) {
  const std::string wild(100'000, '\xff');
  const grpc::Status wire = ToGrpcStatus(InvalidField("model", wild, wild));
  EXPECT_LT(wire.error_message().size() + wire.error_details().size(), 4096u);
  google::rpc::Status encoded;
  EXPECT_TRUE(encoded.ParseFromString(wire.error_details()));
  EXPECT_THAT(wire.error_message(), ::testing::Not(::testing::HasSubstr("\xff")));
}

}  // namespace
}  // namespace oscarkv
