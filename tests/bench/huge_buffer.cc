#include "tests/bench/huge_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace oscarkv::bench {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

HugeBuffer::HugeBuffer(std::size_t bytes)
    : bytes_(bytes), mapping_bytes_((bytes + 2 * kHugePage - 1) / kHugePage * kHugePage) {
  mapping_ =
      mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    std::fprintf(stderr, "error: no memory for a buffer of %zu bytes\n", bytes);
    std::exit(1);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  const std::uintptr_t aligned = (address + kHugePage - 1) / kHugePage * kHugePage;
  data_ = static_cast<std::byte*>(mapping_) + (aligned - address);
#if defined(MADV_HUGEPAGE)
  madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
}

HugeBuffer::~HugeBuffer() { munmap(mapping_, mapping_bytes_); }

}  // namespace oscarkv::bench
