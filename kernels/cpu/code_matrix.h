// A packed matrix of codes as it lies in a page (kernels/PAGE_FORMAT.md, "Tiles").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/api/page_layout.h"

namespace oscarkv::cpu {

// [16 * row_tiles][16 * column_tiles], 64-byte aligned. 4-bit codes: the low plane, then the high.
struct CodeMatrix {
  const std::byte* codes;
  int bits;  // 2 or 4
  int row_tiles;
  int column_tiles;         // <= 16
  std::ptrdiff_t next = 0;  // bytes to the matrix that comes next, fetched into the cache meanwhile
};

// Which column tiles of a matrix take part in its products.
struct ColumnTiles {
  static constexpr int kMax = 16;
  int of;         // column tiles of the matrix
  int count = 0;  // of index
  std::array<std::uint8_t, kMax> index;

  static ColumnTiles All(int of) {
    ColumnTiles all{of, of, {}};
    for (int i = 0; i < of; ++i) all.index[i] = static_cast<std::uint8_t>(i);
    return all;
  }
  void Add(int tile) { index[count++] = static_cast<std::uint8_t>(tile); }
};

}  // namespace oscarkv::cpu
