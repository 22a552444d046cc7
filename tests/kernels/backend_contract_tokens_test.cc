// Blocks, and tokens in and out of them: Allocate, Free, Append, ReadTokens, Copy, ReadBlock,
// WriteBlock; broken preconditions; calls at the same time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/api/page_layout.h"
#include "tests/kernels/support/backend_contract.h"
#include "tests/kernels/support/trials.h"

namespace oscarkv::testing {
namespace {

TEST_P(BackendContract, InfoIsFilledIn) {
  const auto backend = Make(3);
  const BackendInfo info = backend->Info();
  EXPECT_EQ(info.name, GetParam().name);
  EXPECT_FALSE(info.device.empty());
  EXPECT_EQ(info.threads, 3);
  EXPECT_GT(info.memory_bytes, std::int64_t{1} << 26);
}

TEST_P(BackendContract, InfoCountsBlocks) {
  const auto backend = Make(1);
  EXPECT_EQ(backend->Info().block_bytes, 0);
  std::vector<BlockId> blocks(100);
  ASSERT_TRUE(backend->Allocate(6400, blocks).ok());
  EXPECT_EQ(backend->Info().block_bytes, 640'000);
  EXPECT_GE(backend->Info().held_bytes, 640'000);
  backend->Free(std::span(blocks).first(50));
  EXPECT_EQ(backend->Info().block_bytes, 320'000);
  EXPECT_GE(backend->Info().held_bytes, 320'000);
  backend->Free(std::span(blocks).last(50));
  EXPECT_EQ(backend->Info().block_bytes, 0);
}

// The bytes of a block after `rows` were appended to it in chunks.
std::vector<std::byte> AppendInChunks(Backend& backend, const LayerSpec& spec, const Rows& rows,
                                      DType dtype, int chunk) {
  const TokenBlockLayout layout(spec, kWindowBlockTokens);
  BlockId block = kNoBlock;
  EXPECT_TRUE(backend.Allocate(layout.bytes, {&block, 1}).ok());
  const std::size_t key_row = static_cast<std::size_t>(spec.kv_heads) * spec.key_dim;
  const std::size_t value_row = static_cast<std::size_t>(spec.kv_heads) * spec.value_dim;
  for (int slot = 0; slot < kWindowBlockTokens; slot += chunk) {
    const int count = std::min(chunk, kWindowBlockTokens - slot);
    const auto bytes = [&](const std::vector<float>& x, std::size_t row) {
      // At an odd address.
      std::vector<std::byte> out(1 + count * row * SizeOf(dtype));
      const auto part = std::span(x).subspan(slot * row, count * row);
      if (dtype == DType::kFP32) {
        std::memcpy(out.data() + 1, part.data(), part.size_bytes());
      } else {
        const std::vector<std::uint16_t> bits = Round16(dtype, part);
        std::memcpy(out.data() + 1, bits.data(), bits.size() * 2);
      }
      return out;
    };
    const std::vector<std::byte> keys = bytes(rows.keys, key_row);
    const std::vector<std::byte> values = bytes(rows.values, value_row);
    AppendItem item{&spec, block, kWindowBlockTokens, slot,
                    count, dtype, keys.data() + 1,    values.data() + 1};
    EXPECT_TRUE(backend.Append({&item, 1}).ok());
  }
  std::vector<std::byte> out(layout.bytes);
  EXPECT_TRUE(backend.ReadBlock(block, out).ok());
  backend.Free({&block, 1});
  return out;
}

TEST_P(BackendContract, AppendStoresTheSameInAnyChunksTypesAndAlignment) {
  const auto backend = Make(2);
  for (const DType storage : {DType::kBF16, DType::kFP16}) {
    Random random(800);
    LayerSpec spec = MakeSpec(3, 3, 80, 112);
    spec.storage = storage;
    const Rows rows = RandomRows(spec, kWindowBlockTokens, random);
    const TokenBlockLayout layout(spec, kWindowBlockTokens);
    std::vector<std::byte> ought(layout.bytes);
    for (int head = 0; head < 3; ++head) {
      for (int t = 0; t < kWindowBlockTokens; ++t) {
        const auto key = Round16(storage, std::span(rows.keys).subspan((t * 3 + head) * 80, 80));
        const auto value =
            Round16(storage, std::span(rows.values).subspan((t * 3 + head) * 112, 112));
        std::memcpy(&ought[layout.head_bytes * head + 2 * t * 80], key.data(), 160);
        std::memcpy(&ought[layout.head_bytes * head + layout.value_offset + 2 * t * 112],
                    value.data(), 224);
      }
    }
    for (const int chunk : {1, 2, 3, 5, 7, 13, 31, 32}) {
      EXPECT_EQ(AppendInChunks(*backend, spec, rows, storage, chunk), ought) << chunk;
      EXPECT_EQ(AppendInChunks(*backend, spec, rows, DType::kFP32, chunk), ought) << chunk;
    }
  }
}

TEST_P(BackendContract, ReadsTokensAsTheOracleDecodesThem) {
  const auto backend = Make(2);
  for (int seed = 810; seed < 810 + Trials(18); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    LayerSpec spec = RandomSpec(random);
    MiniSession session(*backend, spec);
    Fill(session, static_cast<int>(random.Int(1, 700)), 50, true, random);
    if (random.Chance(0.4)) session.Truncate(random.Int(1, session.length()));
    ReadItem item;
    item.layer = session.View();
    item.begin = random.Int(0, session.length() - 1);
    item.tokens = random.Int(1, session.length() - item.begin);
    const std::size_t key_row = static_cast<std::size_t>(spec.kv_heads) * spec.key_dim;
    const std::size_t value_row = static_cast<std::size_t>(spec.kv_heads) * spec.value_dim;
    std::vector<std::uint16_t> keys(item.tokens * key_row);
    std::vector<std::uint16_t> values(item.tokens * value_row);
    item.keys = keys.data();
    item.values = values.data();
    ASSERT_TRUE(backend->ReadTokens({&item, 1}).ok());

    const oracle::Tokens ought = session.Decoded();
    const double unit = spec.storage == DType::kBF16 ? 1.0 / 256 : 1.0 / 2048;
    const auto compare = [&](const std::vector<std::uint16_t>& got, const std::vector<double>& all,
                             std::size_t row) {
      const double rms = Rms(all);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const double x = all[item.begin * row + i];
        ASSERT_NEAR(oracle::Value16(spec.storage, got[i]), x, unit * std::fabs(x) + 1e-5 * rms)
            << i;
      }
    };
    compare(keys, ought.keys, key_row);
    compare(values, ought.values, value_row);
  }
}

TEST_P(BackendContract, TokensIn16BitsAreReadBackExactly) {
  const auto backend = Make(2);
  Random random(841);
  LayerSpec spec = MakeSpec(2, 2, 96, 64);
  spec.codec.key_bits = spec.codec.value_bits = 16;
  spec.storage = DType::kFP16;
  MiniSession session(*backend, spec);
  Fill(session, 600, 50, true, random);
  ASSERT_FALSE(session.pages().empty());
  std::vector<std::uint16_t> keys(600 * 2 * 96);
  std::vector<std::uint16_t> values(600 * 2 * 64);
  ReadItem item{session.View(), 0, 600, keys.data(), values.data()};
  ASSERT_TRUE(backend->ReadTokens({&item, 1}).ok());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(oracle::Value16(DType::kFP16, keys[i]), session.Exact().keys[i]);
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(oracle::Value16(DType::kFP16, values[i]), session.Exact().values[i]);
  }
}

// What decodes to more than the storage dtype holds is read as its largest finite value.
TEST_P(BackendContract, ReadTokensSaturates) {
  const auto backend = Make(2);
  Random random(842);
  LayerSpec spec = MakeSpec(1, 1, 64, 64);
  spec.storage = DType::kFP16;
  spec.codec.sinks = 0;
  MiniSession session(*backend, spec);
  const int needed = kPageTokens + spec.codec.window;
  std::vector<float> rows(needed * 64);
  for (float& x : rows) x = random.Chance(0.5) ? 65504.0F : -65504.0F;
  session.Append(rows, rows);
  session.Seal();
  std::vector<std::uint16_t> keys(kPageTokens * 64);
  std::vector<std::uint16_t> values(kPageTokens * 64);
  ReadItem item{session.View(), 0, kPageTokens, keys.data(), values.data()};
  ASSERT_TRUE(backend->ReadTokens({&item, 1}).ok());
  int saturated = 0;
  for (const std::uint16_t bits : values) {
    ASSERT_TRUE(std::isfinite(FromFP16(bits)));
    saturated += std::fabs(FromFP16(bits)) == 65504.0F;
  }
  EXPECT_GT(saturated, 0);
}

TEST_P(BackendContract, BlocksAreBytes) {
  const auto backend = Make(1);
  BlockId blocks[3];
  ASSERT_TRUE(backend->Allocate(1000, blocks).ok());
  EXPECT_NE(blocks[0], kNoBlock);
  EXPECT_NE(blocks[0], blocks[1]);
  std::vector<std::byte> bytes(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  ASSERT_TRUE(backend->WriteBlock(blocks[0], bytes).ok());
  const CopyItem copies[] = {{blocks[0], blocks[1], 1000}, {blocks[0], blocks[2], 10}};
  ASSERT_TRUE(backend->Copy(copies).ok());
  std::vector<std::byte> out(1000);
  ASSERT_TRUE(backend->ReadBlock(blocks[1], out).ok());
  EXPECT_EQ(out, bytes);
  out.resize(10);
  bytes.resize(10);
  ASSERT_TRUE(backend->ReadBlock(blocks[2], out).ok());
  EXPECT_EQ(out, bytes);
  EXPECT_TRUE(backend->ReadBlock(blocks[2], {}).ok());
  backend->Free(blocks);
  const BlockId nothing[] = {kNoBlock, blocks[0]};
  backend->Free(nothing);
}

TEST_P(BackendContract, MemoryThatIsNotThereIsAnError) {
  const auto backend = Make(1);
  BlockId blocks[2];
  EXPECT_EQ(backend->Allocate(std::int64_t{1} << 60, blocks).code,
            KernelErrorCode::kResourceExhausted);
  EXPECT_EQ(backend->Allocate(0, blocks).code, KernelErrorCode::kInvalidArgument);
  EXPECT_EQ(backend->Allocate(-1, blocks).code, KernelErrorCode::kInvalidArgument);
}

TEST_P(BackendContract, WrongBlocksAreRefused) {
  const auto backend = Make(1);
  const auto expect_refused = [](const KernelStatus& status) {
    EXPECT_EQ(status.code, KernelErrorCode::kInvalidArgument);
    EXPECT_FALSE(status.message.empty());
  };
  BlockId blocks[2];
  ASSERT_TRUE(backend->Allocate(64, blocks).ok());
  std::vector<std::byte> bytes(65);
  expect_refused(backend->ReadBlock(blocks[0], bytes));
  expect_refused(backend->WriteBlock(blocks[0], bytes));
  const CopyItem too_long{blocks[0], blocks[1], 65};
  expect_refused(backend->Copy({&too_long, 1}));
  const CopyItem negative{blocks[0], blocks[1], -1};
  expect_refused(backend->Copy({&negative, 1}));
  backend->Free({blocks, 1});
  for (const BlockId unknown : {kNoBlock, blocks[0], BlockId{~std::uint64_t{0}}, BlockId{12345}}) {
    expect_refused(backend->ReadBlock(unknown, {}));
    const CopyItem copy{unknown, blocks[1], 1};
    expect_refused(backend->Copy({&copy, 1}));
  }
  BlockId again = kNoBlock;  // the memory may be the same, the id is not
  ASSERT_TRUE(backend->Allocate(64, {&again, 1}).ok());
  EXPECT_NE(again, blocks[0]);
}

// Each way to break what an operation requires, on an otherwise sound call.
TEST_P(BackendContract, BrokenPreconditionsAreRefused) {
  const auto backend = Make(1);
  Random random(850);
  const LayerSpec spec = MakeSpec(4, 2, 64, 64);
  MiniSession session(*backend, spec);
  Fill(session, 400, 50, true, random);
  const std::vector<float> queries = RandomQueries(spec, 1, random);
  std::vector<float> outputs(4 * 64);
  std::vector<float> lses(4);
  AttendItem sound;
  sound.layer = session.View();
  sound.num_queries = 1;
  sound.query_begin = 399;
  sound.dtype = DType::kFP32;
  sound.queries = queries.data();
  sound.outputs = outputs.data();
  sound.log_sum_exps = lses.data();
  ASSERT_TRUE(backend->Attend({&sound, 1}).ok());

  std::vector<LayerSpec> wrong_specs(9, spec);
  wrong_specs[0].key_dim = 72;
  wrong_specs[1].value_dim = 0;
  wrong_specs[2].kv_heads = 0;
  wrong_specs[3].query_heads = 5;
  wrong_specs[4].query_heads = 34;
  wrong_specs[5].storage = DType::kFP32;
  wrong_specs[6].codec.key_bits = 3;
  wrong_specs[7].codec.value_group = 7;
  wrong_specs[8].sink_logits = {1, 2};
  std::vector<PageRef> pages(session.pages().begin(), session.pages().end());
  ASSERT_GE(pages.size(), 1U);
  const auto page_with = [&](std::function<void(PageRef&)> change) {
    PageRef page = pages[0];
    change(page);
    return page;
  };
  const PageRef wrong_pages[] = {
      page_with([](PageRef& page) { page.block = kNoBlock; }),
      page_with([](PageRef& page) { page.block = BlockId{77}; }),
      page_with([](PageRef& page) { page.tokens = 129; }),
      page_with([](PageRef& page) { page.tokens = -1; }),
      page_with([](PageRef& page) { page.begin = -1; }),
      page_with([&](PageRef& page) { page.block = session.View().sinks; }),
  };

  std::vector<AttendItem> wrong;
  const auto add = [&](auto change) {
    wrong.push_back(sound);
    change(wrong.back());
  };
  for (const LayerSpec& bad : wrong_specs) {
    add([&](AttendItem& item) { item.layer.spec = &bad; });
  }
  std::vector<std::span<const PageRef>> wrong_runs;
  for (const PageRef& bad : wrong_pages) wrong_runs.emplace_back(&bad, 1);
  for (const auto& bad : wrong_runs) {
    add([&](AttendItem& item) { item.layer.page_runs = {&bad, 1}; });
  }
  const std::vector<std::span<const PageRef>> twice(2, {&pages[0], 1});
  add([&](AttendItem& item) { item.layer.page_runs = twice; });
  add([](AttendItem& item) { item.layer.spec = nullptr; });
  add([](AttendItem& item) { item.layer.sinks = kNoBlock; });
  add([](AttendItem& item) { item.layer.window = {}; });
  add([](AttendItem& item) { item.layer.length = -1; });
  add([](AttendItem& item) { item.layer.directions = nullptr; });
  add([](AttendItem& item) { item.num_queries = -1; });
  add([](AttendItem& item) { item.query_begin = INT64_MAX; });
  add([](AttendItem& item) { item.query_begin = INT64_MIN; });
  add([](AttendItem& item) { item.queries = nullptr; });
  add([](AttendItem& item) { item.outputs = nullptr; });
  add([](AttendItem& item) { item.log_sum_exps = nullptr; });
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_EQ(backend->Attend({&wrong[i], 1}).code, KernelErrorCode::kInvalidArgument) << i;
  }
}

TEST_P(BackendContract, BrokenAppendsReadsAndSealsAreRefused) {
  const auto backend = Make(1);
  const LayerSpec spec = MakeSpec(1, 1, 64, 64);
  Random random(851);
  MiniSession session(*backend, spec);
  Fill(session, 60, 60, false, random);
  const std::vector<float> rows(32 * 64);
  const AppendItem append{&spec,      session.View().window[0], 32, 0, 1, DType::kFP32, rows.data(),
                          rows.data()};
  const auto refused_append = [&](auto change) {
    AppendItem item = append;
    change(item);
    EXPECT_EQ(backend->Append({&item, 1}).code, KernelErrorCode::kInvalidArgument);
  };
  refused_append([](AppendItem& item) { item.block = kNoBlock; });
  refused_append([](AppendItem& item) { item.slot = 32; });
  refused_append([](AppendItem& item) { item.slot = -1; });
  refused_append([](AppendItem& item) { item.tokens = 33; });
  refused_append([](AppendItem& item) { item.block_tokens = 64; });
  refused_append([](AppendItem& item) { item.keys = nullptr; });
  refused_append([](AppendItem& item) { item.dtype = DType::kFP16; });
  refused_append([](AppendItem& item) { item.spec = nullptr; });

  std::vector<std::uint16_t> out(64 * 64);
  const auto refused_read = [&](std::int64_t begin, std::int64_t tokens, std::uint16_t* keys) {
    const ReadItem item{session.View(), begin, tokens, keys, out.data()};
    EXPECT_EQ(backend->ReadTokens({&item, 1}).code, KernelErrorCode::kInvalidArgument);
  };
  refused_read(-1, 2, out.data());
  refused_read(0, -1, out.data());
  refused_read(59, 2, out.data());
  refused_read(60, 1, out.data());
  refused_read(0, 1, nullptr);

  BlockId page = kNoBlock;
  ASSERT_TRUE(backend->Allocate(PageLayout(spec).bytes, {&page, 1}).ok());
  std::vector<BlockId> tokens(8, session.View().window[0]);
  SealedHead head;
  SealItem seal{&spec, tokens, 128, page, nullptr, 0, nullptr, &head, 0};
  const auto refused_seal = [&](auto change) {
    SealItem item = seal;
    change(item);
    EXPECT_EQ(backend->Seal({&item, 1}).code, KernelErrorCode::kInvalidArgument);
  };
  refused_seal([](SealItem& item) { item.page = kNoBlock; });
  refused_seal([&](SealItem& item) { item.page = session.View().sinks; });
  refused_seal([](SealItem& item) { item.tokens = item.tokens.first(7); });
  refused_seal([](SealItem& item) { item.context = -1; });
  refused_seal([](SealItem& item) { item.heads = nullptr; });
  refused_seal([](SealItem& item) { item.num_queries = 1; });
  refused_seal([](SealItem& item) { item.head_begin = -1; });
  refused_seal([&](SealItem& item) { item.head_begin = spec.kv_heads; });
  refused_seal([&](SealItem& item) { item.head_end = spec.kv_heads + 1; });
  refused_seal([](SealItem& item) { item.head_end = -1; });
}

TEST_P(BackendContract, ManyThreadsMayCallAtOnce) {
  const auto backend = Make(2);
  constexpr int kThreads = 4;
  const auto work = [&](int seed) {
    Random random(900 + seed);
    MiniSession session(*backend, MakeSpec(4, 2, 64, 64));
    Answer answer;
    for (int round = 0; round < 4; ++round) {
      Fill(session, 150, 40, true, random);
      const std::vector<float> queries = RandomQueries(session.spec(), 2, random);
      answer = Attend(*backend, session.View(), queries, {session.length() - 2});
    }
    std::vector<std::uint16_t> keys(session.length() * 2 * 64);
    std::vector<std::uint16_t> values(keys.size());
    const ReadItem item{session.View(), 0, session.length(), keys.data(), values.data()};
    EXPECT_TRUE(backend->ReadTokens({&item, 1}).ok());
    return answer.outputs;
  };
  std::vector<float> alone[kThreads];
  for (int i = 0; i < kThreads; ++i) alone[i] = work(i);
  std::vector<float> together[kThreads];
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { together[i] = work(i); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kThreads; ++i) EXPECT_EQ(together[i], alone[i]) << i;
}

}  // namespace
}  // namespace oscarkv::testing
