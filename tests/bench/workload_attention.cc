#include "tests/bench/bf16_attention.h"
#include "tests/bench/filled_sessions.h"
#include "tests/bench/gaussian.h"
#include "tests/bench/workload.h"

namespace oscarkv::bench {
namespace {

class AttentionWorkload : public Workload {
 public:
  AttentionWorkload(Environment& environment, const Row& row)
      : backend_(environment.backend(row.threads)),
        row_(row),
        sessions_(backend_, row.spec(), row.context, row.queries,
                  static_cast<int>(environment.InstancesOf(row.bytes()) * row.batch)),
        queries_(GaussianNumbers(row.shape().query_elements(), 5)),
        outputs_(queries_.size()),
        log_sum_exps_(std::int64_t{1} * row.batch * row.queries * row.query_heads),
        baseline_(environment.executor(row.threads), row.shape(), sessions_.spec().scale,
                  BestKernels()) {
    ours = {sessions_.count() / row.batch, [this](std::int64_t call) { return Attend(call); }};
    const std::int64_t elements = row.shape().cache_elements();
    bf16.calls = environment.InstancesOf(row.bf16_bytes());
    const auto* const keys = reinterpret_cast<const std::uint16_t*>(environment.arena());
    bf16.run = [=, this](std::int64_t call) {
      const std::uint16_t* const first = keys + call * 2 * elements;
      baseline_.Run(first, first + elements, queries_.data(), outputs_.data());
      return KernelStatus::Ok();
    };
  }

  const KernelStatus& status() const { return sessions_.status(); }

 private:
  KernelStatus Attend(std::int64_t call) {
    std::vector<AttendItem> items(row_.batch);
    const std::int64_t rows = std::int64_t{1} * row_.queries * row_.query_heads;
    for (int i = 0; i < row_.batch; ++i) {
      AttendItem& item = items[i];
      item.layer = sessions_.View(static_cast<int>(call * row_.batch + i));
      item.num_queries = row_.queries;
      item.query_begin = row_.context - row_.queries;
      item.queries = queries_.data() + i * rows * row_.head_dim;
      item.outputs = outputs_.data() + i * rows * row_.head_dim;
      item.log_sum_exps = log_sum_exps_.data() + i * rows;
    }
    return backend_.Attend(items);
  }

  Backend& backend_;
  const Row row_;
  FilledSessions sessions_;
  std::vector<std::uint16_t> queries_;
  std::vector<float> outputs_;
  std::vector<float> log_sum_exps_;
  BF16Attention baseline_;
};

}  // namespace

WorkloadResult MakeAttentionWorkload(Environment& environment, const Row& row) {
  return MakeWorkloadOf<AttentionWorkload>(environment, row);
}

}  // namespace oscarkv::bench
