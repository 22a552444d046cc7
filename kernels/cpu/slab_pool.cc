#include "kernels/cpu/slab_pool.h"

#include <bit>
#include <new>
#include <utility>

#include "kernels/api/page_layout.h"

namespace oscarkv::cpu {
namespace {

// No host has room for a larger slab; allocators need not be asked (some abort on nonsense).
constexpr std::int64_t kLargestSlab = std::int64_t{1} << 40;

}  // namespace

struct SlabPool::Member {
  Member(Size* its_size, std::int64_t piece_bytes) : size(its_size), slab(piece_bytes) {}

  Size* size;
  int list = kUnused;  // that it is in
  Members::iterator self;
  Slab slab;
};

SlabPool::SlabPool() = default;
SlabPool::~SlabPool() = default;

SlabPool::Member* SlabPool::Size::Best() {
  const int first = std::countr_zero(filled);
  return first < kFull ? &lists[static_cast<std::size_t>(first)].front() : nullptr;
}

SlabPool::Member& SlabPool::Size::LeastUsed() {
  const std::uint64_t with_idle = filled & ((std::uint64_t{1} << kAbsent) - 1);
  return lists[static_cast<std::size_t>(std::bit_width(with_idle) - 1)].back();
}

int SlabPool::ListOf(const Slab& slab) {
  const std::int64_t free = slab.idle() + slab.absent();
  if (free == 0) return kFull;
  if (free == slab.pieces()) return kUnused;
  return (slab.idle() > 0 ? 0 : kAbsent) + std::bit_width(static_cast<std::uint64_t>(free));
}

void SlabPool::Place(Member& member) {
  const int list = ListOf(member.slab);
  if (list == member.list) return;
  Size& size = *member.size;
  Members& from = size.lists[static_cast<std::size_t>(member.list)];
  Members& to = size.lists[static_cast<std::size_t>(list)];
  to.splice(to.begin(), from, member.self);
  if (from.empty()) size.filled &= ~(std::uint64_t{1} << member.list);
  size.filled |= std::uint64_t{1} << list;
  member.list = list;
}

SlabPool::Size& SlabPool::AddSlab(std::int64_t piece_bytes) {
  Size& size = sizes_[piece_bytes];
  size.piece_bytes = piece_bytes;
  size.slab_pieces = ShapeOfSlab(piece_bytes).pieces;
  Members added;
  Member& member = added.emplace_front(&size, piece_bytes);
  // What is so little that one slab may hold it is not to take more memory than it must.
  if (!member.slab.Map(size.in_use == 0 ? PageSize::kSmall : PageSize::kHuge)) {
    throw std::bad_alloc();
  }
  member.self = added.begin();
  Members& unused = size.lists[kUnused];
  unused.splice(unused.begin(), added);
  size.filled |= std::uint64_t{1} << kUnused;
  use_.mapped += member.slab.bytes();
  return size;
}

SlabPool::Member* SlabPool::MemberWithRoom(std::int64_t piece_bytes) noexcept {
  const auto found = sizes_.find(piece_bytes);
  if (found != sizes_.end()) {
    if (Member* const best = found->second.Best(); best != nullptr) return best;
  }
  try {
    return AddSlab(piece_bytes).Best();
  } catch (const std::bad_alloc&) {
    const auto place = sizes_.find(piece_bytes);
    if (place != sizes_.end() && place->second.in_use == 0) sizes_.erase(place);
    return nullptr;
  }
}

SlabPool::Piece SlabPool::Take(std::int64_t bytes) noexcept {
  if (bytes > kLargestSlab) return {};
  const std::lock_guard lock(mutex_);
  Member* const member = MemberWithRoom(AlignUp(bytes));
  if (member == nullptr) return {};
  Size& size = *member->size;
  Slab& slab = member->slab;
  std::byte* data = nullptr;
  if (slab.idle() > 0) {
    data = slab.TakeIdle();
    --size.idle;
  } else {
    use_.held -= slab.held_bytes();
    data = slab.TakeAbsent();
    use_.held += slab.held_bytes();
  }
  ++size.in_use;
  use_.in_use += size.piece_bytes;
  Place(*member);
  return {data, member};
}

void SlabPool::Give(const Piece& piece) noexcept {
  Broken broken;
  {
    const std::lock_guard lock(mutex_);
    broken = GiveLocked(piece);
  }
  for (const std::span<std::byte> memory : broken) {
    if (!memory.empty()) SplitSlabMemory(memory.data(), std::ssize(memory));
  }
}

SlabPool::Broken SlabPool::GiveLocked(const Piece& piece) noexcept {
  Member& member = *piece.slab;
  Size& size = *member.size;
  member.slab.Give(piece.data);
  ++size.idle;
  --size.in_use;
  use_.in_use -= size.piece_bytes;
  if (size.in_use == 0) {
    Remove(member);
    Members& unused = size.lists[kUnused];
    if (!unused.empty()) Remove(unused.front());
    sizes_.erase(size.piece_bytes);
    return {};
  }
  const bool goes = member.slab.in_use() == 0 &&
                    (!SlabsAreShared() || !size.lists[kUnused].empty() || member.slab.has_gaps());
  if (goes) {
    Remove(member);
  } else {
    Place(member);
  }
  return size.idle > size.IdleLimit() ? Trim(size) : Broken{};
}

void SlabPool::Remove(Member& member) {
  use_.held -= member.slab.held_bytes();
  use_.mapped -= member.slab.bytes();
  member.size->idle -= member.slab.idle();
  Size& size = *member.size;
  const int list = member.list;
  Members& members = size.lists[static_cast<std::size_t>(list)];
  members.erase(member.self);
  if (members.empty()) size.filled &= ~(std::uint64_t{1} << list);
}

SlabPool::Broken SlabPool::Trim(Size& size) {
  Broken broken;
  // Two at most: a piece given is one more, and the limit at most one less.
  for (std::size_t i = 0; size.idle > size.IdleLimit();) {
    Member& member = size.LeastUsed();
    if (member.list == kUnused) {
      Remove(member);
      continue;
    }
    Slab& slab = member.slab;
    use_.held -= slab.held_bytes();
    size.idle -= slab.idle();
    if (slab.DropIdle()) broken[i++] = {slab.memory(), static_cast<std::size_t>(slab.bytes())};
    use_.held += slab.held_bytes();
    Place(member);
  }
  return broken;
}

SlabUse SlabPool::use() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

}  // namespace oscarkv::cpu
