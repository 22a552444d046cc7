// Portable form: gcc and clang turn the loops over `kLanes` into 16-bit vector instructions.
#include "kernels/cpu/code_dots.h"

#include "kernels/api/page_layout.h"
#include "kernels/codec/tile.h"

namespace oscarkv::cpu {
namespace {

constexpr int kLanes = 16;  // bytes of a tile that are handled at a time: 4 rows
constexpr int kMaxVectors = 16;
constexpr int kMaxColumns = 256;
constexpr int kShifts = 4;  // columns that share a byte

// A byte of a tile is of row byte / 4; shifted by 2 s it holds column 4 s + byte % 4. So a vector's
// entries 4 s .. 4 s + 3, repeated, face the bytes of any four rows.
struct RepeatedVectors {
  alignas(64) std::int16_t lanes[kMaxVectors][kMaxColumns / 4][kLanes];
};

void Repeat(const std::int8_t* x, int x_stride, int vectors, int columns, RepeatedVectors* out) {
  for (int v = 0; v < vectors; ++v) {
    for (int step = 0; step < columns / 4; ++step) {
      for (int lane = 0; lane < kLanes; ++lane) {
        out->lanes[v][step][lane] = x[v * x_stride + 4 * step + lane % 4];
      }
    }
  }
}

// sums[row] += weight * dot of the tile row's codes with vector v, for the 16 rows of a row tile.
// 16-bit sums are exact: a lane adds columns / 4 <= 64 products of at most 3 * 127.
void RowTileDots(const std::uint8_t* tiles, int column_tiles, const RepeatedVectors& x, int vectors,
                 int weight, std::int32_t sums[][kTileSide]) {
  for (int part = 0; part < kTileBytes; part += kLanes) {
    std::int16_t lanes[kMaxVectors][kLanes] = {};
    for (int tile = 0; tile < column_tiles; ++tile) {
      std::int16_t codes[kShifts][kLanes];
      const std::uint8_t* bytes = tiles + tile * kTileBytes + part;
      for (int s = 0; s < kShifts; ++s) {
        for (int lane = 0; lane < kLanes; ++lane) codes[s][lane] = (bytes[lane] >> (2 * s)) & 3;
      }
      for (int v = 0; v < vectors; ++v) {
        const std::int16_t(*w)[kLanes] = &x.lanes[v][tile * kShifts];
        for (int lane = 0; lane < kLanes; ++lane) {
          lanes[v][lane] = static_cast<std::int16_t>(
              lanes[v][lane] + codes[0][lane] * w[0][lane] + codes[1][lane] * w[1][lane] +
              codes[2][lane] * w[2][lane] + codes[3][lane] * w[3][lane]);
        }
      }
    }
    for (int v = 0; v < vectors; ++v) {
      for (int row = 0; row < kLanes / 4; ++row) {
        const std::int16_t* l = lanes[v] + 4 * row;
        sums[v][part / 4 + row] += weight * (l[0] + l[1] + l[2] + l[3]);
      }
    }
  }
}

}  // namespace

void CodeDots(const CodeMatrix& matrix, int first, int count, const std::int8_t* x, int x_stride,
              int vectors, std::int32_t* out, int out_stride) {
  const int columns = matrix.column_tiles * kTileSide;
  const std::int64_t plane = PlaneBytes(matrix.row_tiles * kTileSide, columns);
  const auto* low = reinterpret_cast<const std::uint8_t*>(matrix.codes);
  RepeatedVectors repeated;
  Repeat(x, x_stride, vectors, columns, &repeated);
  for (int tile = first; tile < first + count; ++tile) {
    std::int32_t sums[kMaxVectors][kTileSide] = {};
    const std::int64_t offset = static_cast<std::int64_t>(tile) * matrix.column_tiles * kTileBytes;
    RowTileDots(low + offset, matrix.column_tiles, repeated, vectors, 1, sums);
    if (matrix.bits == 4) {
      RowTileDots(low + plane + offset, matrix.column_tiles, repeated, vectors, 4, sums);
    }
    for (int v = 0; v < vectors; ++v) {
      for (int row = 0; row < kTileSide; ++row) {
        out[v * out_stride + tile * kTileSide + row] = sums[v][row];
      }
    }
  }
}

}  // namespace oscarkv::cpu
