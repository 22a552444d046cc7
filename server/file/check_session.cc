// What CreateSession accepts, for sessions that come from a file.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/error.h"
#include "server/file/session_fields.h"

namespace oscarkv {
namespace {

absl::Status CheckRange(std::string_view field, std::int64_t value, std::int64_t low,
                        std::int64_t high) {
  if (low <= value && value <= high) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(value), absl::StrCat(low, " to ", high));
}

absl::Status CheckChoice(std::string_view field, int value, std::initializer_list<int> choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(value),
                      absl::StrCat("one of ", absl::StrJoin(choices, ", ")));
}

absl::Status CheckId(std::string_view field, std::string_view id, std::size_t least) {
  const auto right = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '~' || c == '-';
  };
  if (least <= id.size() && id.size() <= limits::kIdCharacters &&
      std::all_of(id.begin(), id.end(), right)) {
    return absl::OkStatus();
  }
  return InvalidField(
      field, absl::StrCat(id.size(), " bytes"),
      absl::StrCat(least, " to ", limits::kIdCharacters, " characters of [A-Za-z0-9._~-]"));
}

absl::Status CheckBytes(std::string_view field, std::string_view bytes, std::size_t most) {
  return CheckRange(field, static_cast<std::int64_t>(bytes.size()), 0,
                    static_cast<std::int64_t>(most));
}

absl::Status CheckNames(const SessionConfig& config) {
  absl::Status s = CheckId("id", config.id, 1);
  const auto printable = [](unsigned char c) { return absl::ascii_isprint(c); };
  const std::string& request_id = config.request_id;
  if (request_id.empty() || request_id.size() > limits::kRequestIdBytes ||
      !std::all_of(request_id.begin(), request_id.end(), printable)) {
    s.Update(InvalidField(
        "request_id", absl::StrCat(request_id.size(), " bytes"),
        absl::StrCat("1 to ", limits::kRequestIdBytes, " printable ASCII characters")));
  }
  s.Update(CheckBytes("content_digest", config.content_digest, limits::kModelBytes));
  s.Update(CheckId("tenant", config.tenant, 0));
  s.Update(CheckId("group", config.group, 0));
  s.Update(CheckBytes("model", config.model, limits::kModelBytes));
  s.Update(CheckBytes("model_revision", config.model_revision, limits::kModelBytes));
  s.Update(CheckBytes("rope_digest", config.rope_digest, limits::kModelBytes));
  return s;
}

absl::Status CheckPrefixKeys(const std::vector<PrefixKey>& keys) {
  absl::Status s =
      CheckRange("prefix_keys", static_cast<std::int64_t>(keys.size()), 0, limits::kPrefixKeys);
  std::int64_t before = 0;
  for (const PrefixKey& prefix : keys) {
    s.Update(CheckRange("prefix_keys.length", prefix.length, before + 1, kPositionLimit));
    s.Update(CheckRange("prefix_keys.key", static_cast<std::int64_t>(prefix.key.size()),
                        limits::kMinPrefixKeyBytes, limits::kMaxPrefixKeyBytes));
    if (!s.ok()) return s;
    before = prefix.length;
  }
  return s;
}

absl::Status CheckShape(const LayerSpec& spec) {
  const auto is_width = [](int dim) {
    return std::find(kHeadDims.begin(), kHeadDims.end(), dim) != kHeadDims.end();
  };
  absl::Status s = CheckRange("layer", spec.layer, 0, limits::kMaxLayerId);
  s.Update(CheckRange("kv_heads", spec.kv_heads, 1, limits::kKvHeads));
  for (const int dim : {spec.key_dim, spec.value_dim}) {
    if (is_width(dim)) continue;
    s.Update(InvalidField("key_dim and value_dim", absl::StrCat(dim),
                          absl::StrCat("one of ", absl::StrJoin(kHeadDims, ", "))));
  }
  if (!s.ok()) return s;
  if (spec.query_heads >= 1 && spec.query_heads % spec.kv_heads == 0 &&
      spec.queries_per_kv_head() <= kMaxQueryHeadsPerKvHead) {
    return absl::OkStatus();
  }
  return InvalidField("query_heads", absl::StrCat(spec.query_heads),
                      absl::StrCat("a multiple of kv_heads (", spec.kv_heads, "), 1 to ",
                                   kMaxQueryHeadsPerKvHead, " times it"));
}

// Finite numbers, as many as `expected` or none.
absl::Status CheckNumbers(std::string_view field, const std::vector<float>& numbers, int expected) {
  const auto finite = [](float x) { return std::isfinite(x); };
  if (!numbers.empty() && numbers.size() != static_cast<std::size_t>(expected)) {
    return InvalidField(field, absl::StrCat(numbers.size(), " numbers"),
                        absl::StrCat(expected, ", or none"));
  }
  if (std::all_of(numbers.begin(), numbers.end(), finite)) return absl::OkStatus();
  return InvalidField(field, "a number that is not finite", "finite numbers");
}

