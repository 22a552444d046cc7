#include "tests/server/session/model/model_session.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

std::uint64_t PromptSeed(const ModelShape& shape) {
  return static_cast<std::uint64_t>(1 + shape.kind * kModelPrompts + shape.prompt);
}

}  // namespace

SessionConfig ModelConfig(const ModelShape& shape) {
  SessionConfig config = SmallSession("", kModelLayers);
  for (LayerSpec& spec : config.layers) {
    spec.kv_heads = 1;
    spec.query_heads = 2;
  }
  config.layers[0].codec.window = 8;
  config.layers[0].codec.sinks = 2;
  LayerSpec& sliding = config.layers[1];
  sliding.codec.key_bits = 16;
  sliding.codec.value_bits = 16;
  sliding.codec.window = shape.kind == 0 ? 5 : 30;
  sliding.codec.sinks = 0;
  sliding.sliding_window = shape.kind == 0 ? 40 : 20;
  config.rollback_tokens = kModelRollback;
  if (shape.prompt >= 0) {
    for (const std::int64_t length : kModelPrefixes) {
      config.prefix_keys.push_back(
          {.length = length, .key = absl::StrCat("prompt ", shape.prompt, " to ", length)});
    }
  }
  return config;
}

std::int64_t SessionState::Committed() const {
  std::int64_t least = layers.front().length();
  for (const LayerHistory& layer : layers) least = std::min(least, layer.length());
  return least;
}

std::int64_t SessionState::Longest() const {
  std::int64_t longest = 0;
  for (const LayerHistory& layer : layers) longest = std::max(longest, layer.length());
  return longest;
}

int SessionState::Events() const {
  int most = 0;
  for (const LayerHistory& layer : layers) most = std::max(most, layer.events());
  return most;
}

bool SessionState::SameAs(const SessionState& other) const {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].SameAs(other.layers[i])) return false;
  }
  return prefix_limit == other.prefix_limit && last_truncate == other.last_truncate;
}

void SessionState::Truncate(const TruncateRecord& asked, std::uint64_t next) {
  for (LayerHistory& layer : layers) layer.Truncate(asked.length, next);
  prefix_limit = std::min(prefix_limit, asked.length);
  last_truncate.reset();
  if (!asked.request_id.empty()) last_truncate = asked;
  ++changes;
}

bool SessionState::IsToldOf(const TruncateRecord& asked, const ModelShape& shape) const {
  if (Longest() > asked.length) return true;
  return shape.prompt >= 0 && std::any_of(std::begin(kModelPrefixes), std::end(kModelPrefixes),
                                          [&](std::int64_t length) {
                                            return asked.length < length && length <= prefix_limit;
                                          });
}

SessionState SessionState::Fork(std::int64_t length, std::uint64_t next) const {
  SessionState fork;
  fork.layers = layers;
  for (LayerHistory& layer : fork.layers) layer.Truncate(length, next);
  return fork;
}

void SessionState::SetPrompt(const ModelShape& shape, std::uint64_t next) {
  for (LayerHistory& layer : layers) {
    if (shape.prompt < 0) {
      layer.SetSeed(layer.length(), next);
      continue;
    }
    layer.SetSeed(layer.length(), PromptSeed(shape));
    layer.SetSeed(kModelPromptTokens, next);
  }
}

void SessionState::GoOnWith(const ModelShape& shape, std::uint64_t next) {
  if (shape.prompt >= 0 && prefix_limit >= kModelPrefixes[0]) return;
  for (LayerHistory& layer : layers) layer.SetSeed(layer.length(), next);
}

}  // namespace oscarkv
