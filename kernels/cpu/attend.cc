#include "kernels/cpu/attend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/codec/softmax_state.h"
#include "kernels/cpu/layer_memory.h"
#include "kernels/cpu/page_attend.h"
#include "kernels/cpu/query_tile.h"
#include "kernels/cpu/rotate.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/token_attend.h"

namespace oscarkv::cpu {
namespace {

// A run of pages is large enough that preparing a tile's queries is a small part of its work, and
// small enough to stay in a core's cache while one tile after the other looks at it. A run of the
// window costs about as much.
constexpr int kRunPages = 16;
constexpr int kRunWindowBlocks = 8;
// Partial states are kept in waves of at most about so many floats.
constexpr std::int64_t kWaveFloats = std::int64_t{1} << 24;

// Pages or window blocks [first, last) of a layer, at positions [begin, end). The sinks go with the
// first run of window blocks.
struct Run {
  bool pages;
  bool sinks;
  int first;
  int last;
  std::int64_t begin;
  std::int64_t end;
};

struct Layer {
  LayerMemory memory;
  std::vector<Run> runs;  // by position, but for the sinks: pages first
};

// Some query tokens of an item and one kv head.
struct Tile {
  const AttendItem* item;
  const Layer* layer;
  int kv_head;
  int first_query;
  int queries;
  std::int64_t floats;  // where its states lie in the wave's memory, one for each run

  int rows() const { return queries * layer->memory.spec->queries_per_kv_head(); }
  std::int64_t state_floats() const {
    return TileState::FloatsFor(rows(), layer->memory.spec->value_dim);
  }
};

// A run that a tile sees something of: what one thread does at a time.
struct Unit {
  std::uint32_t tile;
  std::uint32_t run;
};

// Tiles and all their units. Units that read the same run follow each other.
struct Wave {
  std::vector<Tile> tiles;
  std::vector<Unit> units;
  std::vector<std::int32_t> units_of_tile;
  std::int64_t floats = 0;
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

// Whether any query of the tile sees any of the run.
bool Sees(const Tile& tile, const Run& run) {
  const AttendItem& item = *tile.item;
  const std::int64_t position = item.query_begin + tile.first_query;
  const std::int64_t first = SeenFrom(item.layer, item.causal, position).first;
  const std::int64_t last = SeenFrom(item.layer, item.causal, position + tile.queries - 1).last;
  const auto seen = [&](std::int64_t begin, std::int64_t end) {
    return std::max(first, begin) < std::min(last, end);
  };
  return seen(run.begin, run.end) || (run.sinks && seen(0, tile.layer->memory.sink_tokens));
}

// Runs begin with what the item's first query sees, so that answers are the same to the bit whether
// or not older tokens are still there.
void AddRuns(const AttendItem& item, Layer& layer) {
  const LayerMemory& memory = layer.memory;
  const std::int64_t seen_from = SeenFrom(item.layer, item.causal, item.query_begin).first;
  const auto unseen = [&](const PageMemory& page) { return page.begin + page.tokens <= seen_from; };
  const auto page = std::partition_point(memory.pages.begin(), memory.pages.end(), unseen);
  const int pages = static_cast<int>(memory.pages.size());
  for (int first = static_cast<int>(page - memory.pages.begin()); first < pages;
       first += kRunPages) {
    const int last = std::min(first + kRunPages, pages);
    const PageMemory& end = memory.pages[last - 1];
    layer.runs.push_back(
        {true, false, first, last, memory.pages[first].begin, end.begin + end.tokens});
  }
  const int blocks = static_cast<int>(memory.window.size());
  const int block = static_cast<int>(
      std::clamp<std::int64_t>((seen_from - memory.window_begin) / kWindowBlockTokens, 0, blocks));
  for (int first = block; first == block || first < blocks; first += kRunWindowBlocks) {
    const int last = std::min(first + kRunWindowBlocks, blocks);
    layer.runs.push_back({false, first == block, first, last,
                          memory.window_begin + std::int64_t{first} * kWindowBlockTokens,
                          memory.window_begin + std::int64_t{last} * kWindowBlockTokens});
  }
}

TileState StateOf(float* memory, const Tile& tile, std::size_t run) {
  return {memory + tile.floats + static_cast<std::int64_t>(run) * tile.state_floats(), tile.rows(),
          tile.layer->memory.spec->value_dim};
}

void AttendWindow(const LayerMemory& layer, const Run& run, const QueryTile& queries,
                  TileState& state) {
  std::array<TokenBlock, kRunWindowBlocks + 1> blocks;
  std::size_t count = 0;
  if (run.sinks && layer.sink_tokens > 0) {
    blocks[count++] = {layer.sinks, layer.spec->codec.sinks, 0, layer.sink_tokens};
  }
  for (int i = run.first; i < run.last; ++i) {
    const std::int64_t first = std::int64_t{i} * kWindowBlockTokens;
    const std::int64_t tokens =
        std::min<std::int64_t>(kWindowBlockTokens, layer.window_tokens - first);
    blocks[count++] = {layer.window[i], kWindowBlockTokens, layer.window_begin + first,
                       static_cast<int>(tokens)};
  }
  AttendTokens(layer, std::span(blocks).first(count), queries, state);
}

void RunUnit(const Wave& wave, const Unit& unit, float* memory) {
  const Tile& tile = wave.tiles[unit.tile];
  const Run& run = tile.layer->runs[unit.run];
  TileState state = StateOf(memory, tile, unit.run);
  state.Clear();
  QueryTile queries(*tile.item, tile.kv_head, tile.first_query, tile.queries);
  if (run.pages) {
    AttendPages(tile.layer->memory, run.first, run.last, queries, state);
  } else {
    AttendWindow(tile.layer->memory, run, queries, state);
  }
}

// Counts the learned sinks, divides, and hands a tile's rows to the caller.
void WriteTile(const Tile& tile, TileState& state) {
  const AttendItem& item = *tile.item;
  const LayerSpec& spec = *tile.layer->memory.spec;
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

// Merges what a tile saw, in the order of its runs: first pages, whose sums are rotated back, then
// tokens in 16 bits.
void FinishTile(const Tile& tile, float* memory) {
  const LayerSpec& spec = *tile.layer->memory.spec;
  const std::vector<Run>& runs = tile.layer->runs;
  const int rows = tile.rows();
  alignas(kPageAlignment) float sums[TileState::FloatsFor(kTileRows, kMaxHeadDim)];
  TileState sum(sums, rows, spec.value_dim);
  sum.Clear();
  const bool rotated = spec.values_are_coded() && spec.codec.value_rotation == Rotation::kHadamard;
  bool any_pages = false;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (any_pages && !runs[i].pages) {
      if (rotated) RotateRowsBack(sum.out(0), rows, spec.value_dim);
      any_pages = false;
    }
    if (!Sees(tile, runs[i])) continue;
    TileState state = StateOf(memory, tile, i);
    sum.MergeFrom(state);
    any_pages = runs[i].pages;
  }
  WriteTile(tile, sum);
}

// Who runs the last unit of a tile finishes it.
void RunWave(Executor& executor, const Wave& wave) {
  constexpr std::int64_t kLineFloats = sizeof(ScratchPool::Line) / sizeof(float);
  const auto lines = std::make_unique_for_overwrite<ScratchPool::Line[]>(
      static_cast<std::size_t>((wave.floats + kLineFloats - 1) / kLineFloats));
  auto* const memory = reinterpret_cast<float*>(lines.get());
  std::vector<std::atomic<std::int32_t>> left(wave.tiles.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    left[i].store(wave.units_of_tile[i], std::memory_order_relaxed);
    if (wave.units_of_tile[i] == 0) FinishTile(wave.tiles[i], memory);
  }
  executor.ParallelFor(static_cast<std::int64_t>(wave.units.size()), [&](std::int64_t i) {
    const Unit& unit = wave.units[i];
    RunUnit(wave, unit, memory);
    if (left[unit.tile].fetch_sub(1, std::memory_order_acq_rel) == 1) {
      FinishTile(wave.tiles[unit.tile], memory);
    }
  });
}

// Cuts items into waves of tiles and runs them.
class Planner {
 public:
  explicit Planner(Executor& executor) : executor_(executor) {}

