// Exports and imports that end early, pause, or are too many.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <string_view>
#include <vector>

#include "tests/e2e/transfers.h"

namespace oscarkv::testing {
namespace {

TEST(TransferLimitsTest, ClientsThatLeaveInTheMiddleLeaveNothing) {
  TestServer server;
  Stub& stub = server.stub();
  CreateWide(stub);
  const std::string file = FileOf(stub, "wide");
  const v1::GetServerInfoResponse before = Info(stub);
  for (int i = 0; i < 6; ++i) {
    Export reading(stub, "wide");
    EXPECT_TRUE(i % 2 == 1 || reading.ReadPiece());
    reading.Cancel();
    EXPECT_EQ(reading.Finish().code(), absl::StatusCode::kCancelled);
    Import writing(stub);
    EXPECT_TRUE(writing.Send(Header("b")));
    EXPECT_TRUE(i % 2 == 1 || writing.Send(std::string_view(file).substr(0, file.size() / 2)));
    writing.Cancel();
    EXPECT_EQ(writing.Finish().code(), absl::StatusCode::kCancelled);
  }
  ExpectHoldsAgain(stub, before);
}

TEST(TransferLimitsTest, DeadlinesThatPassInTheMiddleLeaveNothing) {
  TestServer server;
  Stub& stub = server.stub();
  CreateWide(stub);
  const std::string file = FileOf(stub, "wide");
  const v1::GetServerInfoResponse before = Info(stub);
  constexpr std::chrono::milliseconds kTimeout(200);
  Import idle(stub, kTimeout);
  Import halfway(stub, kTimeout);
  if (halfway.Send(Header("b"))) halfway.Send(std::string_view(file).substr(0, file.size() / 2));
  Export unread(stub, "wide", 0, kTimeout);
  EXPECT_EQ(idle.WaitForEnd().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(halfway.WaitForEnd().code(), absl::StatusCode::kDeadlineExceeded);
  // The server notices by itself, with no one reading.
  ExpectHoldsAgain(stub, before);
  EXPECT_EQ(unread.Finish().code(), absl::StatusCode::kDeadlineExceeded);
}

// With one place in all.
TEST(TransferLimitsTest, ClientsThatPauseKeepNoPlaceFromOthers) {
  TestServer from;
  CreateWide(from.stub());
  Config config = TestConfig();
  config.max_concurrent_requests = 1;
  TestServer server(config);
  Stub& stub = server.stub();
  const std::string file = FileOf(from.stub(), "wide");
  const auto expect_place = [&] {
    v1::GetServerInfoResponse info;
    absl::Status status = absl::UnknownError("not asked yet");
    while (!status.ok()) {
      status = Call(stub, &Stub::GetServerInfo, {}, info);
      ASSERT_TRUE(status.ok() || ReasonOf(status) == "TOO_MANY_REQUESTS") << status;
    }
  };
  Import import(stub);
  ASSERT_TRUE(import.Send(Header("")));
  ASSERT_TRUE(import.Send(std::string_view(file).substr(0, file.size() / 2)));
  expect_place();
  ASSERT_TRUE(import.Send(std::string_view(file).substr(file.size() / 2)));
  ASSERT_EQ(import.Finish(), absl::OkStatus());
  Export reading(stub, "wide");
  ASSERT_TRUE(reading.ReadPiece());
  expect_place();
  ASSERT_EQ(reading.Finish(), absl::OkStatus());
  EXPECT_EQ(reading.header().committed_length(), kWideTokens);
}

TEST(TransferLimitsTest, ATenantsHalfOpenImportsAreBoundedAndLeaveRoomForOthers) {
  Config config = TestConfig();
  config.max_concurrent_requests = 1;
  TestServer server(config);
  v1::ImportSessionHeader header = Header("b");
  header.set_tenant("idle");
  std::vector<std::future<absl::Status>> imports;
  for (int i = 0; i < 20; ++i) {
    imports.push_back(std::async(std::launch::async, [&server, &header] {
      Import import(server.stub(), std::chrono::seconds(2));
      import.Send(header);
      return import.WaitForEnd();
    }));
  }
  v1::GetServerInfoResponse info;
  absl::Status status = absl::UnknownError("not asked yet");
  while (!status.ok()) {
    status = Call(server.stub(), &Stub::GetServerInfo, {}, info);
    ASSERT_TRUE(status.ok() || ReasonOf(status) == "TOO_MANY_REQUESTS") << status;
  }
  int kept = 0;
  for (std::future<absl::Status>& import : imports) {
    const absl::Status end = import.get();
    EXPECT_TRUE(absl::IsDeadlineExceeded(end) || ReasonOf(end) == "TOO_MANY_REQUESTS") << end;
    kept += absl::IsDeadlineExceeded(end) ? 1 : 0;
  }
  EXPECT_GE(kept, 1);
  EXPECT_LE(kept, 4);
}

TEST(TransferLimitsTest, ADrainEndsImportsThatWaitAndLetsExportsEnd) {
  TestServer server;
  Stub& stub = server.stub();
  CreateWide(stub);
  const std::string file = FileOf(stub, "wide");
  Export reading(stub, "wide");
  ASSERT_TRUE(reading.ReadPiece());
  Import silent(stub);
  Import halfway(stub);
  ASSERT_TRUE(halfway.Send(Header("b")));
  ASSERT_TRUE(halfway.Send(std::string_view(file).substr(0, file.size() / 2)));
  std::future<bool> drained =
      std::async(std::launch::async, [&] { return server.server().Drain(absl::Seconds(60)); });
  EXPECT_EQ(ReasonOf(silent.WaitForEnd()), "DRAINING");
  EXPECT_EQ(ReasonOf(halfway.WaitForEnd()), "DRAINING");
  EXPECT_EQ(reading.Finish(), absl::OkStatus());
  EXPECT_EQ(reading.file().size(), file.size());
  EXPECT_TRUE(drained.get());
}

}  // namespace
}  // namespace oscarkv::testing
