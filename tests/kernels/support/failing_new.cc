#include "tests/kernels/support/failing_new.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace oscarkv::testing {
namespace {

thread_local int allocations_left = -1;  // until one fails; -1: none will
thread_local bool has_struck = false;

void* Allocate(std::size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) {
    has_struck = true;
    return nullptr;
  }
  return std::malloc(bytes == 0 ? 1 : bytes);
}

}  // namespace

FailingNew::FailingNew(int n) {
  has_struck = false;
  allocations_left = n;
}
FailingNew::~FailingNew() { allocations_left = -1; }
bool FailingNew::struck() const { return has_struck; }

}  // namespace oscarkv::testing

void* operator new(std::size_t bytes) {
  void* const memory = oscarkv::testing::Allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return oscarkv::testing::Allocate(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
