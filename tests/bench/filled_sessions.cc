#include "tests/bench/filled_sessions.h"

#include <algorithm>
#include <utility>

#include "kernels/api/page_layout.h"
#include "kernels/api/query_directions.h"
#include "tests/bench/gaussian.h"

namespace oscarkv::bench {
namespace {

constexpr std::int64_t kDistinctPages = 4;
constexpr std::int64_t kBlocksPerPage = kPageTokens / kWindowBlockTokens;

std::int64_t BlocksOf(std::int64_t tokens) {
  return (tokens + kWindowBlockTokens - 1) / kWindowBlockTokens;
}

// Rows [0, tokens) into blocks of `block_tokens`, from the first on.
KernelStatus AppendRows(Backend& backend, const LayerSpec& spec, std::span<const BlockId> blocks,
                        int block_tokens, std::int64_t tokens, const std::uint16_t* keys,
                        const std::uint16_t* values) {
  std::vector<AppendItem> items;
  for (std::int64_t row = 0; row < tokens; row += block_tokens) {
    AppendItem item;
    item.spec = &spec;
    item.block = blocks[row / block_tokens];
    item.block_tokens = block_tokens;
    item.tokens = static_cast<std::int32_t>(std::min<std::int64_t>(block_tokens, tokens - row));
    item.keys = keys + row * spec.kv_heads * spec.key_dim;
    item.values = values + row * spec.kv_heads * spec.value_dim;
    items.push_back(item);
  }
  return backend.Append(items);
}

}  // namespace

ContextShape::ContextShape(const LayerSpec& spec, std::int64_t context, std::int64_t step) {
  // A page is sealed when its tokens and a window after them were there before the last request.
  const std::int64_t settled = context - step - spec.codec.sinks - spec.codec.window;
  pages = std::max<std::int64_t>(0, settled / kPageTokens);
  window_tokens = context - spec.codec.sinks - pages * kPageTokens;
  bytes = pages * PageLayout(spec).bytes +
          (spec.codec.sinks + window_tokens) * spec.logical_bytes_per_token();
}

FilledSessions::FilledSessions(Backend& backend, LayerSpec spec, std::int64_t context,
                               std::int64_t step, int count)
    : backend_(backend),
      spec_(std::move(spec)),
      context_(context),
      shape_(spec_, context, step),
      status_(MakeTemplate()) {
  sessions_.reserve(count);
  for (int i = 0; i < count && status_.ok(); ++i) status_ = AddSession();
}

FilledSessions::~FilledSessions() {
  for (const Session& session : sessions_) {
    backend_.Free({&session.sinks, 1});
    for (const PageRef& page : session.pages) backend_.Free({&page.block, 1});
    backend_.Free(session.window);
  }
  backend_.Free(template_sinks_);
  backend_.Free(template_pages_);
  backend_.Free(template_window_);
}

KernelStatus FilledSessions::Allocate(std::int64_t bytes, std::vector<BlockId>& blocks) {
  if (blocks.empty()) return KernelStatus::Ok();
  return backend_.Allocate(bytes, blocks);
}

KernelStatus FilledSessions::MakeTemplate() {
  const int sinks = spec_.codec.sinks;
  const std::int64_t sealed = std::min(shape_.pages, kDistinctPages) * kPageTokens;
  const std::int64_t tokens = sinks + sealed + shape_.window_tokens;
  std::vector<std::uint16_t> keys = GaussianNumbers(tokens * spec_.kv_heads * spec_.key_dim, 1);
  std::vector<std::uint16_t> values = GaussianNumbers(tokens * spec_.kv_heads * spec_.value_dim, 2);

  template_sinks_.assign(sinks > 0 ? 1 : 0, kNoBlock);
  KernelStatus status = Allocate(TokenBlockLayout(spec_, sinks).bytes, template_sinks_);
  if (status.ok() && sinks > 0) {
    status = AppendRows(backend_, spec_, template_sinks_, sinks, sinks, keys.data(), values.data());
  }
  if (!status.ok()) return status;
  keys.erase(keys.begin(), keys.begin() + std::int64_t{1} * sinks * spec_.kv_heads * spec_.key_dim);
  values.erase(values.begin(),
               values.begin() + std::int64_t{1} * sinks * spec_.kv_heads * spec_.value_dim);
  return SealTemplatePages(keys, values);
}

// The tokens after the sinks into window blocks, and the oldest of them into pages.
KernelStatus FilledSessions::SealTemplatePages(const std::vector<std::uint16_t>& keys,
                                               const std::vector<std::uint16_t>& values) {
  const std::int64_t sealed = std::min(shape_.pages, kDistinctPages);
  const std::int64_t tokens = sealed * kPageTokens + shape_.window_tokens;
  template_window_.assign(BlocksOf(tokens), kNoBlock);
  KernelStatus status =
      Allocate(TokenBlockLayout(spec_, kWindowBlockTokens).bytes, template_window_);
  if (!status.ok()) return status;
  status = AppendRows(backend_, spec_, template_window_, kWindowBlockTokens, tokens, keys.data(),
                      values.data());
  if (!status.ok() || sealed == 0) return status;

  const int queries = (kPageTokens + spec_.codec.window) / spec_.query_sample_stride();
  const std::vector<std::uint16_t> sample =
      GaussianNumbers(std::int64_t{1} * queries * spec_.query_heads * spec_.key_dim, 3);
  if (spec_.has_residual() && queries > 0) {
    directions_ = PrincipalDirections(spec_, sample.data(), queries);
  }
  template_pages_.assign(sealed, kNoBlock);
  status = Allocate(PageLayout(spec_).bytes, template_pages_);
  if (!status.ok()) return status;
  std::vector<SealedHead> heads(sealed * spec_.kv_heads);
  std::vector<SealItem> items(sealed);
  for (std::int64_t i = 0; i < sealed; ++i) {
    items[i].spec = &spec_;
    items[i].tokens = std::span(template_window_).subspan(i * kBlocksPerPage);
    items[i].context = spec_.codec.window;
    items[i].page = template_pages_[i];
    items[i].queries = queries > 0 ? sample.data() : nullptr;
    items[i].num_queries = queries;
    items[i].directions = directions_.empty() ? nullptr : directions_.data();
    items[i].heads = heads.data() + i * spec_.kv_heads;
  }
  return backend_.Seal(items);
}

KernelStatus FilledSessions::AddSession() {
  Session& session = sessions_.emplace_back();
  const std::int64_t sinks_bytes = TokenBlockLayout(spec_, spec_.codec.sinks).bytes;
  const std::int64_t page_bytes = PageLayout(spec_).bytes;
  const std::int64_t window_bytes = TokenBlockLayout(spec_, kWindowBlockTokens).bytes;
  std::vector<CopyItem> copies;
  if (spec_.codec.sinks > 0) {
    const KernelStatus status = backend_.Allocate(sinks_bytes, {&session.sinks, 1});
    if (!status.ok()) return status;
    copies.push_back({template_sinks_[0], session.sinks, sinks_bytes});
  }
  std::vector<BlockId> pages(shape_.pages, kNoBlock);
  KernelStatus status = Allocate(page_bytes, pages);
  if (!status.ok()) return status;
  for (std::int64_t i = 0; i < shape_.pages; ++i) {
    session.pages.push_back({pages[i], spec_.codec.sinks + i * kPageTokens, kPageTokens});
    copies.push_back({template_pages_[i % template_pages_.size()], pages[i], page_bytes});
  }
  session.page_run = session.pages;
  session.window.assign(BlocksOf(shape_.window_tokens), kNoBlock);
  status = Allocate(window_bytes, session.window);
  if (!status.ok()) return status;
  const std::size_t first = template_pages_.size() * kBlocksPerPage;
  for (std::size_t i = 0; i < session.window.size(); ++i) {
    copies.push_back({template_window_[first + i], session.window[i], window_bytes});
  }
  return backend_.Copy(copies);
}

LayerView FilledSessions::View(int session) const {
  const Session& from = sessions_[session];
  LayerView view;
  view.spec = &spec_;
  view.sinks = from.sinks;
  view.page_runs = {&from.page_run, 1};
  view.window = from.window;
  view.window_begin = context_ - shape_.window_tokens;
  view.length = context_;
  view.directions = directions_.empty() ? nullptr : directions_.data();
  return view;
}

}  // namespace oscarkv::bench
