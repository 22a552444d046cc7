#include "tests/kernels/support/backend_contract.h"

#include <algorithm>
#include <numeric>

namespace oscarkv::testing {

Answer Attend(Backend& backend, const LayerView& view, std::span<const float> queries, Look look) {
  const LayerSpec& spec = *view.spec;
  const std::size_t rows = queries.size() / spec.key_dim;
  Answer answer;
  answer.outputs.assign(rows * spec.value_dim, std::nanf(""));
  answer.log_sum_exps.assign(rows, std::nanf(""));
  AttendItem item;
  item.layer = view;
  item.num_queries = static_cast<std::int32_t>(rows / spec.query_heads);
  item.query_begin = look.query_begin;
  item.dtype = DType::kFP32;
  item.queries = queries.data();
  item.causal = look.causal;
  item.count_sink_logits = look.count_sink_logits;
  item.outputs = answer.outputs.data();
  item.log_sum_exps = answer.log_sum_exps.data();
  const KernelStatus status = backend.Attend({&item, 1});
  EXPECT_TRUE(status.ok()) << status.message;
  return answer;
}

oracle::Attention OracleAttend(const LayerSpec& spec, const oracle::Tokens& tokens,
                               std::span<const float> queries, Look look) {
  oracle::AttentionRequest request;
  request.spec = &spec;
  request.tokens = &tokens;
  request.positions.resize(tokens.keys.size() / (std::size_t{1} * spec.kv_heads * spec.key_dim));
  std::iota(request.positions.begin(), request.positions.end(), 0);
  request.queries = Widen(queries);
  request.query_begin = look.query_begin;
  request.causal = look.causal;
  request.count_sink_logits = look.count_sink_logits;
  return oracle::Attend(request);
}

void Fill(MiniSession& session, int tokens, int largest_step, bool with_queries, Random& random) {
  const LayerSpec& spec = session.spec();
  const Rows rows = RandomRows(spec, tokens, random);
  const std::vector<float> queries = RandomQueries(spec, tokens, random);
  const std::size_t key_row = static_cast<std::size_t>(spec.kv_heads) * spec.key_dim;
  const std::size_t value_row = static_cast<std::size_t>(spec.kv_heads) * spec.value_dim;
  const std::size_t query_row = static_cast<std::size_t>(spec.query_heads) * spec.key_dim;
  for (int done = 0; done < tokens;) {
    const int count =
        static_cast<int>(std::min<std::int64_t>(tokens - done, random.Int(1, largest_step)));
    const std::int64_t position = session.length();
    session.Append(std::span(rows.keys).subspan(done * key_row, count * key_row),
                   std::span(rows.values).subspan(done * value_row, count * value_row));
    if (with_queries) {
      session.Sample(position, std::span(queries).subspan(done * query_row, count * query_row));
    }
    done += count;
  }
}

}  // namespace oscarkv::testing
