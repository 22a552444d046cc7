// Blocks are not zeroed when they go from one session to another: whatever they held before, no
// answer, no token read back and no byte of a page depends on it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend_factory.h"
#include "server/session/session_store.h"
#include "tests/server/support/faulty_backend.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

// Every block that it allocates is full of one byte.
class SoilingBackend : public Backend {
 public:
  SoilingBackend(Backend* inner, std::byte soil) : inner_(inner), soil_(soil) {}

  BackendInfo Info() const override { return inner_->Info(); }
  KernelStatus Allocate(std::int64_t bytes, std::span<BlockId> blocks) override {
    KernelStatus status = inner_->Allocate(bytes, blocks);
    if (!status.ok()) return status;
    const std::vector<std::byte> soil(static_cast<std::size_t>(bytes), soil_);
    for (const BlockId block : blocks) {
      if (status.ok()) status = inner_->WriteBlock(block, soil);
    }
    return status;
  }
  void Free(std::span<const BlockId> blocks) override { inner_->Free(blocks); }
  KernelStatus Append(std::span<const AppendItem> items) override { return inner_->Append(items); }
  KernelStatus Attend(std::span<const AttendItem> items) override { return inner_->Attend(items); }
  KernelStatus Seal(std::span<SealItem> items) override { return inner_->Seal(items); }
  KernelStatus ReadTokens(std::span<const ReadItem> items) override {
    return inner_->ReadTokens(items);
  }
  KernelStatus Copy(std::span<const CopyItem> items) override { return inner_->Copy(items); }
  KernelStatus ReadBlock(BlockId block, std::span<std::byte> bytes) override {
    return inner_->ReadBlock(block, bytes);
  }
  KernelStatus WriteBlock(BlockId block, std::span<const std::byte> bytes) override {
    return inner_->WriteBlock(block, bytes);
  }

 private:
  Backend* const inner_;
  const std::byte soil_;
};

struct Outcome {
  std::vector<float> answers;
  std::vector<Tokens> tokens;
  std::vector<std::string> pages;
};

// Sessions that grow, are forked, cut short in windows and in pages, and grow on.
class Scenario {
 public:
  explicit Scenario(std::byte soil) {
    BackendResult made = MakeBackend({.kind = BackendKind::kCpu, .threads = 2});
    EXPECT_TRUE(made.status.ok()) << made.status.message;
    cpu_ = std::move(made.backend);
    soiling_ = std::make_unique<SoilingBackend>(cpu_.get(), soil);
    recorder_ = std::make_unique<FaultyBackend>(soiling_.get());
    store_ = std::make_unique<SessionStore>(recorder_.get(),
                                            StoreOptions{.memory_budget_bytes = 1 << 28,
                                                         .settle_after = absl::InfiniteDuration(),
                                                         .prepared_pages = 0});
  }

  Outcome All() {
    EXPECT_TRUE(store_->Create(SessionOfAllKinds("a")).ok());
    Grow("a", 0, 450);
    Fork("a", "whole", std::nullopt);
    Fork("a", "in a window", 440);
    Fork("a", "in a page", 200);
    Fork("a", "in the sinks", 2);
    Grow("in a window", 440, 470);
    Grow("in a page", 200, 420);
    Grow("in the sinks", 2, 180);
    Cut("a", 133);
    Grow("a", 133, 300);
    Cut("a", 3);
    Grow("a", 3, 301);
    Grow("whole", 450, 451);
    store_->Settle();
    for (const char* id : {"a", "whole", "in a window", "in a page", "in the sinks"}) {
      Read(id);
      const std::int64_t length = store_->Get(id)->layers[0].length;
      Grow(id, length, length + 1);
      Read(id);
    }
    outcome_.pages = recorder_->pages();
    return std::move(outcome_);
  }

 private:
  // Attends with all tokens that are appended, so that queries see windows as they fill up.
  void Grow(const std::string& id, std::int64_t begin, std::int64_t end) {
    const absl::StatusOr<SessionInfo> info = store_->Get(id);
    ASSERT_TRUE(info.ok()) << info.status();
    for (std::size_t i = 0; i < info->layers.size(); ++i) {
      const Source source{.spec = &info->config->layers[i], .seed = 20 + i};
      for (std::int64_t at = begin; at < end;) {
        const auto count = static_cast<std::int32_t>(std::min<std::int64_t>(end - at, 1 + at % 90));
        Request request = AttendRequest(id, info->generation, source, at, count, count);
        const absl::Status status = Attend(store_.get(), info->layers[i].layer, &request);
        ASSERT_TRUE(status.ok()) << status;
        std::vector<float>& answers = outcome_.answers;
        answers.insert(answers.end(), request.outputs.begin(), request.outputs.end());
        answers.insert(answers.end(), request.log_sum_exps.begin(), request.log_sum_exps.end());
        at += count;
      }
    }
  }

  void Fork(const std::string& source, const std::string& session,
            std::optional<std::int64_t> length) {
    ForkItem item;
    item.source = source;
    item.generation = store_->Get(source)->generation;
    item.length = length;
    item.session = session;
    item.request_id = session;
    store_->Fork({&item, 1});
    ASSERT_TRUE(item.status.ok()) << item.status;
  }

  void Cut(const std::string& id, std::int64_t length) {
    ASSERT_TRUE(store_->Truncate(id, "", store_->Get(id)->generation, length).ok());
  }

  void Read(const std::string& id) {
    for (std::size_t i = 0; i < store_->Get(id)->layers.size(); ++i) {
      const absl::StatusOr<Tokens> tokens = ReadAll(*store_, id, i);
      ASSERT_TRUE(tokens.ok()) << tokens.status();
      outcome_.tokens.push_back(*tokens);
    }
  }

  std::unique_ptr<Backend> cpu_;
  std::unique_ptr<SoilingBackend> soiling_;
  std::unique_ptr<FaultyBackend> recorder_;
  std::unique_ptr<SessionStore> store_;
  Outcome outcome_;
};

TEST(Unwritten, NothingDependsOnWhatBlocksHeldBefore) {
  const Outcome clean = Scenario(std::byte{0}).All();
  ASSERT_FALSE(clean.pages.empty());
  // As 16-bit numbers: NaN, and numbers that are like any other.
  for (const std::byte soil : {std::byte{0xFF}, std::byte{0x3F}}) {
    const Outcome soiled = Scenario(soil).All();
    EXPECT_TRUE(soiled.answers == clean.answers);
    EXPECT_TRUE(soiled.tokens == clean.tokens);
    EXPECT_TRUE(soiled.pages == clean.pages);
  }
}

}  // namespace
}  // namespace oscarkv
