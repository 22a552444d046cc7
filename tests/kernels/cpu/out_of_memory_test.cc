// Whichever allocation fails: memory for blocks is handed out all or none and never lost, and the
// backend says so by its status; no exception leaves it.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/api/page_layout.h"
#include "kernels/cpu/block_memory.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/slab_pool.h"
#include "tests/kernels/support/failing_new.h"

namespace oscarkv {
namespace {

using testing::FailingNew;

TEST(OutOfMemory, ASlabPoolGivesNothingAndKeepsNothing) {
  int failed = 0;
  for (int n = 0;; ++n) {
    cpu::SlabPool pool;
    cpu::SlabPool::Piece piece;
    bool struck = false;
    {
      const FailingNew failing(n);
      piece = pool.Take(100);
      struck = failing.struck();
    }
    if (!struck) {
      pool.Give(piece);
      break;
    }
    ++failed;
    EXPECT_EQ(piece.data, nullptr);
    EXPECT_EQ(pool.use().mapped, 0);
    piece = pool.Take(100);
    EXPECT_NE(piece.data, nullptr);
    pool.Give(piece);
    EXPECT_EQ(pool.use().mapped, 0);
  }
  EXPECT_GE(failed, 2);  // of the size, of the slab
}

// Blocks that fill several slabs each, so that some exist already when an allocation fails.
TEST(OutOfMemory, BlocksAreAllThereOrNone) {
  int failed = 0;
  for (int n = 0;; ++n) {
    cpu::BlockMemory memory;
    std::vector<BlockId> blocks(4, kNoBlock);
    KernelStatus status;
    bool threw = false;
    bool struck = false;
    {
      const FailingNew failing(n);
      try {
        status = memory.Allocate(3 << 20, blocks);
      } catch (const std::bad_alloc&) {
        threw = true;
      }
      struck = failing.struck();
    }
    if (!struck) break;
    ++failed;
    EXPECT_TRUE(threw || status.code == KernelErrorCode::kResourceExhausted) << n;
    EXPECT_EQ(memory.use().mapped, 0) << n;
    // Every slot is free again.
    std::vector<BlockId> all(1 << 14, kNoBlock);
    ASSERT_TRUE(memory.Allocate(64, all).ok());
    memory.Free(all);
    EXPECT_EQ(memory.use().mapped, 0);
  }
  EXPECT_GE(failed, 6);
}

TEST(OutOfMemory, FreeingNeedsNoMemory) {
  cpu::BlockMemory memory;
  std::vector<BlockId> blocks(1000, kNoBlock);
  ASSERT_TRUE(memory.Allocate(100, blocks).ok());
  const FailingNew failing(0);
  memory.Free(blocks);
  EXPECT_FALSE(failing.struck());
}

// One session's append, seal, attend and read, each with its n-th allocation failing.
class BackendOutOfMemory : public ::testing::Test {
 protected:
  static LayerSpec MakeSpec() {
    LayerSpec spec;
    spec.query_heads = 2;
    spec.kv_heads = 1;
    spec.key_dim = 64;
    spec.value_dim = 64;
    spec.scale = 0.125F;
    spec.codec.window = 32;
    spec.codec.sinks = 0;
    return spec;
  }

  BlockId NewBlock(std::int64_t bytes) {
    BlockId block = kNoBlock;
    EXPECT_TRUE(backend_.Allocate(bytes, {&block, 1}).ok());
    return block;
  }

  // Calls `call` until no allocation of it fails.
  template <typename Call>
  static void ExpectOrderlyFailures(const Call& call) {
    int failed = 0;
    while (true) {
      KernelStatus status;
      bool struck = false;
      {
        const FailingNew failing(failed);
        status = call();
        struck = failing.struck();
      }
      if (!struck) {
        EXPECT_TRUE(status.ok()) << status.message;
        break;
      }
      ++failed;
      EXPECT_EQ(status.code, KernelErrorCode::kResourceExhausted);
    }
    EXPECT_GT(failed, 0);
  }

  const LayerSpec spec_ = MakeSpec();
  CpuBackend backend_{1};
};

TEST_F(BackendOutOfMemory, EveryCallSaysSo) {
  std::vector<BlockId> window;
  for (int i = 0; i < 5; ++i) {
    window.push_back(NewBlock(TokenBlockLayout(spec_, kWindowBlockTokens).bytes));
  }
  const std::vector<std::uint16_t> rows(160 * 64, ToBF16(1.5F));
  std::vector<AppendItem> appends;
  for (int i = 0; i < 5; ++i) {
    appends.push_back({.spec = &spec_,
                       .block = window[i],
                       .tokens = 32,
                       .dtype = DType::kBF16,
                       .keys = rows.data(),
                       .values = rows.data()});
  }
  ExpectOrderlyFailures([&] { return backend_.Append(appends); });

  const BlockId page = NewBlock(PageLayout(spec_).bytes);
  std::vector<SealedHead> heads(1);
  SealItem seal{.spec = &spec_,
                .tokens = window,
                .context = 32,
                .page = page,
                .queries = rows.data(),
                .num_queries = 4,
                .heads = heads.data()};
  ExpectOrderlyFailures([&] { return backend_.Seal({&seal, 1}); });

  const PageRef ref{.block = page, .begin = 0};
  const std::span<const PageRef> run(&ref, 1);
  const LayerView view{.spec = &spec_,
                       .page_runs = {&run, 1},
                       .window = std::span(window).subspan(4),
                       .window_begin = 128,
                       .length = 160};
  std::vector<float> outputs(2 * 64);
  std::vector<float> log_sum_exps(2);
  const AttendItem attend{.layer = view,
                          .num_queries = 1,
                          .query_begin = 159,
                          .queries = rows.data(),
                          .outputs = outputs.data(),
                          .log_sum_exps = log_sum_exps.data()};
  ExpectOrderlyFailures([&] { return backend_.Attend({&attend, 1}); });

  std::vector<std::uint16_t> keys(160 * 64);
  std::vector<std::uint16_t> values(160 * 64);
  const ReadItem read{
      .layer = view, .begin = 0, .tokens = 160, .keys = keys.data(), .values = values.data()};
  ExpectOrderlyFailures([&] { return backend_.ReadTokens({&read, 1}); });
  const CopyItem copy{.from = window[0], .to = window[1], .bytes = 64};
  ExpectOrderlyFailures([&] { return backend_.Copy({&copy, 1}); });
}

}  // namespace
}  // namespace oscarkv
