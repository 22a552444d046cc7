// Sessions that leave as files and come back: the same to the bit, whatever happened to them, or
// refused, with nothing left behind.
#include "tests/server/support/transfer.h"

#include <gmock/gmock.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"
#include "server/session/session_export.h"
#include "tests/server/support/store_on_cpu.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

class TransferTest : public StoreOnCpu {
 protected:
  Bytes Export(const std::string& id, std::size_t most = 1000) {
    return ExportAll(store_.get(), id, most);
  }
  absl::StatusOr<SessionInfo> Import(const Bytes& file, ImportOptions options) {
    return ImportAll(store_.get(), file, std::move(options));
  }
  absl::StatusOr<SessionInfo> ImportAs(const std::string& id, const Bytes& file) {
    return Import(file, {.session = id,
                         .request_id = "import",
                         .tenant = {},
                         .model = {},
                         .model_revision = {},
                         .rope_digest = {}});
  }

  absl::Status Truncate(const std::string& id, std::int64_t length) {
    return store_->Truncate(id, "", Info(id).generation, length).status();
  }

  void ExpectSame(const std::string& a, const std::string& b) {
    const SessionInfo left = Info(a);
    const SessionInfo right = Info(b);
    EXPECT_EQ(left.committed_length, right.committed_length);
    EXPECT_EQ(left.min_truncate_length, right.min_truncate_length);
    EXPECT_EQ(left.logical_bytes, right.logical_bytes);
    for (std::size_t i = 0; i < left.layers.size(); ++i) {
      EXPECT_EQ(left.layers[i].length, right.layers[i].length);
      EXPECT_EQ(left.layers[i].sealed_tokens, right.layers[i].sealed_tokens);
      EXPECT_EQ(left.layers[i].page_bytes, right.layers[i].page_bytes);
      EXPECT_EQ(left.layers[i].window_bytes, right.layers[i].window_bytes);
      EXPECT_EQ(left.layers[i].pages_sealed_without_queries,
                right.layers[i].pages_sealed_without_queries);
      const auto tokens = ReadAll(*store_, a, i);
      ASSERT_TRUE(tokens.ok()) << tokens.status();
      EXPECT_TRUE(*tokens == *ReadAll(*store_, b, i)) << "layer " << i;
    }
  }
};

TEST_F(TransferTest, WhatComesBackIsTheSameAndGoesOnTheSame) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 8; ++trial) {
    MakeStore(std::int64_t{1} << 30);
    ASSERT_TRUE(store_->Create(SessionOfAllKinds("a")).ok());
    std::int64_t length = 0;
    for (int step = 0; step < 12; ++step) {
      const int count = 1 + static_cast<int>(random() % 90);
      Step("a", length, count);
      length += count;
      if (random() % 4 == 0) {
        length -= static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(length));
        ASSERT_EQ(Truncate("a", length), absl::OkStatus());
      }
      if (random() % 4 == 0) store_->Settle();
    }
    const Bytes file = Export("a", 1 + random() % 100000);
    const auto imported = ImportAs("b", file);
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_NE(imported->generation, Info("a").generation);
    ExpectSame("a", "b");
    for (int step = 0; step < 6; ++step) {
      const int count = 1 + static_cast<int>(random() % 90);
      EXPECT_EQ(Step("a", length, count), Step("b", length, count));
      length += count;
      if (random() % 3 == 0) {
        length -= static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(length));
        ASSERT_EQ(Truncate("a", length), absl::OkStatus());
        ASSERT_EQ(Truncate("b", length), absl::OkStatus());
      }
    }
    ExpectSame("a", "b");
  }
}

TEST_F(TransferTest, LayersKeepTheirOwnLengthsAndTheirLastAppend) {
  ASSERT_TRUE(store_->Create(SmallSession("a", 2)).ok());
  Fill("a", 0, 300);
  const SessionInfo info = Info("a");
  const Source source{.spec = &info.config->layers[0], .seed = 20};
  Request ahead = AppendRequest("a", info.generation, source, 300, 5, true);
  ASSERT_EQ(Append(store_.get(), 0, &ahead), absl::OkStatus());
  ASSERT_TRUE(ImportAs("b", Export("a")).ok());
  EXPECT_EQ(Info("b").layers[0].length, 305);
  EXPECT_EQ(Info("b").committed_length, 300);
  Request repeat = AppendRequest("b", Info("b").generation, source, 300, 5, true);
  ASSERT_EQ(Append(store_.get(), 0, &repeat), absl::OkStatus());
  EXPECT_TRUE(repeat.item.repeated);
}

