#include "kernels/cpu/layer_memory.h"

#include <algorithm>
#include <cstring>

#include "kernels/codec/hadamard.h"
#include "kernels/codec/page_view.h"

namespace oscarkv::cpu {
namespace {

bool IsBits(int bits) { return bits == 2 || bits == 4 || bits == 16; }

bool CodecIsKnown(const CodecSpec& codec) {
  return IsBits(codec.key_bits) && IsBits(codec.value_bits) &&
         (codec.key_group == kSmallGroup || codec.key_group == kPageTokens) &&
         (codec.value_group == 0 || codec.value_group == kSmallGroup) && codec.window >= 1 &&
         codec.sinks >= 0 && codec.sinks <= (1 << 20);
}

// Adds a page that begins at `end`, which is moved to its own, or later.
KernelStatus ResolvePage(const BlockMemory& memory, const PageRef& page, std::int64_t page_bytes,
                         std::int64_t* end, LayerMemory* layer) {
  if (page.tokens < 0 || page.tokens > kPageTokens || page.begin < *end ||
      page.begin > kMaxPosition) {
    return KernelStatus::InvalidArgument("pages overlap, are out of order or too long");
  }
  *end = page.begin + page.tokens;
  std::byte* bytes = nullptr;
  KernelStatus status = FindBlock(memory, page.block, page_bytes, "page", &bytes);
  if (status.ok()) layer->pages.push_back({bytes, page.begin, page.tokens});
  return status;
}

KernelStatus ResolvePages(const BlockMemory& memory, const LayerView& view, LayerMemory* layer) {
  const PageLayout layout(*view.spec);
  std::size_t pages = 0;
  for (const std::span<const PageRef> run : view.page_runs) pages += run.size();
  layer->pages.reserve(pages);
  std::int64_t end = 0;
  for (const std::span<const PageRef> run : view.page_runs) {
    for (const PageRef& page : run) {
      KernelStatus status = ResolvePage(memory, page, layout.bytes, &end, layer);
      if (!status.ok()) return status;
    }
  }
  if (layer->window_tokens > 0 && end > layer->window_begin) {
    return KernelStatus::InvalidArgument("pages overlap the window");
  }
  return KernelStatus::Ok();
}

// Without directions no page may have been sealed with any.
KernelStatus CheckDirections(const LayerMemory& layer) {
  if (layer.directions != nullptr || !layer.spec->has_residual()) return KernelStatus::Ok();
  for (const PageMemory& page : layer.pages) {
    const PageView view(*layer.spec, page.bytes);
    for (int head = 0; head < layer.spec->kv_heads; ++head) {
      if (view.Head(head).has_residual) {
        return KernelStatus::InvalidArgument("a page has residuals but the layer no directions");
      }
    }
  }
  return KernelStatus::Ok();
}

}  // namespace

KernelStatus CheckSpec(const LayerSpec* spec) {
  if (spec == nullptr) return KernelStatus::InvalidArgument("no layer spec");
  if (spec->kv_heads < 1 || spec->query_heads < 1 || spec->query_heads % spec->kv_heads != 0 ||
      spec->queries_per_kv_head() > kMaxQueryHeadsPerKvHead) {
    return KernelStatus::InvalidArgument("impossible head counts");
  }
  if (!IsHeadDim(spec->key_dim) || !IsHeadDim(spec->value_dim)) {
    return KernelStatus::InvalidArgument("unknown head_dim");
  }
  if (spec->storage == DType::kFP32) {
    return KernelStatus::InvalidArgument("tokens are stored in 16 bits");
  }
  if (!spec->sink_logits.empty() &&
      spec->sink_logits.size() != static_cast<std::size_t>(spec->query_heads)) {
    return KernelStatus::InvalidArgument("learned sinks: one a query head, or none");
  }
  if (!CodecIsKnown(spec->codec)) return KernelStatus::InvalidArgument("unknown codec");
  return KernelStatus::Ok();
}

KernelStatus FindBlock(const BlockMemory& memory, BlockId id, std::int64_t bytes, const char* what,
                       std::byte** data) {
  const Block block = memory.Find(id);
  if (block.data == nullptr) {
    return KernelStatus::InvalidArgument(std::string("unknown block as ") + what);
  }
  if (bytes < 0 || block.bytes < bytes) {
    return KernelStatus::InvalidArgument(std::string(what) +
                                         " does not fit its block: " + std::to_string(bytes) +
                                         " of " + std::to_string(block.bytes) + " bytes");
  }
  *data = block.data;
  return KernelStatus::Ok();
}

KernelStatus ResolveLayer(const BlockMemory& memory, const LayerView& view, LayerMemory* layer) {
  KernelStatus status = CheckSpec(view.spec);
  if (!status.ok()) return status;
  const LayerSpec& spec = *view.spec;
  if (view.length < 0 || view.length > kMaxPosition || view.window_begin < 0 ||
      view.window_begin > kMaxPosition) {
    return KernelStatus::InvalidArgument("impossible length or window");
  }
  layer->spec = view.spec;
  layer->directions = view.directions;
  layer->length = view.length;
  layer->window_begin = view.window_begin;
  layer->window_tokens = std::max<std::int64_t>(0, view.length - view.window_begin);

  std::byte* bytes = nullptr;
  layer->sink_tokens = static_cast<int>(std::min<std::int64_t>(spec.codec.sinks, view.length));
  if (layer->sink_tokens > 0) {
    const TokenBlockLayout layout(spec, spec.codec.sinks);
    status = FindBlock(memory, view.sinks, layout.bytes, "sinks", &bytes);
    if (!status.ok()) return status;
    layer->sinks = bytes;
  }
  status = ResolvePages(memory, view, layer);
  if (!status.ok()) return status;
  status = CheckDirections(*layer);
  if (!status.ok()) return status;

  const std::int64_t blocks = (layer->window_tokens + kWindowBlockTokens - 1) / kWindowBlockTokens;
  if (static_cast<std::int64_t>(view.window.size()) < blocks) {
    return KernelStatus::InvalidArgument("the window has too few blocks");
  }
  const TokenBlockLayout layout(spec, kWindowBlockTokens);
  for (std::int64_t i = 0; i < blocks; ++i) {
    status = FindBlock(memory, view.window[i], layout.bytes, "window", &bytes);
    if (!status.ok()) return status;
    layer->window.push_back(bytes);
  }
  return KernelStatus::Ok();
}

}  // namespace oscarkv::cpu
