#include "kernels/cpu/slab.h"

#include <algorithm>
#include <bit>

namespace oscarkv::cpu {
namespace {

std::int64_t RoundedUp(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; }

}  // namespace

Slab::Slab(std::int64_t piece_bytes)
    : shape_(ShapeOfSlab(piece_bytes)),
      piece_bytes_(piece_bytes),
      absent_pieces_(shape_.pieces),
      absent_(static_cast<std::size_t>(RoundedUp(shape_.pieces, 64)), ~std::uint64_t{0}) {
  absent_.back() >>= static_cast<std::int64_t>(absent_.size()) * 64 - shape_.pieces;
  idle_.reserve(static_cast<std::size_t>(shape_.pieces));
}

Slab::~Slab() {
  if (memory_ != nullptr) GiveSlabMemory(memory_, shape_.bytes);
}

bool Slab::Map(PageSize pages) noexcept {
  memory_ = TakeSlabMemory(shape_.bytes, pages);
  page_bytes_ = !SlabsAreShared()          ? shape_.bytes
                : pages == PageSize::kHuge ? kHugePageBytes
                                           : SmallPageBytes();
  return memory_ != nullptr;
}

bool Slab::IsHeldBesides(std::int64_t page, std::int64_t but) const noexcept {
  // Nearest first: pieces that were never taken follow those that were.
  const std::int64_t first = page * page_bytes_ / piece_bytes_;
  for (std::int64_t piece = but - 1; piece >= first; --piece) {
    if (!IsAbsent(piece)) return true;
  }
  const std::int64_t end =
      std::min(RoundedUp((page + 1) * page_bytes_, piece_bytes_), shape_.pieces);
  for (std::int64_t piece = std::max(first, but + 1); piece < end; ++piece) {
    if (!IsAbsent(piece)) return true;
  }
  return false;
}

std::byte* Slab::TakeAbsent() noexcept {
  while (absent_[absent_from_] == 0) ++absent_from_;
  std::uint64_t& word = absent_[absent_from_];
  const std::int64_t piece = static_cast<std::int64_t>(absent_from_) * 64 + std::countr_zero(word);
  std::byte* const data = memory_ + piece * piece_bytes_;
  word &= word - 1;
  --absent_pieces_;
  const std::int64_t first = piece * piece_bytes_ / page_bytes_;
  const std::int64_t last = ((piece + 1) * piece_bytes_ - 1) / page_bytes_;
  held_pages_ += last + 1 - first;
  if (IsHeldBesides(first, piece)) --held_pages_;
  if (last > first && IsHeldBesides(last, piece)) --held_pages_;
  if (has_gaps_ && absent_pieces_ == 0) {
    has_gaps_ = false;
    AdviseSlabMemory(memory_, shape_.bytes, PageSize::kHuge);
    page_bytes_ = kHugePageBytes;
    held_pages_ = shape_.bytes / kHugePageBytes;
  }
  return data;
}

void Slab::BreakUp() noexcept {
  has_gaps_ = true;
  AdviseSlabMemory(memory_, shape_.bytes, PageSize::kSmall);
  page_bytes_ = SmallPageBytes();
  held_pages_ = shape_.bytes / page_bytes_;
  for (std::int64_t piece = 0; piece < shape_.pieces; ++piece) {
    if (IsAbsent(piece)) idle_.push_back(static_cast<std::int32_t>(piece));
  }
  const std::int64_t after = RoundedUp(shape_.pieces * piece_bytes_, page_bytes_) * page_bytes_;
  if (after == shape_.bytes) return;
  DropSlabMemory(memory_ + after, shape_.bytes - after);
  held_pages_ -= (shape_.bytes - after) / page_bytes_;
}

std::int64_t Slab::Drop(std::int64_t begin, std::int64_t end, std::int64_t from) noexcept {
  std::int64_t first = std::max(begin * piece_bytes_ / page_bytes_, from);
  std::int64_t last = RoundedUp(end * piece_bytes_, page_bytes_);
  const std::int64_t next = last;
  if (first < last && IsHeldBesides(first, begin)) ++first;
  if (first < last && IsHeldBesides(last - 1, end - 1)) --last;
  if (first >= last) return next;
  DropSlabMemory(memory_ + first * page_bytes_, (last - first) * page_bytes_);
  held_pages_ -= last - first;
  return next;
}

bool Slab::DropIdle() noexcept {
  const bool were_huge = page_bytes_ == kHugePageBytes;
  if (!has_gaps_) BreakUp();
  std::sort(idle_.begin(), idle_.end());
  for (const std::int32_t piece : idle_) {
    absent_[static_cast<std::size_t>(piece / 64)] |= std::uint64_t{1} << (piece % 64);
  }
  absent_from_ = 0;
  std::int64_t from = 0;
  for (std::size_t i = 0; i < idle_.size();) {
    const std::size_t begin = i;
    while (++i < idle_.size() && idle_[i] == idle_[i - 1] + 1) continue;
    from = Drop(idle_[begin], idle_[i - 1] + 1, from);
  }
  idle_.clear();
  absent_pieces_ = 0;
  for (const std::uint64_t word : absent_) absent_pieces_ += std::popcount(word);
  return were_huge;
}

}  // namespace oscarkv::cpu
