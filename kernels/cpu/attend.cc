#include "kernels/cpu/attend.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/codec/hadamard.h"
#include "kernels/codec/softmax_state.h"
#include "kernels/cpu/layer_memory.h"
#include "kernels/cpu/page_attend.h"
#include "kernels/cpu/query_tile.h"
#include "kernels/cpu/token_attend.h"

namespace oscarkv::cpu {
namespace {

// Sizes of units: large enough that preparing a tile's queries is a small part of their work.
constexpr int kUnitPages = 16;
constexpr int kUnitWindowBlocks = 64;
// Partial states are kept in waves of about so many floats.
constexpr std::int64_t kWaveFloats = std::int64_t{1} << 24;

// Some query tokens of an item and one kv head.
struct Tile {
  const AttendItem* item;
  const LayerMemory* layer;
  int kv_head;
  int first_query;
  int queries;
  std::size_t first_unit;  // its units in the wave: first those of pages, by position, then those
  std::size_t last_unit;   // of 16-bit tokens
  int rows() const { return queries * layer->spec->queries_per_kv_head(); }
};

// A run of pages or window blocks (the sinks go with the first of these) that a tile looks at.
struct Unit {
  std::size_t tile;
  bool pages;
  int first;
  int last;
  std::int64_t floats;  // where its state lies in the wave's memory
};

struct Wave {
  std::vector<Tile> tiles;
  std::vector<Unit> units;
  std::int64_t floats = 0;
  std::unique_ptr<float[]> memory;
  std::int64_t memory_floats = 0;
};

KernelStatus CheckItem(const AttendItem& item) {
  if (item.num_queries < 0) return KernelStatus::InvalidArgument("num_queries < 0");
  if (item.query_begin < -kMaxPosition || item.query_begin > kMaxPosition) {
    return KernelStatus::InvalidArgument("impossible query position");
  }
  if (item.num_queries > 0 &&
      (item.queries == nullptr || item.outputs == nullptr || item.log_sum_exps == nullptr)) {
    return KernelStatus::InvalidArgument("no memory for queries, outputs or log_sum_exps");
  }
  return KernelStatus::Ok();
}

// Whether any query of the tile sees any of the positions [begin, end).
bool TileSees(const Tile& tile, std::int64_t begin, std::int64_t end) {
  const AttendItem& item = *tile.item;
  const std::int64_t position = item.query_begin + tile.first_query;
  const std::int64_t first = SeenFrom(item.layer, item.causal, position).first;
  const std::int64_t last = SeenFrom(item.layer, item.causal, position + tile.queries - 1).last;
  return std::max(first, begin) < std::min(last, end);
}

void AddUnit(Wave& wave, const Tile& tile, bool pages, int first, int last) {
  wave.units.push_back({wave.tiles.size(), pages, first, last, wave.floats});
  wave.floats += TileState::FloatsFor(tile.rows(), tile.layer->spec->value_dim);
}

void AddTile(Wave& wave, Tile tile) {
  const LayerMemory& layer = *tile.layer;
  tile.first_unit = wave.units.size();
  const int pages = static_cast<int>(layer.pages.size());
  for (int first = 0; first < pages; first += kUnitPages) {
    const int last = std::min(first + kUnitPages, pages);
    const PageMemory& end = layer.pages[last - 1];
    if (TileSees(tile, layer.pages[first].begin, end.begin + end.tokens)) {
      AddUnit(wave, tile, true, first, last);
    }
  }
  const int blocks = static_cast<int>(layer.window.size());
  for (int first = 0; first == 0 || first < blocks; first += kUnitWindowBlocks) {
    const int last = std::min(first + kUnitWindowBlocks, blocks);
    const std::int64_t begin = layer.window_begin + std::int64_t{first} * kWindowBlockTokens;
    const std::int64_t end = layer.window_begin + std::int64_t{last} * kWindowBlockTokens;
    if (TileSees(tile, begin, end) || (first == 0 && TileSees(tile, 0, layer.sink_tokens))) {
      AddUnit(wave, tile, false, first, last);
    }
  }
  tile.last_unit = wave.units.size();
  wave.tiles.push_back(tile);
}

TileState StateOf(Wave& wave, const Unit& unit) {
  const Tile& tile = wave.tiles[unit.tile];
  return {wave.memory.get() + unit.floats, tile.rows(), tile.layer->spec->value_dim};
}

void RunUnit(Wave& wave, const Unit& unit) {
  const Tile& tile = wave.tiles[unit.tile];
  const LayerMemory& layer = *tile.layer;
  TileState state = StateOf(wave, unit);
  state.Clear();
  QueryTile queries(*tile.item, tile.kv_head, tile.first_query, tile.queries);
  if (unit.pages) {
    AttendPages(layer, unit.first, unit.last, queries, state);
    return;
  }
  if (unit.first == 0 && layer.sink_tokens > 0) {
    AttendTokens(layer, layer.sinks, layer.spec->codec.sinks, 0, layer.sink_tokens, queries, state);
  }
  for (int i = unit.first; i < unit.last; ++i) {
    const std::int64_t first = std::int64_t{i} * kWindowBlockTokens;
    const std::int64_t tokens =
        std::min<std::int64_t>(kWindowBlockTokens, layer.window_tokens - first);
    AttendTokens(layer, layer.window[i], kWindowBlockTokens, layer.window_begin + first,
                 static_cast<int>(tokens), queries, state);
  }
}

// Counts the learned sinks, divides, and hands a tile's rows to the caller.
void WriteTile(const Tile& tile, TileState& state) {
  const AttendItem& item = *tile.item;
  const LayerSpec& spec = *tile.layer->spec;
  const int heads = spec.queries_per_kv_head();
  for (int row = 0; row < tile.rows(); ++row) {
    const int query_head = tile.kv_head * heads + row % heads;
    const std::int64_t index =
        static_cast<std::int64_t>(tile.first_query + row / heads) * spec.query_heads + query_head;
    SoftmaxState softmax = state.state(row);
    float factor = 1;
    if (item.count_sink_logits && !spec.sink_logits.empty()) {
      factor = Merge(softmax, SoftmaxState{spec.sink_logits[query_head], 1}).into;
    }
    item.log_sum_exps[index] = softmax.LogSumExp();
    float* out = item.outputs + index * spec.value_dim;
    if (softmax.empty()) {
      std::fill_n(out, spec.value_dim, 0.0f);
      continue;
    }
    const float* sums = state.out(row);
    for (int c = 0; c < spec.value_dim; ++c) out[c] = factor * sums[c] / softmax.sum;
  }
}

void FinishTile(Wave& wave, const Tile& tile) {
  const LayerSpec& spec = *tile.layer->spec;
  const int rows = tile.rows();
  alignas(64) float memory[kTileRows * (kMaxHeadDim + 2)];
  TileState sum(memory, rows, spec.value_dim);
  sum.Clear();
  std::size_t i = tile.first_unit;
  for (; i < tile.last_unit && wave.units[i].pages; ++i) {
    TileState state = StateOf(wave, wave.units[i]);
    sum.MergeFrom(state);
  }
  const bool any_pages = i > tile.first_unit;
  if (any_pages && spec.values_are_coded() && spec.codec.value_rotation == Rotation::kHadamard) {
    RotateRowsBack(sum.out(0), rows, spec.value_dim);
  }
  for (; i < tile.last_unit; ++i) {
    TileState state = StateOf(wave, wave.units[i]);
    sum.MergeFrom(state);
  }
  WriteTile(tile, sum);
}

void RunWave(Executor& executor, Wave& wave) {
  if (wave.floats > wave.memory_floats) {
    wave.memory = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(wave.floats));
    wave.memory_floats = wave.floats;
  }
  executor.ParallelFor(static_cast<std::int64_t>(wave.units.size()),
                       [&](std::int64_t i) { RunUnit(wave, wave.units[i]); });
  executor.ParallelFor(static_cast<std::int64_t>(wave.tiles.size()),
                       [&](std::int64_t i) { FinishTile(wave, wave.tiles[i]); });
  wave.tiles.clear();
  wave.units.clear();
  wave.floats = 0;
}

}  // namespace

KernelStatus Attend(const BlockMemory& memory, Executor& executor,
                    std::span<const AttendItem> items) {
  std::vector<LayerMemory> layers(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    KernelStatus status = ResolveLayer(memory, items[i].layer, &layers[i]);
    if (status.ok()) status = CheckItem(items[i]);
    if (!status.ok()) return status;
  }
  Wave wave;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const LayerSpec& spec = *layers[i].spec;
    const int step = QueryTile::QueriesPerTile(spec);
    for (int first = 0; first < items[i].num_queries; first += step) {
      for (int head = 0; head < spec.kv_heads; ++head) {
        const int queries = std::min(step, items[i].num_queries - first);
        AddTile(wave, {&items[i], &layers[i], head, first, queries, 0, 0});
        if (wave.floats >= kWaveFloats) RunWave(executor, wave);
      }
    }
  }
  RunWave(executor, wave);
  return KernelStatus::Ok();
}

}  // namespace oscarkv::cpu
