#include "client/replay/exact_attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

namespace oscarkv {
namespace {

std::vector<float> ToFloatVector(const RecordedTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.tokens) * tensor.heads * tensor.dim);
  ToFloats(tensor.dtype, tensor.bytes.data(), values.size(), values.data());
  return values;
}

class ExactLayer {
 public:
  explicit ExactLayer(const RecordedLayer& layer)
      : layer_(layer),
        key_(ToFloatVector(layer.key)),
        value_(ToFloatVector(layer.value)),
        query_(ToFloatVector(layer.query)) {}

  ExactOutput Attend(std::int64_t position) const {
    const int heads = layer_.query.heads;
    ExactOutput result;
    result.output.resize(static_cast<std::size_t>(heads) * layer_.value.dim);
    result.log_sum_exp.resize(static_cast<std::size_t>(heads));
    for (int head = 0; head < heads; ++head) {
      result.log_sum_exp[head] = AttendHead(
          position, head, &result.output[static_cast<std::size_t>(head) * layer_.value.dim]);
    }
    return result;
  }

 private:
  // Adds to output [value_dim]; returns the log-sum-exp.
  double AttendHead(std::int64_t position, int head, double* output) const {
    const int kv_head = head / (layer_.query.heads / layer_.key.heads);
    const float* query = Row(query_, layer_.query, position, head);
    const std::int64_t begin =
        layer_.sliding_window ? std::max<std::int64_t>(0, position + 1 - *layer_.sliding_window)
                              : 0;
    std::vector<double> logits;
    for (std::int64_t token = begin; token <= position; ++token) {
      logits.push_back(Logit(query, Row(key_, layer_.key, token, kv_head)));
    }
    double max = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    if (!layer_.sink_logits.empty()) {
      max = std::max<double>(max, layer_.sink_logits[head]);
      sum = std::exp(layer_.sink_logits[head] - max);
    }
    for (double& logit : logits) sum += logit = std::exp(logit - max);
    for (std::int64_t token = begin; token <= position; ++token) {
      const double weight = logits[token - begin] / sum;
      const float* value = Row(value_, layer_.value, token, kv_head);
      for (int c = 0; c < layer_.value.dim; ++c) output[c] += weight * value[c];
    }
    return max + std::log(sum);
  }

  double Logit(const float* query, const float* key) const {
    double dot = 0;
    for (int c = 0; c < layer_.key.dim; ++c) dot += static_cast<double>(query[c]) * key[c];
    const double logit = layer_.scale * dot;
    return layer_.softcap ? *layer_.softcap * std::tanh(logit / *layer_.softcap) : logit;
  }

  static const float* Row(const std::vector<float>& values, const RecordedTensor& tensor,
                          std::int64_t token, int head) {
    return &values[static_cast<std::size_t>(token * tensor.heads + head) * tensor.dim];
  }

  const RecordedLayer& layer_;
  const std::vector<float> key_;
  const std::vector<float> value_;
  const std::vector<float> query_;
};

}  // namespace

std::vector<ExactOutput> ExactAttention(const RecordedLayer& layer,
                                        std::span<const std::int64_t> positions) {
  const ExactLayer exact(layer);
  std::vector<ExactOutput> outputs(positions.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < positions.size(); i = next++) {
      outputs[i] = exact.Attend(positions[i]);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 1; t < std::thread::hardware_concurrency(); ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return outputs;
}

}  // namespace oscarkv
