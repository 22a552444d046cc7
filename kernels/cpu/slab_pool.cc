#include "kernels/cpu/slab_pool.h"

#include <cstring>
#include <new>

#include "kernels/api/page_layout.h"
#include "kernels/cpu/slab_memory.h"

namespace oscarkv::cpu {
namespace {

// No host has room for a larger slab; allocators need not be asked (some abort on nonsense).
constexpr std::int64_t kLargestSlab = std::int64_t{1} << 40;

}  // namespace

SlabPool::~SlabPool() {
  for (auto& [bytes, size] : sizes_) {
    for (const std::list<Slab>* slabs : {&size.with_room, &size.full}) {
      for (const Slab& slab : *slabs) GiveSlabMemory(slab.memory, slab.bytes);
    }
  }
}

bool SlabPool::AddSlab(std::int64_t piece_bytes, Size& size) {
  const SlabShape shape = ShapeOfSlab(piece_bytes);
  // Its record first: from the slab's memory on nothing can fail.
  std::list<Slab> added(1);
  Slab& slab = added.front();
  slab.size = &size;
  slab.self = added.begin();
  slab.piece_bytes = piece_bytes;
  slab.pieces = static_cast<std::int32_t>(shape.pieces);
  slab.bytes = shape.bytes;
  // What is so little that one slab may hold it is not to take more memory than it must.
  const PageSize pages = size.full.empty() ? PageSize::kSmall : PageSize::kHuge;
  slab.memory = TakeSlabMemory(shape.bytes, pages);
  if (slab.memory == nullptr) return false;
  size.with_room.splice(size.with_room.begin(), added);
  slab_bytes_ += shape.bytes;
  return true;
}

SlabPool::Size* SlabPool::SizeWithRoom(std::int64_t piece_bytes) noexcept {
  const auto found = sizes_.find(piece_bytes);
  if (found != sizes_.end() && !found->second.with_room.empty()) return &found->second;
  bool added = false;
  try {
    added = AddSlab(piece_bytes, sizes_[piece_bytes]);
  } catch (const std::bad_alloc&) {
    added = false;
  }
  const auto place = sizes_.find(piece_bytes);
  if (added) return &place->second;
  if (place != sizes_.end() && place->second.full.empty()) sizes_.erase(place);
  return nullptr;
}

SlabPool::Piece SlabPool::Take(std::int64_t bytes) noexcept {
  if (bytes > kLargestSlab) return {};
  const std::int64_t piece_bytes = AlignUp(bytes);
  const std::lock_guard lock(mutex_);
  Size* const size = SizeWithRoom(piece_bytes);
  if (size == nullptr) return {};
  Slab& slab = size->with_room.front();
  std::byte* data = slab.given_back;
  if (data != nullptr) {
    std::memcpy(&slab.given_back, data, sizeof(slab.given_back));
  } else {
    data = slab.memory + slab.untouched++ * piece_bytes;
  }
  ++slab.in_use;
  if (slab.is_full()) size->full.splice(size->full.begin(), size->with_room, slab.self);
  return {data, &slab};
}

void SlabPool::Give(const Piece& piece) noexcept {
  const std::lock_guard lock(mutex_);
  Slab& slab = *piece.slab;
  Size& size = *slab.size;
  if (slab.is_full()) size.with_room.splice(size.with_room.end(), size.full, slab.self);
  std::memcpy(piece.data, &slab.given_back, sizeof(slab.given_back));
  slab.given_back = piece.data;
  if (--slab.in_use > 0) return;
  slab_bytes_ -= slab.bytes;
  GiveSlabMemory(slab.memory, slab.bytes);
  const std::int64_t piece_bytes = slab.piece_bytes;
  size.with_room.erase(slab.self);
  if (size.with_room.empty() && size.full.empty()) sizes_.erase(piece_bytes);
}

std::int64_t SlabPool::slab_bytes() const {
  const std::lock_guard lock(mutex_);
  return slab_bytes_;
}

}  // namespace oscarkv::cpu
