// Room in vectors ahead of time, for changes that must not fail halfway.
#pragma once

#include <algorithm>
#include <cstddef>

namespace oscarkv {

// Makes room for `count` more elements of a std::vector. Unlike reserve() alone, room grows by
// factors, so that many small calls cost no more than push_back would.
template <typename Vector>
void ReserveMore(std::size_t count, Vector* vector) {
  const std::size_t wanted = vector->size() + count;
  if (wanted > vector->capacity()) vector->reserve(std::max(wanted, 2 * vector->capacity()));
}

}  // namespace oscarkv
