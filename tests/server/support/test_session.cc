#include "tests/server/support/test_session.h"

#include <cmath>
#include <utility>

namespace oscarkv {
namespace {

// splitmix64 (Steele, Lea, Flood 2014): every input bit moves every output bit.
std::uint64_t Mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

LayerSpec SmallLayer(int layer) {
  LayerSpec spec;
  spec.layer = layer;
  spec.query_heads = 4;
  spec.kv_heads = 2;
  spec.key_dim = 64;
  spec.value_dim = 64;
  spec.scale = 0.125F;
  spec.codec.window = 32;
  return spec;
}

SessionConfig SmallSession(std::string id, int layers) {
  SessionConfig config;
  config.id = std::move(id);
  config.request_id = "request of " + config.id;
  config.content_digest = "digest";
  for (int i = 0; i < layers; ++i) config.layers.push_back(SmallLayer(i));
  config.value_folded.assign(config.layers.size(), false);
  return config;
}

SessionConfig SessionOfAllKinds(std::string id) {
  SessionConfig config = SmallSession(std::move(id), 5);
  config.layers[1].codec.window = 1;
  config.layers[1].codec.sinks = 0;
  CodecSpec& paper = config.layers[2].codec;
  paper = {.key_group = 32,
           .value_group = 32,
           .value_fit = Fit::kMinMax,
           .plan = PlanMode::kGiven,
           .residual = false,
           .window = 40,
           .sinks = 0};
  config.layers[2].given_plan.assign(2, {.fit = Fit::kMinMax});
  config.layers[3].codec.key_bits = 16;
  config.layers[3].codec.value_bits = 4;
  config.layers[4].sliding_window = 30;
  config.rollback_tokens = kPositionLimit;
  return config;
}

std::vector<std::uint16_t> MakeRows(DType storage, std::uint64_t seed, std::int64_t begin,
                                    std::int64_t count, int heads, int dim) {
  std::vector<std::uint16_t> rows;
  rows.reserve(static_cast<std::size_t>(count) * heads * dim);
  for (std::int64_t t = begin; t < begin + count; ++t) {
    std::uint64_t state = Mix(seed * 0x100000001b3 + static_cast<std::uint64_t>(t));
    for (int i = 0; i < heads * dim; ++i) {
      state = Mix(state);
      // Nearly normal, and larger in some channels, as keys are.
      const double sum =
          static_cast<double>(state & 0xffff) + ((state >> 16) & 0xffff) + ((state >> 32) & 0xffff);
      const double x = (sum / 65536.0 - 1.5) * (i % 16 == 3 ? 6.0 : 2.0);
      rows.push_back(ToBits16(storage, static_cast<float>(x)));
    }
  }
  return rows;
}

std::vector<std::uint16_t> Source::Keys(std::int64_t begin, std::int64_t count) const {
  return MakeRows(spec->storage, seed * 4 + 1, begin, count, spec->kv_heads, spec->key_dim);
}

std::vector<std::uint16_t> Source::Values(std::int64_t begin, std::int64_t count) const {
  return MakeRows(spec->storage, seed * 4 + 2, begin, count, spec->kv_heads, spec->value_dim);
}

std::vector<std::uint16_t> Source::Queries(std::int64_t begin, std::int64_t count,
                                           std::int64_t stride) const {
  std::vector<std::uint16_t> rows;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::vector<std::uint16_t> row = MakeRows(spec->storage, seed * 4 + 3, begin + i * stride,
                                                    1, spec->query_heads, spec->key_dim);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

namespace {

Request TokensRequest(const std::string& session, std::uint64_t generation, const Source& source,
                      std::int64_t begin, std::int32_t count) {
  const LayerSpec& spec = *source.spec;
  Request request;
  request.session = session;
  request.item.generation = generation;
  request.item.expected_length = begin;
  request.item.num_tokens = count;
  request.keys = source.Keys(begin, count);
  request.values = source.Values(begin, count);
  request.item.keys = {.dtype = spec.storage,
                       .heads = spec.kv_heads,
                       .dim = spec.key_dim,
                       .data = request.keys.data()};
  request.item.values = {.dtype = spec.storage,
                         .heads = spec.kv_heads,
                         .dim = spec.value_dim,
                         .data = request.values.data()};
  return request;
}

void SetQueries(const LayerSpec& spec, std::vector<std::uint16_t> rows, Request* request) {
  request->queries = std::move(rows);
  const int row = spec.query_heads * spec.key_dim;
  request->item.num_queries = static_cast<std::int32_t>(request->queries.size()) / row;
  request->item.queries = {.dtype = spec.storage,
                           .heads = spec.query_heads,
                           .dim = spec.key_dim,
                           .data = request->queries.data()};
}

}  // namespace

Request AppendRequest(const std::string& session, std::uint64_t generation, const Source& source,
                      std::int64_t begin, std::int32_t count, bool with_queries) {
  Request request = TokensRequest(session, generation, source, begin, count);
  const std::int64_t stride = source.spec->query_sample_stride();
  const std::int64_t first = (begin + stride - 1) / stride * stride;
  if (with_queries && first < begin + count) {
    const std::int64_t sampled = (begin + count - 1 - first) / stride + 1;
    request.item.query_stride = static_cast<std::int32_t>(stride);
    SetQueries(*source.spec, source.Queries(first, sampled, stride), &request);
  }
  return request;
}

Request AttendRequest(const std::string& session, std::uint64_t generation, const Source& source,
                      std::int64_t begin, std::int32_t count, std::int32_t queries) {
  const LayerSpec& spec = *source.spec;
  Request request = TokensRequest(session, generation, source, begin, count);
  SetQueries(spec, source.Queries(begin + count - queries, queries), &request);
  const std::size_t heads = static_cast<std::size_t>(queries) * spec.query_heads;
  request.outputs.resize(heads * spec.value_dim);
  request.log_sum_exps.resize(heads);
  return request;
}

namespace {

std::vector<BatchItem*> InLayer(int layer, std::span<BatchItem> items) {
  std::vector<BatchItem*> pointers;
  for (BatchItem& item : items) {
    item.layer = layer;
    pointers.push_back(&item);
  }
  return pointers;
}

}  // namespace

void AppendAll(SessionStore* store, int layer, std::span<BatchItem> items) {
  store->Append(InLayer(layer, items));
}

void AttendAll(SessionStore* store, int layer, std::span<BatchItem> items) {
  store->Attend(InLayer(layer, items));
}

absl::Status Append(SessionStore* store, int layer, Request* request) {
  request->item.session = request->session;
  AppendAll(store, layer, std::span(&request->item, 1));
  return request->item.status;
}

absl::Status Attend(SessionStore* store, int layer, Request* request) {
  request->item.session = request->session;
  request->item.outputs = request->outputs.data();
  request->item.log_sum_exps = request->log_sum_exps.data();
  AttendAll(store, layer, std::span(&request->item, 1));
  return request->item.status;
}

absl::StatusOr<Tokens> ReadAll(const SessionStore& store, const std::string& session,
                               std::size_t layer_index) {
  const absl::StatusOr<SessionInfo> info = store.Get(session);
  if (!info.ok()) return info.status();
  const LayerSpec& spec = info->config->layers[layer_index];
  const std::int64_t length = info->layers[layer_index].length;
  Tokens tokens;
  tokens.keys.resize(static_cast<std::size_t>(length) * spec.kv_heads * spec.key_dim);
  tokens.values.resize(static_cast<std::size_t>(length) * spec.kv_heads * spec.value_dim);
  const auto read = [&](std::int64_t begin, std::int64_t end) {
    return store.Read(info->config, info->generation, spec.layer, begin, end - begin,
                      tokens.keys.data() + begin * spec.kv_heads * spec.key_dim,
                      tokens.values.data() + begin * spec.kv_heads * spec.value_dim);
  };
  const std::int64_t kept_from = info->layers[layer_index].kept_from;
  absl::Status status = read(0, std::min<std::int64_t>(kept_from, spec.codec.sinks));
  if (status.ok()) status = read(kept_from, length);
  if (!status.ok()) return status;
  return tokens;
}

}  // namespace oscarkv
