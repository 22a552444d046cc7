#include "server/session/layer_change.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <utility>

#include "kernels/api/page_layout.h"
#include "kernels/api/query_directions.h"
#include "server/base/kernel_status.h"

namespace oscarkv {
namespace {

constexpr std::int64_t kBlocksPerPage = kPageTokens / kWindowBlockTokens;

constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

LayerChange::LayerChange(LayerState* layer, BlockPool* pool, MemoryBudget* budget)
    : layer_(layer),
      pool_(pool),
      old_length_(layer->length_),
      host_memory_(budget, MemoryKind::kWindow) {}

LayerChange::~LayerChange() {
  if (applied_) Undo();
}

absl::Status LayerChange::Prepare(std::int64_t pages, const TokenRows& tokens,
                                  const QueryRows& queries) {
  assert(!applied_ && pages <= layer_->SealablePages());
  tokens_ = tokens;
  if (absl::Status status = PrepareAppend(); !status.ok()) return status;
  if (absl::Status status = PrepareSample(pages, queries); !status.ok()) return status;
  // Last: seal items point to what the others make room in.
  return PrepareSeals(pages);
}

absl::Status LayerChange::PrepareSeals(std::int64_t pages) {
  if (pages == 0) return absl::OkStatus();
  const LayerSpec& spec = layer_->spec();
  const auto count = static_cast<std::size_t>(pages);
  const std::int64_t page_bytes = PageLayout(spec).bytes;
  absl::Status status = pool_->Allocate(MemoryKind::kPages, page_bytes, count, &pages_);
  if (!status.ok()) return status;
  layer_->pages_.Reserve(count);
  sealed_window_.reserve(count * kBlocksPerPage);

  // The first page with queries finds the directions, if the layer has none.
  const bool finds_directions =
      spec.has_residual() && layer_->Directions() == nullptr && layer_->WantsSample();
  const std::int64_t directions_bytes =
      finds_directions
          ? std::int64_t{spec.kv_heads} * spec.key_dim * static_cast<std::int64_t>(sizeof(float))
          : 0;
  if (!host_memory_.Grow(directions_bytes, Purpose::kSeal)) {
    return OutOfMemory("no memory left for residual directions");
  }
  const std::size_t heads = static_cast<std::size_t>(spec.kv_heads);
  sealed_heads_.resize(count * heads);
  const std::int64_t context_blocks = CeilDiv(kPageTokens + spec.codec.window, kWindowBlockTokens);
  for (std::int64_t i = 0; i < pages; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t begin = layer_->window_.begin() + i * kPageTokens;
    const bool wants_queries =
        layer_->WantsSample() && (spec.codec.plan == PlanMode::kAuto || directions_.empty());
    const QuerySample::Slice sample =
        layer_->sample_.Range(begin, begin + kPageTokens + spec.codec.window);
    blind_.push_back(wants_queries && sample.count == 0);
    seal_items_.push_back(
        {.spec = &spec,
         .tokens = layer_->window_.ids().subspan(static_cast<std::size_t>(i * kBlocksPerPage),
                                                 static_cast<std::size_t>(context_blocks)),
         .context = spec.codec.window,
         .page = pages_[at].id(),
         .queries = sample.count > 0 ? sample.rows : nullptr,
         .num_queries = sample.count,
         .directions = DirectionsFor(begin, sample),
         .heads = sealed_heads_.data() + at * heads});
  }
  finds_directions_ = !directions_.empty();
  if (!finds_directions_) host_memory_.Shrink(directions_bytes);
  return absl::OkStatus();
}

const float* LayerChange::DirectionsFor(std::int64_t page_begin, const QuerySample::Slice& sample) {
  const LayerSpec& spec = layer_->spec();
  if (!spec.has_residual()) return nullptr;
  if (const float* known = layer_->Directions()) return known;
  if (directions_.empty() && sample.count > 0) {
    directions_ = PrincipalDirections(spec, sample.rows, sample.count);
    directions_begin_ = page_begin;
  }
  return directions_.empty() ? nullptr : directions_.data();
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
  return pool_->Allocate(MemoryKind::kWindow, block_bytes, new_window_blocks_, &window_blocks_);
}

absl::Status LayerChange::PrepareTail(const BlockRef& old, std::int64_t bytes, Tail* tail) {
  if (old && !old.shared()) return absl::OkStatus();
  std::vector<BlockRef> block;
  absl::Status status = pool_->Allocate(MemoryKind::kWindow, bytes, 1, &block);
  if (!status.ok()) return status;
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
  if (!host_memory_.Grow(bytes)) return OutOfMemory("no memory left for sampled queries");
  sample_addition_ = layer_->sample_.Prepare(queries, missing);
  return absl::OkStatus();
}

void LayerChange::Apply() noexcept {
  assert(!applied_);
  applied_ = true;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    const auto offset = static_cast<std::int64_t>(i) * kPageTokens;
    layer_->pages_.Push(pages_[i], layer_->window_.begin() + offset, blind_[i]);
  }
  layer_->window_.PopFront(pages_.size() * kBlocksPerPage, &sealed_window_);
  if (finds_directions_) {
    layer_->directions_.swap(directions_);
    layer_->directions_begin_ = directions_begin_;
  }

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
  if (layer_->WantsSample()) {
    layer_->sample_.DropBefore(layer_->window_.begin());
    layer_->sample_.Add(sample_addition_);
  } else {
    layer_->sample_.DropFrom(0);
  }
  layer_->TrimHostMemory();
}

void LayerChange::Undo() noexcept {
  applied_ = false;
  layer_->length_ = old_length_;
  for (; new_window_blocks_ > 0; --new_window_blocks_) layer_->window_.PopBack();
  if (window_tail_.replaced) {
    layer_->window_.Replace(layer_->window_.size() - 1, std::move(window_tail_.block));
  }
  if (sinks_.replaced) std::swap(layer_->sinks_, sinks_.block);
  layer_->window_.PushFront(&sealed_window_);
  layer_->pages_.Pop(pages_.size());
  if (finds_directions_) layer_->directions_.swap(directions_);
}

}  // namespace oscarkv
