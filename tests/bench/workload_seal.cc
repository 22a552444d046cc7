#include "kernels/api/page_layout.h"
#include "kernels/api/query_directions.h"
#include "tests/bench/gaussian.h"
#include "tests/bench/workload.h"

namespace oscarkv::bench {
namespace {

constexpr std::int64_t kBlocksPerPage = kPageTokens / kWindowBlockTokens;

// Each page from window blocks of its own, followed by a window of context.
class SealWorkload : public Workload {
 public:
  SealWorkload(Environment& environment, const Row& row)
      : backend_(environment.backend(row.threads)),
        spec_(row.spec()),
        pages_per_call_(row.batch * row.context / kPageTokens),
        blocks_per_page_(kBlocksPerPage +
                         (spec_.codec.window + kWindowBlockTokens - 1) / kWindowBlockTokens),
        calls_(environment.InstancesOf(pages_per_call_ * blocks_per_page_ * BlockBytes())),
        blocks_(calls_ * pages_per_call_ * blocks_per_page_, kNoBlock),
        pages_(calls_ * pages_per_call_, kNoBlock),
        num_queries_((kPageTokens + spec_.codec.window) / spec_.query_sample_stride()),
        queries_(
            GaussianNumbers(std::int64_t{1} * num_queries_ * spec_.query_heads * spec_.key_dim, 6)),
        heads_(pages_per_call_ * spec_.kv_heads) {
    if (spec_.has_residual() && num_queries_ > 0) {
      directions_ = PrincipalDirections(spec_, queries_.data(), num_queries_);
    }
    status_ = backend_.Allocate(BlockBytes(), blocks_);
    if (status_.ok()) status_ = backend_.Allocate(PageLayout(spec_).bytes, pages_);
    if (status_.ok()) status_ = FillBlocks();
    ours = {calls_, [this](std::int64_t call) { return Seal(call); }};
  }
  ~SealWorkload() override {
    backend_.Free(blocks_);
    backend_.Free(pages_);
  }

  const KernelStatus& status() const { return status_; }

 private:
  std::int64_t BlockBytes() const { return TokenBlockLayout(spec_, kWindowBlockTokens).bytes; }

  KernelStatus FillBlocks() {
    const std::int64_t count = std::int64_t{kWindowBlockTokens} * spec_.kv_heads * spec_.key_dim;
    const std::vector<std::uint16_t> rows =
        GaussianNumbers((1 + static_cast<std::int64_t>(blocks_per_page_)) * count, 7);
    std::vector<AppendItem> items(blocks_.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::uint16_t* const from = rows.data() + i % blocks_per_page_ * count;
      items[i].spec = &spec_;
      items[i].block = blocks_[i];
      items[i].tokens = kWindowBlockTokens;
      items[i].keys = from;
      items[i].values = from + count;
    }
    return backend_.Append(items);
  }

  KernelStatus Seal(std::int64_t call) {
    std::vector<SealItem> items(pages_per_call_);
    for (std::int64_t i = 0; i < pages_per_call_; ++i) {
      const std::int64_t page = call * pages_per_call_ + i;
      items[i].spec = &spec_;
      items[i].tokens = std::span(blocks_).subspan(page * blocks_per_page_, blocks_per_page_);
      items[i].context = spec_.codec.window;
      items[i].page = pages_[page];
      items[i].queries = queries_.empty() ? nullptr : queries_.data();
      items[i].num_queries = num_queries_;
      items[i].directions = directions_.empty() ? nullptr : directions_.data();
      items[i].heads = heads_.data() + i * spec_.kv_heads;
    }
    return backend_.Seal(items);
  }

  Backend& backend_;
  const LayerSpec spec_;
  const std::int64_t pages_per_call_;
  const std::int64_t blocks_per_page_;
  const std::int64_t calls_;
  std::vector<BlockId> blocks_;
  std::vector<BlockId> pages_;
  const int num_queries_;
  std::vector<std::uint16_t> queries_;
  std::vector<float> directions_;
  std::vector<SealedHead> heads_;
  KernelStatus status_;
};

}  // namespace

WorkloadResult MakeSealWorkload(Environment& environment, const Row& row) {
  return MakeWorkloadOf<SealWorkload>(environment, row);
}

}  // namespace oscarkv::bench
