#include "kernels/cpu/seal.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/encode_steps.h"
#include "kernels/cpu/layer_memory.h"
#include "kernels/cpu/page_encoder.h"
#include "kernels/cpu/scratch.h"

namespace oscarkv::cpu {
namespace {

struct Sealing {
  SealItem* item = nullptr;
  std::vector<const std::byte*> blocks;
  std::byte* page = nullptr;
  int head_end = 0;
  std::vector<double> square_sums;  // [kv_heads][kPageTokens]
};

struct Piece {
  Sealing* sealing;
  int head;
};

KernelStatus Resolve(const BlockMemory& memory, SealItem& item, Sealing* sealing) {
  KernelStatus status = CheckSpec(item.spec);
  if (!status.ok()) return status;
  const LayerSpec& spec = *item.spec;
  if (item.context < 0 || item.num_queries < 0 ||
      (item.num_queries > 0 && item.queries == nullptr) || item.heads == nullptr) {
    return KernelStatus::InvalidArgument("a seal lacks queries or memory for its report");
  }
  sealing->head_end = item.head_end == 0 ? spec.kv_heads : item.head_end;
  if (item.head_begin < 0 || item.head_begin >= sealing->head_end ||
      sealing->head_end > spec.kv_heads) {
    return KernelStatus::InvalidArgument("a seal names kv heads that the layer has not");
  }
  if (spec.codec.plan == PlanMode::kGiven &&
      spec.given_plan.size() != static_cast<std::size_t>(spec.kv_heads)) {
    return KernelStatus::InvalidArgument("a given plan names every kv head");
  }
  const std::int64_t blocks =
      (kPageTokens + std::int64_t{item.context} + kWindowBlockTokens - 1) / kWindowBlockTokens;
  if (static_cast<std::int64_t>(item.tokens.size()) < blocks) {
    return KernelStatus::InvalidArgument("a seal lacks tokens");
  }
  const TokenBlockLayout layout(spec, kWindowBlockTokens);
  std::byte* bytes = nullptr;
  for (std::int64_t i = 0; i < blocks; ++i) {
    status = FindBlock(memory, item.tokens[i], layout.bytes, "window", &bytes);
    if (!status.ok()) return status;
    sealing->blocks.push_back(bytes);
  }
  sealing->item = &item;
  return FindBlock(memory, item.page, PageLayout(spec).bytes, "page", &sealing->page);
}

// Where the rows of one kv head are in each block.
Scratch<const void*> BlocksOf(const Sealing& sealing, int head, bool values) {
  const TokenBlockLayout layout(*sealing.item->spec, kWindowBlockTokens);
  const std::int64_t offset = layout.head_bytes * head + (values ? layout.value_offset : 0);
  Scratch<const void*> blocks(sealing.blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = sealing.blocks[i] + offset;
  return blocks;
}

TokenRows KeyRows(const LayerSpec& spec, const void* const* blocks) {
  return {.storage = spec.storage, .dim = spec.key_dim, .blocks = blocks};
}

// The sampled rows of the query heads of one kv head: [num_queries * heads][key_dim].
Scratch<float> GatherQueries(const SealItem& item, int head) {
  const LayerSpec& spec = *item.spec;
  const int heads = spec.queries_per_kv_head();
  const std::size_t row = static_cast<std::size_t>(heads) * spec.key_dim;
  Scratch<float> out(row * item.num_queries);
  for (int q = 0; q < item.num_queries; ++q) {
    const std::int64_t from =
        (static_cast<std::int64_t>(q) * spec.query_heads + head * heads) * spec.key_dim;
    Widen(spec.storage, item.queries + from, row, out.data() + q * row);
  }
  return out;
}

void SumHead(Sealing& sealing, int head) {
  const Scratch<const void*> blocks = BlocksOf(sealing, head, /*values=*/false);
  SumSquares(KeyRows(*sealing.item->spec, blocks.data()), kPageTokens,
             sealing.square_sums.data() + static_cast<std::int64_t>(head) * kPageTokens);
}

void SealHead(Sealing& sealing, int head) {
  const SealItem& item = *sealing.item;
  const LayerSpec& spec = *item.spec;
  const Scratch<const void*> keys = BlocksOf(sealing, head, /*values=*/false);
  const Scratch<const void*> values = BlocksOf(sealing, head, /*values=*/true);
  HeadTokens tokens;
  tokens.keys = KeyRows(spec, keys.data());
  tokens.values = {.storage = spec.storage, .dim = spec.value_dim, .blocks = values.data()};
  Scratch<float> queries;
  if (spec.codec.plan == PlanMode::kAuto && spec.keys_are_coded()) {
    queries = GatherQueries(item, head);
    static_assert(kPageTokens % kWindowBlockTokens == 0);
    tokens.context_keys = KeyRows(spec, keys.data() + kPageTokens / kWindowBlockTokens);
    tokens.context = item.context;
    tokens.queries = queries.data();
    tokens.num_queries = item.num_queries * spec.queries_per_kv_head();
  }
  if (item.directions != nullptr && spec.has_residual()) {
    tokens.direction = item.directions + static_cast<std::int64_t>(head) * spec.key_dim;
  }
  item.heads[head] = EncodeHead(spec, head, tokens, sealing.page);
}

// All heads of some pages: norms, which need the keys of all of a page's heads, then the rest.
void SealPages(Executor& executor, std::span<Sealing> sealings) {
  std::vector<Piece> normed;
  std::vector<Piece> heads;
  for (Sealing& sealing : sealings) {
    const SealItem& item = *sealing.item;
    if (item.head_begin == 0 && HasNorms(*item.spec)) {
      for (int head = 0; head < item.spec->kv_heads; ++head) normed.push_back({&sealing, head});
      sealing.square_sums.resize(static_cast<std::size_t>(item.spec->kv_heads) * kPageTokens);
    }
    for (int head = item.head_begin; head < sealing.head_end; ++head) {
      heads.push_back({&sealing, head});
    }
  }
  const auto sum_head = [&](std::int64_t i) { SumHead(*normed[i].sealing, normed[i].head); };
  if (heads.size() == 1) {
    for (std::size_t i = 0; i < normed.size(); ++i) sum_head(static_cast<std::int64_t>(i));
  } else {
    executor.ParallelFor(std::ssize(normed), sum_head);
  }
  for (Sealing& sealing : sealings) {
    if (sealing.item->head_begin > 0) continue;
    sealing.item->norm_imbalance =
        WritePageStart(*sealing.item->spec, sealing.square_sums.data(), sealing.page);
  }
  executor.ParallelFor(std::ssize(heads),
                       [&](std::int64_t i) { SealHead(*heads[i].sealing, heads[i].head); });
}

}  // namespace

KernelStatus Seal(const BlockMemory& memory, Executor& executor, std::span<SealItem> items) {
  std::vector<Sealing> sealings(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    KernelStatus status = Resolve(memory, items[i], &sealings[i]);
    if (!status.ok()) return status;
  }
  // Some pages at a time, so that keys are still in the cache when they are read again.
  const int heads_at_once = 4 * executor.threads();
  const std::span<Sealing> all = sealings;
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = begin;
    for (int heads = 0; end < all.size() && heads < heads_at_once; ++end) {
      heads += all[end].head_end - all[end].item->head_begin;
    }
    SealPages(executor, all.subspan(begin, end - begin));
    begin = end;
  }
  return KernelStatus::Ok();
}

}  // namespace oscarkv::cpu
