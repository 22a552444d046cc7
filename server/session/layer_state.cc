#include "server/session/layer_state.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "server/base/kernel_status.h"
#include "server/session/item_check.h"

namespace oscarkv {

LayerState::LayerState(const LayerSpec* spec, std::int64_t position_base, MemoryBudget* budget,
                       std::int64_t rollback_tokens)
    : spec_(spec),
      rollback_tokens_(rollback_tokens),
      window_(spec->codec.sinks),
      sample_(spec, position_base),
      host_memory_(budget, MemoryKind::kWindow) {}

LayerView LayerState::View() const {
  return {.spec = spec_,
          .sinks = sinks_.id(),
          .page_runs = pages_.runs(),
          .window = window_.ids(),
          .window_begin = std::min(window_.begin(), length_),
          .length = length_,
          .directions = Directions()};
}

LayerStats LayerState::Stats() const {
  const std::int64_t freed = std::max<std::int64_t>(0, kept_from() - spec_->codec.sinks);
  LayerStats stats{.layer = spec_->layer,
                   .length = length_,
                   .kept_from = kept_from(),
                   .min_truncate_length = min_truncate_length(),
                   .sealed_tokens = pages_.tokens(),
                   .window_begin = window_.begin(),
                   .window_room = window_.size() > 0 ? window_.capacity_end() - length_ : 0,
                   .due_pages = std::max<std::int64_t>(0, DuePages() - PreparedPages()),
                   .pages_sealed_without_queries = pages_.blind_pages(),
                   .logical_bytes = (length_ - freed) * spec_->logical_bytes_per_token(),
                   .page_bytes = pages_.bytes(),
                   .window_bytes = sinks_.bytes() + window_.bytes() + host_memory_.bytes(),
                   .prepared_bytes = preparation_ ? preparation_->bytes() : 0};
  if (!pages_.empty()) {
    const double values = static_cast<double>(pages_.size()) * kPageTokens * spec_->kv_heads *
                          (spec_->key_dim + spec_->value_dim);
    stats.bits_per_value = static_cast<double>(pages_.bytes()) * 8 / values;
  }
  return stats;
}

std::int64_t LayerState::kept_from() const {
  const std::int64_t first = pages_.empty() ? window_.begin() : pages_.begin();
  return first > spec_->codec.sinks ? first : 0;
}

std::int64_t LayerState::min_truncate_length() const {
  if (kept_from() == 0) return 0;
  return std::min(length_, kept_from() + spec_->sliding_window - 1);
}

void LayerState::FreeUnseen() noexcept {
  if (spec_->sliding_window == 0) return;
  std::int64_t first_query = length_ - rollback_tokens_;
  if (last_append_) first_query = std::min(first_query, last_append_->start);
  const std::int64_t seen = first_query - spec_->sliding_window + 1;
  pages_.DropBefore(seen);
  // Pages are to be made of the window, unless there never are any.
  if (spec_->seals() || seen <= window_.begin()) return;
  window_.DropFront(static_cast<std::size_t>((seen - window_.begin()) / kWindowBlockTokens));
}

std::int64_t LayerState::SealablePages() const {
  return PagesBefore(length_ - spec_->codec.window);
}

std::int64_t LayerState::DuePages() const {
  return PagesBefore(length_ - spec_->codec.window - kSealSlack);
}

std::int64_t LayerState::PagesBefore(std::int64_t position) const {
  const std::int64_t room = position - window_.begin();
  return !spec_->seals() || room < kPageTokens ? 0 : room / kPageTokens;
}

std::int64_t LayerState::PreparedPages() const {
  return preparation_ ? static_cast<std::int64_t>(preparation_->pages()) : 0;
}

SealSource LayerState::Source() const {
  return {.spec = spec_,
          .window = &window_,
          .sample = WantsSample() ? &sample_ : nullptr,
          .directions = Directions()};
}

std::unique_ptr<Sealing> LayerState::TakePreparation() noexcept {
  const std::shared_ptr<Preparation> preparation = std::move(preparation_);
  return preparation ? preparation->Take() : nullptr;
}

bool LayerState::WantsSample() const {
  if (!spec_->seals() || !spec_->keys_are_coded()) return false;
  return spec_->codec.plan == PlanMode::kAuto || (spec_->has_residual() && Directions() == nullptr);
}

const float* LayerState::Directions() const {
  if (!spec_->has_residual()) return nullptr;
  if (!spec_->given_directions.empty()) return spec_->given_directions.data();
  return directions_.empty() ? nullptr : directions_.data();
}

void LayerState::TrimHostMemory() {
  const auto directions_bytes = static_cast<std::int64_t>(directions_.size() * sizeof(float));
  host_memory_.Shrink(host_memory_.bytes() - sample_.bytes() - directions_bytes);
}

void LayerState::Truncate(std::int64_t length) {
  last_append_.reset();
  if (length >= length_) return;
  TakePreparation();
  pages_.Truncate(length);
  if (length < window_.begin()) {
    window_.Restart(std::max<std::int64_t>(length, spec_->codec.sinks));
  } else {
    window_.Truncate(length);
  }
  if (length == 0) sinks_ = BlockRef();
  sample_.DropFrom(length);
  // Without the page that found them, and with it all that use them, the layer is as it was before:
  // the page that comes in its place finds its own.
  if (length <= directions_begin_) directions_.clear();
  TrimHostMemory();
  length_ = length;
}

absl::Status LayerState::Fork(std::int64_t length, LayerState* fork) {
  if (length > 0 && length < min_truncate_length()) {
    return TokensFreed("length", length, min_truncate_length());
  }
  if (absl::Status s = Share(fork); !s.ok()) return s;
  fork->PrepareTruncate(length);
  fork->Truncate(length);
  return absl::OkStatus();
}

absl::Status LayerState::Share(LayerState* copy) {
  assert(copy->length_ == 0);
  const auto directions_bytes = static_cast<std::int64_t>(directions_.size() * sizeof(float));
  if (!copy->host_memory_.Grow(sample_.bytes() + directions_bytes)) {
    return OutOfMemory("no memory left for the sampled queries of a fork");
  }
  copy->sample_.CopyRows(sample_);
  copy->directions_ = directions_;
  copy->directions_begin_ = directions_begin_;
  copy->sinks_ = sinks_;
  copy->pages_ = pages_.Share();
  copy->window_ = window_;
  copy->length_ = length_;
  copy->last_append_ = last_append_;
  return absl::OkStatus();
}

absl::Status LayerState::Load(Parts parts) {
  assert(length_ == 0);
  const std::size_t host_bytes =
      parts.sample.rows.size() * sizeof(std::uint16_t) + parts.directions.size() * sizeof(float);
  if (!host_memory_.Grow(static_cast<std::int64_t>(host_bytes))) {
    return OutOfMemory("no memory left for the sampled queries of a session");
  }
  sinks_ = std::move(parts.sinks);
  pages_ = std::move(parts.pages);
  window_ = std::move(parts.window);
  sample_.Assign(std::move(parts.sample));
  directions_ = std::move(parts.directions);
  directions_begin_ = parts.directions_begin;
  length_ = parts.length;
  last_append_ = parts.last_append;
  return absl::OkStatus();
}

}  // namespace oscarkv
