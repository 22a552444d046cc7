#include "kernels/cpu/token_io.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/codec/page_view.h"
#include "kernels/cpu/layer_memory.h"
#include "kernels/cpu/page_decode.h"

namespace oscarkv::cpu {
namespace {

KernelStatus ResolveAppend(const BlockMemory& memory, const AppendItem& item, std::byte** block) {
  KernelStatus status = CheckSpec(item.spec);
  if (!status.ok()) return status;
  if (item.block_tokens < 1 || item.slot < 0 || item.tokens < 0 ||
      item.slot > item.block_tokens - item.tokens) {
    return KernelStatus::InvalidArgument("tokens do not fit their block");
  }
  if (item.tokens > 0 && (item.keys == nullptr || item.values == nullptr)) {
    return KernelStatus::InvalidArgument("no keys or values");
  }
  if (item.dtype != item.spec->storage && item.dtype != DType::kFP32) {
    return KernelStatus::InvalidArgument("keys and values arrive in the storage dtype or in fp32");
  }
  return FindBlock(memory, item.block, TokenBlockLayout(*item.spec, item.block_tokens).bytes,
                   "tokens", block);
}

// Rows [0, tokens) of `dim` elements, `row_bytes` apart, to packed rows of 16 bits.
void StoreRows(const AppendItem& item, const std::byte* rows, std::size_t row_bytes, int dim,
               std::byte* out) {
  for (int t = 0; t < item.tokens; ++t) {
    ToStorage(item.dtype, rows + t * row_bytes, dim, item.spec->storage,
              reinterpret_cast<std::uint16_t*>(out) + static_cast<std::int64_t>(t) * dim);
  }
}

void AppendHead(const AppendItem& item, int head, std::byte* block) {
  const LayerSpec& spec = *item.spec;
  const TokenBlockLayout layout(spec, item.block_tokens);
  const std::size_t element = SizeOf(item.dtype);
  std::byte* keys = block + layout.head_bytes * head;
  StoreRows(item, static_cast<const std::byte*>(item.keys) + element * head * spec.key_dim,
            element * spec.kv_heads * spec.key_dim, spec.key_dim,
            keys + std::int64_t{2} * item.slot * spec.key_dim);
  StoreRows(item, static_cast<const std::byte*>(item.values) + element * head * spec.value_dim,
            element * spec.kv_heads * spec.value_dim, spec.value_dim,
            keys + layout.value_offset + std::int64_t{2} * item.slot * spec.value_dim);
}

// Tokens [first, last), counted from the start of a run of tokens at position `begin`, that an item
// asks for. Empty if there are none.
struct Overlap {
  int first;
  int last;
};

Overlap OverlapOf(const ReadItem& item, std::int64_t begin, int tokens) {
  return {static_cast<int>(std::clamp<std::int64_t>(item.begin - begin, 0, tokens)),
          static_cast<int>(std::clamp<std::int64_t>(item.begin + item.tokens - begin, 0, tokens))};
}

// A run of tokens that is read in one piece: part of a page or of a block of 16-bit tokens.
struct Run {
  const ReadItem* item;
  const LayerMemory* layer;
  const std::byte* bytes;
  int capacity;  // of a token block; 0: a page
  int first;     // token in the page or block
  int tokens;
  std::int64_t row;  // of the first token in the item's output
};

void AddRun(const ReadItem& item, const LayerMemory& layer, const std::byte* bytes, int capacity,
            std::int64_t begin, int tokens, std::vector<Run>& runs) {
  const Overlap overlap = OverlapOf(item, begin, tokens);
  if (overlap.first >= overlap.last) return;
  runs.push_back({&item, &layer, bytes, capacity, overlap.first, overlap.last - overlap.first,
                  begin + overlap.first - item.begin});
}

// Cuts an item into runs. INVALID_ARGUMENT if they are not all of its tokens.
KernelStatus AddRuns(const ReadItem& item, const LayerMemory& layer, std::vector<Run>& runs) {
  const std::size_t before = runs.size();
  AddRun(item, layer, layer.sinks, layer.spec->codec.sinks, 0, layer.sink_tokens, runs);
  for (const PageMemory& page : layer.pages) {
    AddRun(item, layer, page.bytes, 0, page.begin, page.tokens, runs);
  }
  for (std::size_t i = 0; i < layer.window.size(); ++i) {
    const std::int64_t first = static_cast<std::int64_t>(i) * kWindowBlockTokens;
    AddRun(
        item, layer, layer.window[i], kWindowBlockTokens, layer.window_begin + first,
        static_cast<int>(std::min<std::int64_t>(kWindowBlockTokens, layer.window_tokens - first)),
        runs);
  }
  std::int64_t row = 0;
  for (std::size_t i = before; i < runs.size(); ++i) {
    if (runs[i].row != row) break;
    row += runs[i].tokens;
  }
  return row == item.tokens ? KernelStatus::Ok()
                            : KernelStatus::InvalidArgument("the cache does not hold these tokens");
}

void ReadPageHead(const Run& run, int head, std::uint16_t* keys, std::uint16_t* values) {
  const LayerSpec& spec = *run.layer->spec;
  const HeadView view = PageView(spec, run.bytes).Head(head);
  const float* direction = run.layer->directions;
  if (direction != nullptr) direction += static_cast<std::int64_t>(head) * spec.key_dim;
  const std::int64_t key_stride = static_cast<std::int64_t>(spec.kv_heads) * spec.key_dim;
  const std::int64_t value_stride = static_cast<std::int64_t>(spec.kv_heads) * spec.value_dim;
  ReadKeys(spec, view, direction, run.first, run.tokens, key_stride, keys);
  ReadValues(spec, view, run.first, run.tokens, value_stride, values);
}

void ReadTokenHead(const Run& run, int head, std::uint16_t* keys, std::uint16_t* values) {
  const LayerSpec& spec = *run.layer->spec;
  const TokenBlockLayout layout(spec, run.capacity);
  const std::byte* from = run.bytes + layout.head_bytes * head;
  for (int t = 0; t < run.tokens; ++t) {
    const std::int64_t token = run.first + t;
    std::memcpy(keys + static_cast<std::int64_t>(t) * spec.kv_heads * spec.key_dim,
                from + 2 * token * spec.key_dim, std::size_t{2} * spec.key_dim);
    std::memcpy(values + static_cast<std::int64_t>(t) * spec.kv_heads * spec.value_dim,
                from + layout.value_offset + 2 * token * spec.value_dim,
                std::size_t{2} * spec.value_dim);
  }
}

void ReadRunHead(const Run& run, int head) {
  const LayerSpec& spec = *run.layer->spec;
  std::uint16_t* keys = run.item->keys + (run.row * spec.kv_heads + head) * spec.key_dim;
  std::uint16_t* values = run.item->values + (run.row * spec.kv_heads + head) * spec.value_dim;
  if (run.capacity == 0) {
    ReadPageHead(run, head, keys, values);
  } else {
    ReadTokenHead(run, head, keys, values);
  }
}

}  // namespace

KernelStatus Append(const BlockMemory& memory, Executor& executor,
                    std::span<const AppendItem> items) {
  struct Piece {
    const AppendItem* item;
    int head;
    std::byte* block;
  };
  std::vector<Piece> pieces;
  for (const AppendItem& item : items) {
    std::byte* block = nullptr;
    KernelStatus status = ResolveAppend(memory, item, &block);
    if (!status.ok()) return status;
    for (int head = 0; head < item.spec->kv_heads; ++head) pieces.push_back({&item, head, block});
  }
  executor.ParallelFor(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t i) {
    AppendHead(*pieces[i].item, pieces[i].head, pieces[i].block);
  });
  return KernelStatus::Ok();
}

KernelStatus ReadTokens(const BlockMemory& memory, Executor& executor,
                        std::span<const ReadItem> items) {
  std::vector<LayerMemory> layers(items.size());
  std::vector<Run> runs;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ReadItem& item = items[i];
    KernelStatus status = ResolveLayer(memory, item.layer, &layers[i]);
    if (!status.ok()) return status;
    if (item.begin < 0 || item.tokens < 0 || item.begin > kMaxPosition ||
        item.tokens > kMaxPosition ||
        (item.tokens > 0 && (item.keys == nullptr || item.values == nullptr))) {
      return KernelStatus::InvalidArgument("impossible range of tokens, or no memory for them");
    }
    status = AddRuns(item, layers[i], runs);
    if (!status.ok()) return status;
  }
  struct Piece {
    const Run* run;
    int head;
  };
  std::vector<Piece> pieces;
  for (const Run& run : runs) {
    for (int head = 0; head < run.layer->spec->kv_heads; ++head) pieces.push_back({&run, head});
  }
  executor.ParallelFor(static_cast<std::int64_t>(pieces.size()),
                       [&](std::int64_t i) { ReadRunHead(*pieces[i].run, pieces[i].head); });
  return KernelStatus::Ok();
}

}  // namespace oscarkv::cpu
