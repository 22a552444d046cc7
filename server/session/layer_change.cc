#include "server/session/layer_change.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <optional>
#include <utility>

#include "kernels/api/page_layout.h"
#include "server/base/kernel_status.h"

namespace oscarkv {
namespace {

constexpr std::int64_t kBlocksPerPage = kPageTokens / kWindowBlockTokens;

constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

LayerChange::LayerChange(LayerState* layer, BlockPool* pool, MemoryBudget* budget,
                         MemoryReservation* promise)
    : layer_(layer),
      pool_(pool),
      budget_(budget),
      promise_(promise),
      old_length_(layer->length_),
      host_memory_(budget, MemoryKind::kWindow) {}

LayerChange::~LayerChange() {
  if (applied_) Undo();
}

absl::Status LayerChange::Prepare(std::int64_t pages, const TokenRows& tokens,
                                  const QueryRows& queries) {
  assert(!applied_ && pages <= layer_->SealablePages());
  tokens_ = tokens;
  if (pages > 0 && layer_->preparation()) {
    pages = std::max(pages, static_cast<std::int64_t>(layer_->preparation()->pages()));
  }
  if (absl::Status status = PrepareAppend(); !status.ok()) return status;
  if (absl::Status status = PrepareSample(pages, queries); !status.ok()) return status;
  // Last: seal items point to what the others make room in, and what was prepared is taken for
  // good.
  return PrepareSeals(pages);
}

absl::Status LayerChange::PrepareSeals(std::int64_t pages) {
  if (pages == 0) return absl::OkStatus();
  const auto count = static_cast<std::size_t>(pages);
  layer_->pages_.Reserve(count);
  sealed_window_.reserve(count * kBlocksPerPage);
  const SealSource source = layer_->Source();
  sealing_ = layer_->TakePreparation();
  if (!sealing_) sealing_ = std::make_unique<Sealing>(source, pool_, budget_);
  const std::int64_t missing = pages - static_cast<std::int64_t>(sealing_->size());
  absl::Status status = sealing_->Add(missing, source, Purpose::kSeal, promise_);
  if (status.ok()) seal_items_ = sealing_->Remaining();
  return status;
}

absl::Status LayerChange::PrepareAppend() {
  if (tokens_.count == 0) return absl::OkStatus();
  const LayerSpec& spec = layer_->spec();
  const std::int64_t sinks = spec.codec.sinks;
  const std::int64_t length = old_length_ + tokens_.count;
  if (old_length_ < sinks) {
    absl::Status status =
        PrepareTail(layer_->sinks_, TokenBlockLayout(spec, spec.codec.sinks).bytes, &sinks_);
    if (!status.ok()) return status;
  }
  const Window& window = layer_->window_;
  const std::int64_t block_bytes = TokenBlockLayout(spec, kWindowBlockTokens).bytes;
  if (window.size() > 0 && old_length_ < window.capacity_end()) {
    absl::Status status = PrepareTail(window.block(window.size() - 1), block_bytes, &window_tail_);
    if (!status.ok()) return status;
  }
  const std::int64_t missing = std::max<std::int64_t>(0, length - window.capacity_end());
  new_window_blocks_ = static_cast<std::size_t>(CeilDiv(missing, kWindowBlockTokens));
  layer_->window_.Reserve(new_window_blocks_);
  append_items_.reserve(2 + new_window_blocks_);  // sinks, the tail, new blocks
  return pool_->Allocate(MemoryKind::kWindow, block_bytes, new_window_blocks_, &window_blocks_,
                         Purpose::kKeep, promise_);
}

absl::Status LayerChange::PrepareTail(const BlockRef& old, std::int64_t bytes, Tail* tail) {
  if (old && !old.shared()) return absl::OkStatus();
  std::vector<BlockRef> block;
  absl::Status status =
      pool_->Allocate(MemoryKind::kWindow, bytes, 1, &block, Purpose::kKeep, promise_);
  if (!status.ok()) return status;
  // The layer gives the block away, and a preparation may have to read it yet.
  drops_preparation_ |= old && layer_->preparation();
  if (old) copy_items_.push_back({.from = old.id(), .to = block[0].id(), .bytes = bytes});
  *tail = {.replaced = true, .block = std::move(block[0])};
  return absl::OkStatus();
}

absl::Status LayerChange::PrepareSample(std::int64_t pages, const QueryRows& queries) {
  if (queries.count == 0 || !layer_->WantsSample()) return absl::OkStatus();
  const std::int64_t next_page = layer_->window_.begin() + pages * kPageTokens;
  const std::vector<std::int32_t> missing =
      layer_->sample_.Missing(queries, next_page, old_length_ + tokens_.count);
  const std::int64_t bytes =
      layer_->sample_.row_bytes() * static_cast<std::int64_t>(missing.size());
  if (!host_memory_.Grow(bytes, Purpose::kKeep, promise_)) {
    return OutOfMemory("no memory left for sampled queries");
  }
  sample_addition_ = layer_->sample_.Prepare(queries, missing);
  drops_preparation_ |=
      pages == 0 && layer_->preparation() && !missing.empty() &&
      queries.begin + missing.front() * queries.stride < layer_->preparation()->inputs_end();
  return absl::OkStatus();
}

void LayerChange::Apply() noexcept {
  assert(!applied_);
  applied_ = true;
  if (sealing_) InstallPages();
  if (sinks_.replaced) std::swap(layer_->sinks_, sinks_.block);
  if (window_tail_.replaced) {
    window_tail_.block =
        layer_->window_.Replace(layer_->window_.size() - 1, std::move(window_tail_.block));
  }
  for (BlockRef& block : window_blocks_) layer_->window_.PushBack(std::move(block));
  window_blocks_.clear();
  layer_->length_ += tokens_.count;
  BuildAppendItems();
}

void LayerChange::InstallPages() noexcept {
  for (std::size_t i = 0; i < sealing_->size(); ++i) {
    const auto offset = static_cast<std::int64_t>(i) * kPageTokens;
    layer_->pages_.Push(sealing_->block(i), layer_->window_.begin() + offset, sealing_->blind(i));
  }
  layer_->window_.PopFront(sealing_->size() * kBlocksPerPage, &sealed_window_);
  if (const std::optional<std::int64_t> begin = sealing_->finds_directions_at()) {
    layer_->directions_.swap(*sealing_->found_directions());
    layer_->directions_begin_ = *begin;
  }
}

void LayerChange::BuildAppendItems() noexcept {
  const std::int64_t sinks = layer_->spec().codec.sinks;
  std::int64_t begin = old_length_;
  const std::int64_t end = layer_->length_;
  if (begin < std::min(sinks, end)) {
    AddAppendItem(layer_->sinks_.id(), static_cast<std::int32_t>(sinks), begin, begin,
                  std::min(sinks, end));
    begin = std::min(sinks, end);
  }
  while (begin < end) {
    const std::int64_t offset = begin - layer_->window_.begin();
    const std::int64_t slot = offset % kWindowBlockTokens;
    const std::int64_t stop = std::min(end, begin - slot + kWindowBlockTokens);
    const auto block = static_cast<std::size_t>(offset / kWindowBlockTokens);
    AddAppendItem(layer_->window_.ids()[block], kWindowBlockTokens, slot, begin, stop);
    begin = stop;
  }
}

void LayerChange::AddAppendItem(BlockId block, std::int32_t capacity, std::int64_t slot,
                                std::int64_t begin, std::int64_t end) noexcept {
  const LayerSpec& spec = layer_->spec();
  const auto row = static_cast<std::size_t>(begin - old_length_);
  const std::size_t row_heads = row * static_cast<std::size_t>(spec.kv_heads);
  const std::size_t element = SizeOf(tokens_.dtype);
  append_items_.push_back(
      {.spec = &spec,
       .block = block,
       .block_tokens = capacity,
       .slot = static_cast<std::int32_t>(slot),
       .tokens = static_cast<std::int32_t>(end - begin),
       .dtype = tokens_.dtype,
       .keys = static_cast<const std::byte*>(tokens_.keys) +
               row_heads * static_cast<std::size_t>(spec.key_dim) * element,
       .values = static_cast<const std::byte*>(tokens_.values) +
                 row_heads * static_cast<std::size_t>(spec.value_dim) * element});
}

void LayerChange::Commit() noexcept {
  assert(applied_);
  applied_ = false;
  if (tokens_.count > 0) {
    layer_->last_append_ = {
        .start = old_length_, .count = tokens_.count, .dtype = tokens_.dtype, .crc = tokens_.crc};
  }
  layer_->host_memory_.Absorb(&host_memory_);
  if (sealing_) layer_->host_memory_.Absorb(sealing_->host_memory());
  if (drops_preparation_) layer_->TakePreparation();
  if (layer_->WantsSample()) {
    layer_->sample_.DropBefore(layer_->window_.begin());
    layer_->sample_.Add(sample_addition_);
  } else {
    layer_->sample_.DropFrom(0);
  }
  layer_->TrimHostMemory();
  layer_->FreeUnseen();
}

void LayerChange::Undo() noexcept {
  applied_ = false;
  layer_->length_ = old_length_;
  for (; new_window_blocks_ > 0; --new_window_blocks_) layer_->window_.PopBack();
  if (window_tail_.replaced) {
    layer_->window_.Replace(layer_->window_.size() - 1, std::move(window_tail_.block));
  }
  if (sinks_.replaced) std::swap(layer_->sinks_, sinks_.block);
  if (!sealing_) return;
  layer_->window_.PushFront(&sealed_window_);
  layer_->pages_.Pop(sealing_->size());
  if (sealing_->finds_directions_at()) layer_->directions_.swap(*sealing_->found_directions());
}

}  // namespace oscarkv