TEST_F(TransferTest, SlidingWindowsStayFree) {
  SessionConfig config = SmallSession("a", 2);
  config.rollback_tokens = 16;
  config.layers[1].sliding_window = 64;
  ASSERT_TRUE(store_->Create(std::move(config)).ok());
  Fill("a", 0, 900);
  ASSERT_GT(Info("a").min_truncate_length, 0);
  ASSERT_TRUE(ImportAs("b", Export("a")).ok());
  ExpectSame("a", "b");
  EXPECT_EQ(Step("a", 900, 40), Step("b", 900, 40));
  EXPECT_TRUE(absl::IsFailedPrecondition(Truncate("b", 10)));
}

TEST_F(TransferTest, AnExportIsOfTheMomentItBegan) {
  ASSERT_TRUE(store_->Create(SmallSession("a")).ok());
  Fill("a", 0, 500);
  const Bytes before = Export("a");
  auto made = store_->Export("a", Info("a").generation);
  ASSERT_TRUE(made.ok());
  Bytes file = *(*made)->Next(1);
  Fill("a", 500, 700);
  ASSERT_EQ(Truncate("a", 30), absl::OkStatus());
  ASSERT_EQ(store_->Delete("a", 0), absl::OkStatus());
  while (!(*made)->done()) {
    const auto bytes = *(*made)->Next(5000);
    file.insert(file.end(), bytes.begin(), bytes.end());
  }
  made->reset();
  ASSERT_TRUE(ImportAs("x", before).ok());
  ASSERT_TRUE(ImportAs("y", file).ok());
  ExpectSame("x", "y");
}

TEST_F(TransferTest, WhatIsRefusedLeavesNothingBehind) {
  ASSERT_TRUE(store_->Create(SmallSession("a")).ok());
  Fill("a", 0, 400);
  const Bytes file = Export("a");
  ASSERT_EQ(store_->Delete("a", 0), absl::OkStatus());
  const StoreTotals empty = store_->Totals();

  std::mt19937_64 random(2);
  for (int trial = 0; trial < 200; ++trial) {
    Bytes broken = file;
    if (trial % 2 == 0) {
      broken.resize(random() % broken.size());
    } else {
      broken[random() % broken.size()] ^= static_cast<std::byte>(1U << random() % 8);
    }
    const auto imported = ImportAs("b", broken);
    ASSERT_FALSE(imported.ok()) << trial;
    ASSERT_FALSE(store_->Get("b").ok());
    ASSERT_EQ(store_->Totals().resident_bytes, empty.resident_bytes);
    ASSERT_EQ(store_->Totals().block_bytes, empty.block_bytes);
    ASSERT_EQ(store_->Totals().logical_bytes, 0);
  }
  for (auto member :
       {&ImportOptions::model, &ImportOptions::model_revision, &ImportOptions::rope_digest}) {
    ImportOptions options{.session = "b",
                          .request_id = "import",
                          .tenant = {},
                          .model = {},
                          .model_revision = {},
                          .rope_digest = {}};
    options.*member = "another";
    const absl::Status s = Import(file, options).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(s)) << s;
    EXPECT_THAT(std::string(s.message()), HasSubstr("expected \"another\""));
  }
  EXPECT_EQ(store_->Totals().resident_bytes, empty.resident_bytes);
}

TEST_F(TransferTest, RepeatsAreKnownAndOthersRefused) {
  ASSERT_TRUE(store_->Create(SmallSession("a")).ok());
  Fill("a", 0, 200);
  const Bytes file = Export("a");
  const auto first = ImportAs("b", file);
  ASSERT_TRUE(first.ok());
  const auto again = ImportAs("b", file);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(first->generation, again->generation);
  Fill("a", 200, 210);
  EXPECT_TRUE(absl::IsAlreadyExists(ImportAs("b", Export("a")).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(ImportAs("", file).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->Export("nobody", 0).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->Export("a", 1234).status()));
}

TEST_F(TransferTest, ABudgetWithoutRoomRefuses) {
  ASSERT_TRUE(store_->Create(SmallSession("a", 4)).ok());
  Fill("a", 0, 2000);
  const Bytes file = Export("a");
  for (std::int64_t budget = 1 << 10; budget < 1 << 20; budget *= 2) {
    MakeStore(budget);
    const auto imported = ImportAs("b", file);
    if (imported.ok()) break;
    EXPECT_TRUE(absl::IsResourceExhausted(imported.status())) << imported.status();
    EXPECT_EQ(store_->Totals().resident_bytes, 0);
  }
}

}  // namespace
}  // namespace oscarkv
