#include "tests/server/support/fake_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/api/dtype.h"
#include "kernels/api/page_layout.h"
#include "server/base/crc32c.h"

namespace oscarkv {
namespace {

std::size_t RowValues(const LayerSpec& spec) {
  return static_cast<std::size_t>(spec.kv_heads) * (spec.key_dim + spec.value_dim);
}

// Places of one token's key and value of one head in a block of 16-bit tokens.
std::int64_t KeyOffset(const LayerSpec& spec, const TokenBlockLayout& layout, int head,
                       std::int64_t slot) {
  return head * layout.head_bytes + slot * spec.key_dim * 2;
}
std::int64_t ValueOffset(const LayerSpec& spec, const TokenBlockLayout& layout, int head,
                         std::int64_t slot) {
  return head * layout.head_bytes + layout.value_offset + slot * spec.value_dim * 2;
}

// In the place of tokens that have been freed: what sees one gives NaN.
constexpr std::uint16_t kFreed = 0x7fc0;

}  // namespace

std::vector<PageRef> AllPages(std::span<const std::span<const PageRef>> runs) {
  std::vector<PageRef> pages;
  for (const std::span<const PageRef> run : runs) pages.insert(pages.end(), run.begin(), run.end());
  return pages;
}

BackendInfo FakeBackend::Info() const { return {.name = "fake", .device = "memory of the test"}; }

KernelStatus FakeBackend::Allocate(std::int64_t bytes, std::span<BlockId> blocks) {
  EXPECT_GT(bytes, 0);
  MutexLock lock(&mutex_);
  for (BlockId& id : blocks) {
    id = BlockId{next_id_++};
    blocks_[id] = std::make_shared<Block>();
    // NaN in every 16-bit type: a token that is read before it is written shows.
    blocks_[id]->bytes.assign(static_cast<std::size_t>(bytes), std::byte{0xff});
  }
  return KernelStatus::Ok();
}

void FakeBackend::Free(std::span<const BlockId> blocks) {
  MutexLock lock(&mutex_);
  for (const BlockId id : blocks) {
    if (id == kNoBlock) continue;
    EXPECT_EQ(blocks_.erase(id), 1U) << "freed twice";
  }
}

std::shared_ptr<FakeBackend::Block> FakeBackend::Find(BlockId id) {
  MutexLock lock(&mutex_);
  const auto it = blocks_.find(id);
  if (it == blocks_.end()) {
    ADD_FAILURE() << "no such block: " << static_cast<std::uint64_t>(id);
    return std::make_shared<Block>(
        Block{.bytes = std::vector<std::byte>(1 << 20), .sealed = {}, .sealed_heads = 0});
  }
  return it->second;
}

KernelStatus FakeBackend::Append(std::span<const AppendItem> items) {
  for (const AppendItem& item : items) {
    const LayerSpec& spec = *item.spec;
    EXPECT_GE(item.slot, 0);
    EXPECT_GT(item.tokens, 0);
    EXPECT_LE(item.slot + item.tokens, item.block_tokens);
    const std::shared_ptr<Block> block = Find(item.block);
    const TokenBlockLayout layout(spec, item.block_tokens);
    EXPECT_EQ(static_cast<std::int64_t>(block->bytes.size()), layout.bytes);
    const auto copy = [&](const void* rows, int dim, std::int64_t row, std::int64_t offset) {
      const auto* from = static_cast<const std::byte*>(rows) + row * dim * SizeOf(item.dtype);
      std::vector<std::uint16_t> stored(dim);
      ToStorage(item.dtype, from, stored.size(), spec.storage, stored.data());
      std::memcpy(&block->bytes[offset], stored.data(), 2 * stored.size());
    };
    for (std::int64_t t = 0; t < item.tokens; ++t) {
      for (int h = 0; h < spec.kv_heads; ++h) {
        const std::int64_t row = t * spec.kv_heads + h;
        copy(item.keys, spec.key_dim, row, KeyOffset(spec, layout, h, item.slot + t));
        copy(item.values, spec.value_dim, row, ValueOffset(spec, layout, h, item.slot + t));
      }
    }
  }
  return KernelStatus::Ok();
}

std::vector<std::uint16_t> FakeBackend::TokenRow(const LayerSpec& spec, BlockId block,
                                                 int block_tokens, std::int64_t slot) {
  const std::shared_ptr<Block> found = Find(block);
  const TokenBlockLayout layout(spec, block_tokens);
  std::vector<std::uint16_t> row(RowValues(spec));
  std::uint16_t* next = row.data();
  for (int h = 0; h < spec.kv_heads; ++h, next += spec.key_dim) {
    std::memcpy(next, &found->bytes[KeyOffset(spec, layout, h, slot)], 2 * spec.key_dim);
  }
  for (int h = 0; h < spec.kv_heads; ++h, next += spec.value_dim) {
    std::memcpy(next, &found->bytes[ValueOffset(spec, layout, h, slot)], 2 * spec.value_dim);
  }
  EXPECT_NE(row[0], 0xffff) << "read before it was written";
  return row;
}

void FakeBackend::CheckView(const LayerView& view) {
  const std::int64_t sinks = view.spec->codec.sinks;
  EXPECT_EQ(view.sinks == kNoBlock, sinks == 0 || view.length == 0);
  const std::vector<PageRef> pages = AllPages(view.page_runs);
  std::int64_t next = std::min(sinks, view.length);
  if (view.spec->sliding_window > 0) {  // what is before may have been freed
    next = std::max(next, pages.empty() ? view.window_begin : pages.front().begin);
  }
  for (const PageRef& page : pages) {
    EXPECT_EQ(page.begin, next);
    EXPECT_GT(page.tokens, 0);
    EXPECT_LE(page.tokens, kPageTokens);
    next += page.tokens;
  }
  EXPECT_EQ(view.window_begin, next);
  const std::int64_t in_window = view.length - view.window_begin;
  EXPECT_GE(in_window, 0);
  EXPECT_EQ(static_cast<std::int64_t>(view.window.size()),
            (in_window + kWindowBlockTokens - 1) / kWindowBlockTokens);
}

PlainTokens FakeBackend::Gather(const LayerView& view, std::int64_t begin, std::int64_t end) {
  CheckView(view);
  const LayerSpec& spec = *view.spec;
  PlainTokens tokens{.keys = {}, .values = {}, .length = end - begin};
  const auto key_values = static_cast<std::ptrdiff_t>(spec.kv_heads) * spec.key_dim;
  const std::vector<PageRef> pages = AllPages(view.page_runs);
  std::size_t page = 0;
  for (std::int64_t t = begin; t < end; ++t) {
    std::vector<std::uint16_t> row;
    if (t < spec.codec.sinks) {
      row = TokenRow(spec, view.sinks, spec.codec.sinks, t);
    } else if (t >= view.window_begin) {
      const std::int64_t offset = t - view.window_begin;
      row = TokenRow(spec, view.window[offset / kWindowBlockTokens], kWindowBlockTokens,
                     offset % kWindowBlockTokens);
    } else if (pages.empty() || t < pages.front().begin) {
      row.assign(RowValues(spec), kFreed);
    } else {
      while (t >= pages[page].begin + pages[page].tokens) ++page;
      const std::shared_ptr<Block> block = Find(pages[page].block);
      EXPECT_EQ(block->sealed_heads, spec.kv_heads) << "read before it was sealed";
      const auto first = static_cast<std::ptrdiff_t>(RowValues(spec)) * (t - pages[page].begin);
      row.assign(block->sealed.begin() + first,
                 block->sealed.begin() + first + static_cast<std::ptrdiff_t>(RowValues(spec)));
    }
    tokens.keys.insert(tokens.keys.end(), row.begin(), row.begin() + key_values);
    tokens.values.insert(tokens.values.end(), row.begin() + key_values, row.end());
  }
  return tokens;
}

KernelStatus FakeBackend::Attend(std::span<const AttendItem> items) {
  for (const AttendItem& item : items) {
    PlainAttend(*item.layer.spec, Gather(item.layer, 0, item.layer.length),
                {.dtype = item.dtype,
                 .data = item.queries,
                 .count = item.num_queries,
                 .begin = item.query_begin,
                 .causal = item.causal,
                 .count_sink_logits = item.count_sink_logits},
                item.outputs, item.log_sum_exps);
  }
  return KernelStatus::Ok();
}

KernelStatus FakeBackend::Seal(std::span<SealItem> items) {
  for (SealItem& item : items) {
    const LayerSpec& spec = *item.spec;
    EXPECT_EQ(item.context, spec.codec.window);
    EXPECT_EQ(static_cast<int>(item.tokens.size()),
              (kPageTokens + item.context + kWindowBlockTokens - 1) / kWindowBlockTokens);
    const std::shared_ptr<Block> page = Find(item.page);
    EXPECT_EQ(static_cast<std::int64_t>(page->bytes.size()), PageLayout(spec).bytes);
    EXPECT_GE(page->sealed_heads, item.head_begin) << "in a wrong order";
    EXPECT_TRUE(page->sealed_heads == item.head_begin || forgiving_) << "sealed twice";
    page->sealed_heads = item.head_end == 0 ? spec.kv_heads : item.head_end;
    EXPECT_GT(page->sealed_heads, item.head_begin);
    EXPECT_LE(page->sealed_heads, spec.kv_heads);
    std::uint32_t digest = 0;
    page->sealed.clear();
    for (std::int64_t t = 0; t < kPageTokens + item.context; ++t) {
      const std::vector<std::uint16_t> row = TokenRow(spec, item.tokens[t / kWindowBlockTokens],
                                                      kWindowBlockTokens, t % kWindowBlockTokens);
      digest = Crc32c(row.data(), 2 * row.size(), digest);
      if (t < kPageTokens) page->sealed.insert(page->sealed.end(), row.begin(), row.end());
    }
    EXPECT_EQ(item.queries == nullptr, item.num_queries == 0);
    digest = Crc32c(item.queries, 2UL * item.num_queries * spec.query_heads * spec.key_dim, digest);
    if (item.directions) {
      digest = Crc32c(item.directions, sizeof(float) * spec.kv_heads * spec.key_dim, digest);
    }
    std::fill_n(item.heads + item.head_begin, page->sealed_heads - item.head_begin, SealedHead{});
    if (item.head_begin > 0) {
      EXPECT_EQ(std::memcmp(page->bytes.data(), &digest, sizeof(digest)), 0) << "of other things";
      continue;
    }
    std::fill(page->bytes.begin(), page->bytes.end(), std::byte{0});
    std::memcpy(page->bytes.data(), &digest, sizeof(digest));
    item.norm_imbalance = 1;
  }
  return KernelStatus::Ok();
}

KernelStatus FakeBackend::ReadTokens(std::span<const ReadItem> items) {
  for (const ReadItem& item : items) {
    const PlainTokens tokens = Gather(item.layer, item.begin, item.begin + item.tokens);
    std::copy(tokens.keys.begin(), tokens.keys.end(), item.keys);
    std::copy(tokens.values.begin(), tokens.values.end(), item.values);
  }
  return KernelStatus::Ok();
}

KernelStatus FakeBackend::Copy(std::span<const CopyItem> items) {
  for (const CopyItem& item : items) {
    const std::shared_ptr<Block> from = Find(item.from);
    const std::shared_ptr<Block> to = Find(item.to);
    std::copy_n(from->bytes.begin(), item.bytes, to->bytes.begin());
  }
  return KernelStatus::Ok();
}

KernelStatus FakeBackend::ReadBlock(BlockId block, std::span<std::byte> bytes) {
  const std::shared_ptr<Block> found = Find(block);
  std::copy_n(found->bytes.begin(), bytes.size(), bytes.begin());
  return KernelStatus::Ok();
}

KernelStatus FakeBackend::WriteBlock(BlockId block, std::span<const std::byte> bytes) {
  std::copy(bytes.begin(), bytes.end(), Find(block)->bytes.begin());
  return KernelStatus::Ok();
}

std::int64_t FakeBackend::blocks() const {
  MutexLock lock(&mutex_);
  return static_cast<std::int64_t>(blocks_.size());
}

}  // namespace oscarkv