  void Add(const AttendItem& item, const Layer& layer) {
    const LayerSpec& spec = *layer.memory.spec;
    const int tile_queries = QueryTile::QueriesPerTile(spec);
    for (int head = 0; head < spec.kv_heads; ++head) {
      for (int first = 0; first < item.num_queries;) {
        first = AddTiles(item, layer, head, first, tile_queries);
        if (wave_.floats >= kWaveFloats) Run();
      }
    }
  }

  void Run() {
    if (!wave_.tiles.empty()) RunWave(executor_, wave_);
    wave_ = Wave();
  }

 private:
  // Adds tiles from query `first` on, as many as the wave has room for, but one at least. Returns
  // the first query that is left.
  int AddTiles(const AttendItem& item, const Layer& layer, int head, int first, int tile_queries) {
    const std::size_t first_tile = wave_.tiles.size();
    while (first < item.num_queries &&
           (wave_.tiles.size() == first_tile || wave_.floats < kWaveFloats)) {
      const int queries = std::min(tile_queries, item.num_queries - first);
      const Tile tile{&item, &layer, head, first, queries, wave_.floats};
      wave_.tiles.push_back(tile);
      wave_.floats += tile.state_floats() * static_cast<std::int64_t>(layer.runs.size());
      first += queries;
    }
    wave_.units_of_tile.resize(wave_.tiles.size());
    for (std::size_t run = 0; run < layer.runs.size(); ++run) {
      for (std::size_t tile = first_tile; tile < wave_.tiles.size(); ++tile) {
        if (!Sees(wave_.tiles[tile], layer.runs[run])) continue;
        wave_.units.push_back({static_cast<std::uint32_t>(tile), static_cast<std::uint32_t>(run)});
        ++wave_.units_of_tile[tile];
      }
    }
    return first;
  }

  Executor& executor_;
  Wave wave_;
};

}  // namespace

KernelStatus Attend(const BlockMemory& memory, Executor& executor,
                    std::span<const AttendItem> items) {
  std::vector<Layer> layers(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    KernelStatus status = ResolveLayer(memory, items[i].layer, &layers[i].memory);
    if (status.ok()) status = CheckItem(items[i]);
    if (!status.ok()) return status;
    AddRuns(items[i], layers[i]);
  }
  Planner planner(executor);
  for (std::size_t i = 0; i < items.size(); ++i) planner.Add(items[i], layers[i]);
  planner.Run();
  return KernelStatus::Ok();
}

}  // namespace oscarkv::cpu
