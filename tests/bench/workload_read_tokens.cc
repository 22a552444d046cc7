#include <algorithm>
#include <cstring>

#include "tests/bench/filled_sessions.h"
#include "tests/bench/huge_buffer.h"
#include "tests/bench/workload.h"

namespace oscarkv::bench {
namespace {

// The baseline copies rows out of a BF16 cache of [kv_head][token][head_dim].
class ReadTokensWorkload : public Workload {
 public:
  ReadTokensWorkload(Environment& environment, const Row& row)
      : backend_(environment.backend(row.threads)),
        executor_(environment.executor(row.threads)),
        row_(row),
        sessions_(backend_, row.spec(), row.context, 1,
                  static_cast<int>(environment.InstancesOf(row.bytes()) * row.batch)),
        output_calls_(environment.InstancesOf(row.bf16_bytes())),
        outputs_(output_calls_ * row.bf16_bytes()) {
    cache_ = reinterpret_cast<const std::uint16_t*>(environment.arena());
    ours = {sessions_.count() / row.batch, [this](std::int64_t call) { return Read(call); }};
    bf16 = {output_calls_, [this](std::int64_t call) {
              CopyRows(call);
              return KernelStatus::Ok();
            }};
  }

  const KernelStatus& status() const { return sessions_.status(); }

 private:
  std::uint16_t* Output(std::int64_t call) const {
    return outputs_.as<std::uint16_t>() + call % output_calls_ * (row_.bf16_bytes() / 2);
  }

  KernelStatus Read(std::int64_t call) {
    std::vector<ReadItem> items(row_.batch);
    const std::int64_t elements = row_.context * row_.kv_heads * row_.head_dim;
    for (int i = 0; i < row_.batch; ++i) {
      items[i].layer = sessions_.View(static_cast<int>(call * row_.batch + i));
      items[i].tokens = row_.context;
      items[i].keys = Output(call) + 2 * i * elements;
      items[i].values = Output(call) + (2 * i + 1) * elements;
    }
    return backend_.ReadTokens(items);
  }

  void CopyRows(std::int64_t call) {
    constexpr std::int64_t kTokens = 128;
    const std::int64_t dim = row_.head_dim;
    const std::int64_t tokens = row_.context;
    const std::int64_t parts = (tokens + kTokens - 1) / kTokens;
    const std::uint16_t* const from = cache_ + call * (row_.bf16_bytes() / 2);
    // A piece: some tokens of the keys or values of one session.
    executor_.ParallelFor(2 * row_.batch * parts, [&](std::int64_t piece) {
      const std::int64_t first = piece / parts * tokens * row_.kv_heads * dim;
      const std::int64_t begin = piece % parts * kTokens;
      const std::int64_t end = std::min(tokens, begin + kTokens);
      for (std::int64_t token = begin; token < end; ++token) {
        for (std::int64_t head = 0; head < row_.kv_heads; ++head) {
          std::memcpy(Output(call) + first + (token * row_.kv_heads + head) * dim,
                      from + first + (head * tokens + token) * dim, 2 * dim);
        }
      }
    });
  }

  Backend& backend_;
  cpu::Executor& executor_;
  const Row row_;
  FilledSessions sessions_;
  const std::int64_t output_calls_;
  HugeBuffer outputs_;
  const std::uint16_t* cache_ = nullptr;
};

}  // namespace

WorkloadResult MakeReadTokensWorkload(Environment& environment, const Row& row) {
  return MakeWorkloadOf<ReadTokensWorkload>(environment, row);
}

}  // namespace oscarkv::bench