absl::Status CheckAttention(const LayerSpec& spec) {
  absl::Status s = CheckRange("sliding_window", spec.sliding_window, 0, kPositionLimit);
  if (!(spec.scale > 0 && spec.scale <= limits::kMaxScale)) {
    s.Update(InvalidField("scale", absl::StrCat(spec.scale),
                          absl::StrCat("more than 0, at most ", limits::kMaxScale)));
  }
  if (!(spec.softcap >= 0) || !std::isfinite(spec.softcap)) {
    s.Update(InvalidField("softcap", absl::StrCat(spec.softcap), "a finite number, not negative"));
  }
  s.Update(CheckNumbers("sink_logits", spec.sink_logits, spec.query_heads));
  return s;
}

absl::Status CheckCodec(const CodecSpec& codec, bool value_folded) {
  absl::Status s = CheckChoice("key_bits", codec.key_bits, {2, 4, 16});
  s.Update(CheckChoice("value_bits", codec.value_bits, {2, 4, 16}));
  s.Update(CheckChoice("key_group", codec.key_group, {kSmallGroup, kPageTokens}));
  s.Update(CheckChoice("value_group", codec.value_group, {0, kSmallGroup}));
  s.Update(CheckRange("window", codec.window, 1, limits::kMaxWindow));
  s.Update(CheckRange("sinks", codec.sinks, 0, limits::kMaxSinks));
  if (value_folded && codec.value_rotation != Rotation::kNone) {
    s.Update(
        InvalidField("value_rotation", "a rotation", "none of values that the worker rotated"));
  }
  return s;
}

absl::Status CheckPlans(const LayerSpec& spec) {
  const bool given = spec.codec.plan == PlanMode::kGiven;
  const std::size_t plans = given ? static_cast<std::size_t>(spec.kv_heads) : 0;
  if (spec.given_plan.size() != plans) {
    return InvalidField("given plans", absl::StrCat(spec.given_plan.size()), absl::StrCat(plans));
  }
  if (!given && !spec.given_directions.empty()) {
    return InvalidField("given directions", absl::StrCat(spec.given_directions.size(), " numbers"),
                        "none where pages choose");
  }
  if (absl::Status s =
          CheckNumbers("given directions", spec.given_directions, spec.kv_heads * spec.key_dim);
      !s.ok() || spec.given_directions.empty()) {
    return s;
  }
  const auto key_dim = static_cast<std::size_t>(spec.key_dim);
  for (std::size_t head = 0; head < static_cast<std::size_t>(spec.kv_heads); ++head) {
    double squares = 0;
    for (std::size_t c = 0; c < key_dim; ++c) {
      const double x = spec.given_directions[head * key_dim + c];
      squares += x * x;
    }
    if (std::abs(squares - 1) < 1e-3) continue;
    return InvalidField("given directions", absl::StrCat("of length ", std::sqrt(squares)),
                        "unit vectors");
  }
  return absl::OkStatus();
}

absl::Status CheckLayer(const LayerSpec& spec, bool value_folded) {
  absl::Status s = CheckShape(spec);
  s.Update(CheckCodec(spec.codec, value_folded));
  if (!s.ok()) return s;
  s.Update(CheckAttention(spec));
  s.Update(CheckPlans(spec));
  return s;
}

}  // namespace

absl::Status CheckSession(const SessionConfig& config) {
  absl::Status s = CheckNames(config);
  s.Update(CheckRange("position_base", config.position_base, 0, kPositionLimit));
  s.Update(CheckRange("rollback_tokens", config.rollback_tokens, 0, kPositionLimit));
  s.Update(CheckPrefixKeys(config.prefix_keys));
  s.Update(CheckRange("layers", static_cast<std::int64_t>(config.layers.size()), 1,
                      static_cast<std::int64_t>(limits::kLayers)));
  if (config.storage != DType::kBF16 && config.storage != DType::kFP16) {
    s.Update(InvalidField("storage", NameOf(config.storage), "bf16 or fp16"));
  }
  if (config.value_folded.size() != config.layers.size()) {
    s.Update(InvalidField("value_folded", absl::StrCat(config.value_folded.size()),
                          absl::StrCat(config.layers.size(), " (layers)")));
  }
  if (!s.ok()) return s;
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerSpec& spec = config.layers[i];
    s.Update(CheckLayer(spec, config.value_folded[i]));
    if (spec.storage != config.storage) {
      s.Update(InvalidField("storage", NameOf(spec.storage), NameOf(config.storage)));
    }
    if (i > 0 && spec.layer <= config.layers[i - 1].layer) {
      s.Update(InvalidField("layer", absl::StrCat(spec.layer), "ids that ascend"));
    }
    if (!s.ok()) return WithFieldPrefix(s, absl::StrCat("layers[", i, "]."));
  }
  return absl::OkStatus();
}

}  // namespace oscarkv
