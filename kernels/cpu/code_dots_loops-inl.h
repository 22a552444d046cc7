// Included by code_dots-inl.h, inside a namespace for each way to multiply bytes. No include guard:
// it is one text for all of them.

inline constexpr int kWordBytes = 4;
static_assert(kTileSide % kRows == 0);

// Adds the products of column group s of one tile; x: its first entry of the first vector.
template <int s, int blocks, int vectors>
HWY_INLINE void AddColumns(const Bytes (&b)[blocks][4], const std::int8_t* x, int x_stride,
                           Sums (&sums)[blocks][vectors]) {
  for (int v = 0; v < vectors; ++v) {
    const Entries entries = Splat(x + v * x_stride + 4 * s);
    for (int k = 0; k < blocks; ++k) sums[k][v].template Add<s>(b[k][s], entries);
  }
}

// Sums of blocks * kRows rows of codes with `vectors` vectors. The first of them begins at `low`
// (and `high`) in the first column tile; what lies `next` bytes after it is fetched into the cache.
template <int bits, int blocks, int vectors>
HWY_INLINE void DotsOfRows(const std::byte* low, const std::byte* high, std::ptrdiff_t next,
                           const ColumnTiles& columns, const std::int8_t* x, int x_stride,
                           std::int32_t* out, int out_stride) {
  // Blocks beyond the end of a tile are in the next row tile.
  constexpr int kTileBlocks = kTileSide / kRows;
  const std::ptrdiff_t row_tile = std::ptrdiff_t{columns.of} * kTileBytes;
  Sums sums[blocks][vectors];
  for (int begin = 0; begin < columns.count; begin += kFlushTiles<bits>) {
    const int end = std::min(columns.count, begin + kFlushTiles<bits>);
    for (int i = begin; i < end; ++i) {
      const int tile = columns.index[i];
      Bytes b[blocks][4];
      for (int k = 0; k < blocks; ++k) {
        const std::ptrdiff_t at =
            k / kTileBlocks * row_tile + tile * kTileBytes + k % kTileBlocks * kRows * kWordBytes;
        Unpack<bits>(low + at, high + at, b[k]);
        if (k % kTileBlocks == 0) {
          hwy::Prefetch(low + at + next);
          if constexpr (bits == 4) hwy::Prefetch(high + at + next);
        }
      }
      AddColumns<0>(b, x + tile * kTileSide, x_stride, sums);
      AddColumns<1>(b, x + tile * kTileSide, x_stride, sums);
      AddColumns<2>(b, x + tile * kTileSide, x_stride, sums);
      AddColumns<3>(b, x + tile * kTileSide, x_stride, sums);
    }
    for (int k = 0; k < blocks; ++k) {
      for (int v = 0; v < vectors; ++v) sums[k][v].Flush();
    }
  }
  for (int k = 0; k < blocks; ++k) {
    for (int v = 0; v < vectors; ++v) sums[k][v].Store(out + v * out_stride + k * kRows);
  }
}

template <int bits, int vectors>
HWY_INLINE void DotsOfVectors(const CodeMatrix& matrix, int first, int count,
                              const ColumnTiles& columns, const std::int8_t* x, int x_stride,
                              std::int32_t* out, int out_stride) {
  const std::ptrdiff_t plane =
      CodeBytes(matrix.row_tiles * kTileSide, matrix.column_tiles * kTileSide, 2);
  const std::ptrdiff_t row_tile = std::ptrdiff_t{matrix.column_tiles} * kTileBytes;
  const std::ptrdiff_t next = matrix.next == nullptr ? 0 : matrix.next - matrix.codes;
  const int end = (first + count) * kTileSide;
  for (int row = first * kTileSide; row < end;) {
    const std::byte* low = matrix.codes + row / kTileSide * row_tile + row % kTileSide * kWordBytes;
    if (row + kBlocks * kRows <= end) {
      DotsOfRows<bits, kBlocks, vectors>(low, low + plane, next, columns, x, x_stride, out + row,
                                         out_stride);
      row += kBlocks * kRows;
    } else {
      DotsOfRows<bits, 1, vectors>(low, low + plane, next, columns, x, x_stride, out + row,
                                   out_stride);
      row += kRows;
    }
  }
}

template <int bits>
HWY_INLINE void DotsOfBits(const CodeMatrix& matrix, int first, int count,
                           const ColumnTiles& columns, const std::int8_t* x, int x_stride,
                           int vectors, std::int32_t* out, int out_stride) {
  for (; vectors >= 4; vectors -= 4) {
    DotsOfVectors<bits, 4>(matrix, first, count, columns, x, x_stride, out, out_stride);
    x += 4 * x_stride;
    out += 4 * out_stride;
  }
  switch (vectors) {
    case 3:
      return DotsOfVectors<bits, 3>(matrix, first, count, columns, x, x_stride, out, out_stride);
    case 2:
      return DotsOfVectors<bits, 2>(matrix, first, count, columns, x, x_stride, out, out_stride);
    case 1:
      return DotsOfVectors<bits, 1>(matrix, first, count, columns, x, x_stride, out, out_stride);
    default:
      return;
  }
}

// As CodeDots (code_dots-inl.h).
HWY_NOINLINE inline void Dots(const CodeMatrix& matrix, int first, int count,
                              const ColumnTiles& columns, const std::int8_t* x, int x_stride,
                              int vectors, std::int32_t* out, int out_stride) {
  if (matrix.bits == 2) {
    DotsOfBits<2>(matrix, first, count, columns, x, x_stride, vectors, out, out_stride);
  } else {
    DotsOfBits<4>(matrix, first, count, columns, x, x_stride, vectors, out, out_stride);
  }
}
