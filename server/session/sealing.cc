#include "server/session/sealing.h"

#include <cassert>
#include <span>
#include <utility>

#include "kernels/api/page_layout.h"
#include "kernels/api/query_directions.h"
#include "server/base/kernel_status.h"
#include "server/base/reserve.h"

namespace oscarkv {
namespace {

constexpr std::size_t kBlocksPerPage = kPageTokens / kWindowBlockTokens;

// Blocks that a page and the window after it lie in.
std::size_t ContextBlocks(const LayerSpec& spec) {
  const int tokens = kPageTokens + spec.codec.window;
  return static_cast<std::size_t>((tokens + kWindowBlockTokens - 1) / kWindowBlockTokens);
}

}  // namespace

Sealing::Sealing(const SealSource& source, BlockPool* pool, MemoryBudget* budget)
    : spec_(source.spec),
      begin_(source.window->begin()),
      directions_(source.directions),
      pool_(pool),
      host_memory_(budget, MemoryKind::kWindow) {}

std::int64_t Sealing::BeginOf(std::size_t page) const {
  return begin_ + static_cast<std::int64_t>(page) * kPageTokens;
}

std::int64_t Sealing::inputs_end() const { return BeginOf(size()) + spec_->codec.window; }

std::int64_t Sealing::page_bytes() const {
  return static_cast<std::int64_t>(size()) * PageLayout(*spec_).bytes;
}

std::optional<std::int64_t> Sealing::finds_directions_at() const {
  return finder_ ? std::optional(BeginOf(*finder_)) : std::nullopt;
}

absl::Status Sealing::Add(std::int64_t pages, const SealSource& source, Purpose purpose,
                          MemoryReservation* promise) {
  assert(source.window->begin() == begin_);
  if (pages == 0) return absl::OkStatus();
  const auto count = static_cast<std::size_t>(pages);
  std::vector<BlockRef> blocks;
  absl::Status status = pool_->Allocate(MemoryKind::kPages, PageLayout(*spec_).bytes, count,
                                        &blocks, purpose, promise);
  if (!status.ok()) return status;
  const bool had_finder = finder_.has_value();
  ReserveMore(count, &pages_);
  for (BlockRef& block : blocks) pages_.push_back(MakePage(source, std::move(block)));
  if (finder_ && !had_finder) {
    const std::int64_t bytes =
        std::int64_t{spec_->kv_heads} * spec_->key_dim * static_cast<std::int64_t>(sizeof(float));
    if (!host_memory_.Grow(bytes, purpose, promise)) {
      return OutOfMemory("no memory left for residual directions");
    }
  }
  heads_.resize(size() * static_cast<std::size_t>(spec_->kv_heads));
  const std::span<const BlockId> ids =
      source.window->ids().first((size() - 1) * kBlocksPerPage + ContextBlocks(*spec_));
  tokens_.assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

Sealing::Page Sealing::MakePage(const SealSource& source, BlockRef block) {
  Page page{.block = std::move(block), .blind = false, .queries = {}};
  if (source.sample == nullptr) return page;
  const std::int64_t begin = BeginOf(size());
  page.queries = source.sample->Range(begin, begin + kPageTokens + spec_->codec.window);
  const bool wants_directions = spec_->has_residual() && directions_ == nullptr && !finder_;
  const bool wants_queries = spec_->codec.plan == PlanMode::kAuto || wants_directions;
  page.blind = wants_queries && page.queries.count == 0;
  // The first page with queries finds the directions, if the layer has none.
  if (wants_directions && page.queries.count > 0) finder_ = size();
  return page;
}

absl::Status Sealing::CopyQueries(const SealSource& source, Purpose purpose) {
  if (source.sample == nullptr) return absl::OkStatus();
  const QuerySample::Slice all = source.sample->Range(begin_, inputs_end());
  const std::int64_t bytes = all.count * source.sample->row_bytes();
  if (!host_memory_.Grow(bytes, purpose)) return OutOfMemory("no memory left for queries");
  copied_queries_.assign(all.rows, all.rows + bytes / 2);
  for (Page& page : pages_) {
    page.queries.rows = copied_queries_.data() + (page.queries.rows - all.rows);
  }
  return absl::OkStatus();
}

absl::Status Sealing::DoPiece(Backend* backend) {
  assert(!done());
  const auto heads = static_cast<std::size_t>(spec_->kv_heads);
  const std::size_t page = sealed_heads_ / heads;
  if (finder_ == page && found_directions_.empty()) {
    FindDirections();
    return absl::OkStatus();
  }
  const std::size_t head = sealed_heads_ % heads;
  SealItem item = ItemOf(page, head, head + 1);
  absl::Status status = FromKernelStatus(backend->Seal(std::span(&item, 1)));
  if (status.ok()) ++sealed_heads_;
  return status;
}

std::vector<SealItem> Sealing::Remaining() {
  if (finder_ && found_directions_.empty()) FindDirections();
  const auto heads = static_cast<std::size_t>(spec_->kv_heads);
  std::vector<SealItem> items;
  items.reserve(size());
  std::size_t head = sealed_heads_ % heads;
  for (std::size_t page = sealed_heads_ / heads; page < size(); ++page) {
    items.push_back(ItemOf(page, std::exchange(head, 0), heads));
  }
  return items;
}

SealItem Sealing::ItemOf(std::size_t page, std::size_t head_begin, std::size_t head_end) {
  const QuerySample::Slice& queries = pages_[page].queries;
  const float* directions = directions_;
  if (finder_ && page >= *finder_) directions = found_directions_.data();
  return {.spec = spec_,
          .tokens = std::span(tokens_).subspan(page * kBlocksPerPage, ContextBlocks(*spec_)),
          .context = spec_->codec.window,
          .page = pages_[page].block.id(),
          .queries = queries.count > 0 ? queries.rows : nullptr,
          .num_queries = queries.count,
          .directions = directions,
          .heads = heads_.data() + page * static_cast<std::size_t>(spec_->kv_heads),
          .head_begin = static_cast<std::int32_t>(head_begin),
          .head_end = static_cast<std::int32_t>(head_end)};
}

void Sealing::FindDirections() {
  const QuerySample::Slice& queries = pages_[*finder_].queries;
  found_directions_ = PrincipalDirections(*spec_, queries.rows, queries.count);
}

}  // namespace oscarkv
