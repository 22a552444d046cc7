#include "tests/kernels/support/mini_session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "kernels/api/page_layout.h"
#include "kernels/api/query_directions.h"
#include "tests/kernels/support/random_layer.h"

namespace oscarkv::testing {
namespace {

void ExpectOk(const KernelStatus& status) { EXPECT_TRUE(status.ok()) << status.message; }

// A block of NaNs: whoever looks at a slot that was never written gets them back.
BlockId NewBlock(Backend& backend, std::int64_t bytes) {
  BlockId block = kNoBlock;
  ExpectOk(backend.Allocate(bytes, {&block, 1}));
  ExpectOk(backend.WriteBlock(block, std::vector<std::byte>(bytes, std::byte{0xFF})));
  return block;
}

std::vector<double> Stored(DType storage, std::span<const float> x) {
  std::vector<double> out;
  for (const std::uint16_t bits : Round16(storage, x)) {
    out.push_back(oracle::Value16(storage, bits));
  }
  return out;
}

}  // namespace

MiniSession::MiniSession(Backend& backend, LayerSpec spec)
    : backend_(backend), spec_(std::move(spec)), window_begin_(spec_.codec.sinks) {
  if (spec_.codec.sinks > 0) {
    sinks_ = NewBlock(backend_, TokenBlockLayout(spec_, spec_.codec.sinks).bytes);
  }
  directions_ = spec_.given_directions;
}

MiniSession::~MiniSession() {
  backend_.Free({&sinks_, 1});
  backend_.Free(window_);
  for (const PageRef& page : pages_) backend_.Free({&page.block, 1});
}

void MiniSession::AppendToBlock(BlockId block, int capacity, std::int64_t slot, std::int64_t row,
                                int tokens, std::span<const float> keys,
                                std::span<const float> values) {
  AppendItem item;
  item.spec = &spec_;
  item.block = block;
  item.block_tokens = capacity;
  item.slot = static_cast<std::int32_t>(slot);
  item.tokens = tokens;
  item.dtype = DType::kFP32;
  item.keys = keys.data() + row * spec_.kv_heads * spec_.key_dim;
  item.values = values.data() + row * spec_.kv_heads * spec_.value_dim;
  ExpectOk(backend_.Append({&item, 1}));
}

void MiniSession::Append(std::span<const float> keys, std::span<const float> values) {
  Seal();
  const auto tokens =
      static_cast<std::int64_t>(keys.size()) / (std::int64_t{1} * spec_.kv_heads * spec_.key_dim);
  for (std::int64_t row = 0; row < tokens;) {
    std::int64_t count = 0;
    if (length_ < spec_.codec.sinks) {
      count = std::min(tokens - row, spec_.codec.sinks - length_);
      AppendToBlock(sinks_, spec_.codec.sinks, length_, row, static_cast<int>(count), keys, values);
    } else {
      const std::int64_t slot = (length_ - window_begin_) % kWindowBlockTokens;
      if (slot == 0) {
        window_.push_back(NewBlock(backend_, TokenBlockLayout(spec_, kWindowBlockTokens).bytes));
      }
      count = std::min(tokens - row, kWindowBlockTokens - slot);
      AppendToBlock(window_.back(), kWindowBlockTokens, slot, row, static_cast<int>(count), keys,
                    values);
    }
    row += count;
    length_ += count;
  }
  oracle::Extend(exact_, {Stored(spec_.storage, keys), Stored(spec_.storage, values)});
}

void MiniSession::Sample(std::int64_t position, std::span<const float> queries) {
  const std::size_t width = static_cast<std::size_t>(spec_.query_heads) * spec_.key_dim;
  for (std::size_t i = 0; i * width < queries.size(); ++i) {
    const std::int64_t at = position + static_cast<std::int64_t>(i);
    if (at % spec_.query_sample_stride() != 0) continue;
    sample_[at] = Round16(spec_.storage, queries.subspan(i * width, width));
  }
}

void MiniSession::Seal() {
  if (!spec_.seals()) return;
  while (window_begin_ + kPageTokens + spec_.codec.window <= length_) SealOldest();
}

void MiniSession::SealOldest() {
  std::vector<std::uint16_t> queries;
  const auto end = sample_.lower_bound(window_begin_ + kPageTokens + spec_.codec.window);
  int count = 0;
  for (auto it = sample_.lower_bound(window_begin_); it != end; ++it, ++count) {
    queries.insert(queries.end(), it->second.begin(), it->second.end());
  }
  if (spec_.has_residual() && directions_.empty() && count > 0) {
    directions_ = PrincipalDirections(spec_, queries.data(), count);
  }
  const PageRef page{NewBlock(backend_, PageLayout(spec_).bytes), window_begin_, kPageTokens};
  sealed_heads_.assign(spec_.kv_heads, {});
  SealItem item;
  item.spec = &spec_;
  item.tokens = window_;
  item.context = spec_.codec.window;
  item.page = page.block;
  item.queries = count > 0 ? queries.data() : nullptr;
  item.num_queries = count;
  item.directions = directions_.empty() ? nullptr : directions_.data();
  item.heads = sealed_heads_.data();
  ExpectOk(backend_.Seal({&item, 1}));
  norm_imbalance_ = item.norm_imbalance;
  pages_.push_back(page);
  run_ = pages_;
  constexpr int kBlocks = kPageTokens / kWindowBlockTokens;
  backend_.Free(std::span(window_).first(kBlocks));
  window_.erase(window_.begin(), window_.begin() + kBlocks);
  window_begin_ += kPageTokens;
}

void MiniSession::Truncate(std::int64_t length) {
  length_ = length;
  while (!pages_.empty() && pages_.back().begin >= length) {
    backend_.Free({&pages_.back().block, 1});
    window_begin_ = pages_.back().begin;
    pages_.pop_back();
  }
  run_ = pages_;
  if (!pages_.empty() && pages_.back().begin + pages_.back().tokens > length) {
    pages_.back().tokens = static_cast<std::int32_t>(length - pages_.back().begin);
    window_begin_ = length;
  }
  const std::int64_t blocks =
      (std::max<std::int64_t>(0, length - window_begin_) + kWindowBlockTokens - 1) /
      kWindowBlockTokens;
  backend_.Free(std::span(window_).subspan(blocks));
  window_.resize(blocks);
  sample_.erase(sample_.lower_bound(length), sample_.end());
  exact_.keys.resize(length * spec_.kv_heads * spec_.key_dim);
  exact_.values.resize(length * spec_.kv_heads * spec_.value_dim);
}

LayerView MiniSession::View() const {
  LayerView view;
  view.spec = &spec_;
  view.sinks = sinks_;
  view.page_runs = {&run_, 1};
  view.window = window_;
  view.window_begin = window_begin_;
  view.length = length_;
  view.directions = directions_.empty() ? nullptr : directions_.data();
  return view;
}

std::vector<std::byte> MiniSession::PageBytes(int page) const {
  std::vector<std::byte> bytes(PageLayout(spec_).bytes);
  ExpectOk(backend_.ReadBlock(pages_[page].block, bytes));
  return bytes;
}

oracle::Tokens MiniSession::Decoded() const {
  oracle::Tokens tokens = exact_;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    const oracle::Tokens page =
        oracle::DecodePage(spec_, PageBytes(static_cast<int>(i)).data(),
                           directions_.empty() ? nullptr : directions_.data());
    const std::int64_t begin = pages_[i].begin;
    const std::int64_t key_row = std::int64_t{1} * spec_.kv_heads * spec_.key_dim;
    const std::int64_t value_row = std::int64_t{1} * spec_.kv_heads * spec_.value_dim;
    std::copy_n(page.keys.begin(), pages_[i].tokens * key_row,
                tokens.keys.begin() + begin * key_row);
    std::copy_n(page.values.begin(), pages_[i].tokens * value_row,
                tokens.values.begin() + begin * value_row);
  }
  return tokens;
}

}  // namespace oscarkv::testing
