// A context much larger than a message, streamed to a server of its own: what the server takes is
// what it keeps and a few messages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "tests/e2e/server_process.h"
#include "tests/e2e/test_server.h"

namespace oscarkv::testing {
namespace {

constexpr TestModel kModel = {.layers = 1, .query_heads = 8, .kv_heads = 8, .dim = 128};
constexpr std::int64_t kTokenBytes = 2 * 2 * 8 * 128;
constexpr std::int64_t kMessageBytes = 8 << 20;
// Scratch of threads, and what allocators take at a time, however long the context.
constexpr std::int64_t kFixedBytes = 32 << 20;

TEST(MemoryTest, AStreamedContextTakesWhatIsKeptAndAFewMessages) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer keeps freed memory";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "the sanitizer keeps freed memory";
#endif
#endif
  const std::int64_t context_bytes =
      std::getenv("OSCARKV_TEST_FULL") != nullptr ? std::int64_t{2} << 30 : 256 << 20;
  ServerProcess process({"--memory-budget=2GiB"});
  const auto stub = v1::KvCacheService::NewStub(Connect(process.address()));
  const v1::Session session = Create(*stub, "long", kModel);
  const std::int64_t before = process.PeakResidentBytes();
  ASSERT_GT(before, 0);

  grpc::ClientContext context;
  const auto stream = stub->AppendStream(&context);
  constexpr int kTokens = kMessageBytes / kTokenBytes;
  v1::AppendStreamRequest request;
  // The same bytes again and again: making them up takes longer than storing them.
  *request.mutable_append() = AppendRequestOf(kModel, session, 0, 0, kTokens);
  for (std::int64_t begin = 0; begin < context_bytes / kTokenBytes; begin += kTokens) {
    request.mutable_append()->mutable_items(0)->set_expected_length(begin);
    ASSERT_TRUE(stream->Write(request));
    v1::AppendStreamResponse response;
    ASSERT_TRUE(stream->Read(&response));
    ASSERT_EQ(response.append().results(0).length(), begin + kTokens)
        << response.append().results(0).status().message();
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());

  const v1::Session kept = Get(*stub, "long");
  EXPECT_EQ(kept.logical_bytes(), context_bytes);
  const std::int64_t taken = process.PeakResidentBytes() - before;
  std::printf("logical %ld MiB, kept %ld MiB, taken at most %ld MiB\n", context_bytes >> 20,
              static_cast<long>(kept.resident_bytes() >> 20), static_cast<long>(taken >> 20));
  EXPECT_GE(taken, kept.resident_bytes() / 2);
  EXPECT_LE(taken, kept.resident_bytes() + kFixedBytes + 6 * kMessageBytes);
}

}  // namespace
}  // namespace oscarkv::testing
