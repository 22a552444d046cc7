#include "server/rpc/decode_session.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/error.h"
#include "server/rpc/codec_messages.h"
#include "server/rpc/fields.h"
#include "server/rpc/limits.h"
#include "server/rpc/tensors.h"

namespace oscarkv {
namespace {

struct DecodedLayer {
  LayerSpec spec;
  bool values_folded = false;
};

absl::Status CheckHeadDim(std::string_view field, int dim) {
  if (std::find(kHeadDims.begin(), kHeadDims.end(), dim) != kHeadDims.end())
    return absl::OkStatus();
  return InvalidField(field, absl::StrCat(dim),
                      absl::StrCat("one of ", absl::StrJoin(kHeadDims, ", ")));
}

absl::Status DecodeHeads(std::string_view field, const v1::LayerSpec& layer, LayerSpec& spec) {
  spec.layer = layer.layer();
  spec.query_heads = layer.query_heads();
  spec.kv_heads = layer.kv_heads();
  spec.key_dim = layer.key_dim();
  spec.value_dim = layer.value_dim() == 0 ? layer.key_dim() : layer.value_dim();
  absl::Status s = CheckRange(Joined(field, "layer"), spec.layer, 0, limits::kMaxLayerId);
  s.Update(CheckRange(Joined(field, "kv_heads"), spec.kv_heads, 1, limits::kKvHeads));
  s.Update(CheckHeadDim(Joined(field, "key_dim"), spec.key_dim));
  s.Update(CheckHeadDim(Joined(field, "value_dim"), spec.value_dim));
  if (!s.ok()) return s;
  if (spec.query_heads < 1 || spec.query_heads % spec.kv_heads != 0 ||
      spec.query_heads / spec.kv_heads > kMaxQueryHeadsPerKvHead) {
    return InvalidField(Joined(field, "query_heads"), absl::StrCat(spec.query_heads),
                        absl::StrCat("a multiple of kv_heads (", spec.kv_heads, "), 1 to ",
                                     kMaxQueryHeadsPerKvHead, " times it"));
  }
  return absl::OkStatus();
}

absl::Status DecodeAttention(std::string_view field, const v1::LayerSpec& layer, LayerSpec& spec) {
  absl::Status s = CheckNotNegative(Joined(field, "scale"), layer.scale());
  if (s.ok() && layer.scale() > limits::kMaxScale) {
    s = InvalidField(Joined(field, "scale"), absl::StrCat(layer.scale()),
                     absl::StrCat("at most ", limits::kMaxScale));
  }
  s.Update(CheckNotNegative(Joined(field, "softcap"), layer.softcap()));
  s.Update(CheckRange(Joined(field, "sliding_window"), layer.sliding_window(), 0, kPositionLimit));
  if (!s.ok()) return s;
  spec.scale = layer.scale() != 0
                   ? layer.scale()
                   : static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.key_dim)));
  spec.softcap = layer.softcap();
  spec.sliding_window = layer.sliding_window();
  spec.sink_logits.assign(layer.sink_logits().begin(), layer.sink_logits().end());
  const std::string path = Joined(field, "sink_logits");
  if (!spec.sink_logits.empty() &&
      spec.sink_logits.size() != static_cast<std::size_t>(spec.query_heads)) {
    return InvalidField(path, absl::StrCat(spec.sink_logits.size(), " values"),
                        absl::StrCat(spec.query_heads, " (query_heads), or none"));
  }
  for (std::size_t i = 0; i < spec.sink_logits.size(); ++i) {
    if (!std::isfinite(spec.sink_logits[i])) {
      return InvalidField(Indexed(path, static_cast<std::int64_t>(i)),
                          absl::StrCat(spec.sink_logits[i]), "a finite number");
    }
  }
  return absl::OkStatus();
}

// Appends the unit vector along `direction` to `directions`.
absl::Status DecodeDirection(std::string_view field,
                             const google::protobuf::RepeatedField<float>& direction, int key_dim,
                             std::vector<float>& directions) {
  if (direction.size() != key_dim) {
    return InvalidField(field, absl::StrCat(direction.size(), " values"),
                        absl::StrCat(key_dim, " (key_dim)"));
  }
  double squares = 0;
  for (const float x : direction) squares += static_cast<double>(x) * static_cast<double>(x);
  const double norm = std::sqrt(squares);
  if (!std::isfinite(norm) || norm == 0) {
    return InvalidField(field, absl::StrCat("a vector of length ", norm),
                        "finite numbers, not all zero");
  }
  for (const float x : direction) {
    directions.push_back(static_cast<float>(static_cast<double>(x) / norm));
  }
  return absl::OkStatus();
}

absl::Status DecodeKeyPlans(std::string_view field, const v1::LayerSpec& layer,
                            const HeadPlan& default_plan, LayerSpec& spec) {
  const std::string path = Joined(field, "key_plans");
  const int plans = layer.key_plans_size();
  if (spec.codec.plan == PlanMode::kAuto) {
    if (plans == 0) return absl::OkStatus();
    return InvalidField(path, absl::StrCat(plans, " plans"), "none, or codec.plan PLAN_MODE_GIVEN");
  }
  if (plans == 0) {
    spec.given_plan.assign(static_cast<std::size_t>(spec.kv_heads), default_plan);
    return absl::OkStatus();
  }
  if (plans != spec.kv_heads) {
    return InvalidField(path, absl::StrCat(plans, " plans"),
                        absl::StrCat(spec.kv_heads, " (kv_heads), or none"));
  }
  const bool directed = layer.key_plans(0).direction_size() > 0;
  for (int i = 0; i < plans; ++i) {
    const v1::KeyPlan& plan = layer.key_plans(i);
    const absl::StatusOr<HeadPlan> decoded = DecodeHeadPlan(Indexed(path, i), plan);
    if (!decoded.ok()) return decoded.status();
    spec.given_plan.push_back(*decoded);
    const std::string direction = Joined(Indexed(path, i), "direction");
    if (directed != (plan.direction_size() > 0)) {
      return InvalidField(direction, absl::StrCat(plan.direction_size(), " values"),
                          "a direction for every kv head, or for none");
    }
    if (!directed) continue;
    if (absl::Status s =
            DecodeDirection(direction, plan.direction(), spec.key_dim, spec.given_directions);
        !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<DecodedLayer> DecodeLayer(std::string_view field, const v1::LayerSpec& layer,
                                         const v1::Codec& session_codec, Profile default_profile,
                                         DType storage) {
  const absl::StatusOr<DecodedCodec> codec = DecodeCodec(
      Joined(field, "codec"), CombinedCodec(session_codec, layer.codec()), default_profile);
  if (!codec.ok()) return codec.status();

  DecodedLayer decoded;
  decoded.spec.codec = codec->spec;
  decoded.spec.storage = storage;
  decoded.values_folded = codec->values_folded;
  if (absl::Status s = DecodeHeads(field, layer, decoded.spec); !s.ok()) return s;
  if (absl::Status s = DecodeAttention(field, layer, decoded.spec); !s.ok()) return s;
  if (absl::Status s = DecodeKeyPlans(field, layer, codec->plan, decoded.spec); !s.ok()) return s;
  return decoded;
}

absl::Status DecodeLayers(const v1::CreateSessionRequest& request, Profile default_profile,
                          SessionConfig& config) {
  if (request.layers().empty() || request.layers_size() > limits::kLayers) {
    return InvalidField("layers", absl::StrCat(request.layers_size(), " layers"),
                        absl::StrCat("1 to ", limits::kLayers));
  }
  // Errors in the session's own codec are told of it, not of its first layer.
  if (absl::Status s = DecodeCodec("codec", request.codec(), default_profile).status(); !s.ok()) {
    return s;
  }
  std::vector<std::pair<DecodedLayer, int>> layers;  // with the index in the request
  for (int i = 0; i < request.layers_size(); ++i) {
    absl::StatusOr<DecodedLayer> layer = DecodeLayer(
        Indexed("layers", i), request.layers(i), request.codec(), default_profile, config.storage);
    if (!layer.ok()) return layer.status();
    layers.emplace_back(*std::move(layer), i);
  }
  std::stable_sort(layers.begin(), layers.end(), [](const auto& a, const auto& b) {
    return a.first.spec.layer < b.first.spec.layer;
  });
  for (auto& [layer, index] : layers) {
    if (!config.layers.empty() && config.layers.back().layer == layer.spec.layer) {
      return InvalidField(Joined(Indexed("layers", index), "layer"), absl::StrCat(layer.spec.layer),
                          "an id that no other layer has");
    }
    config.layers.push_back(std::move(layer.spec));
    config.value_folded.push_back(layer.values_folded);
  }
  return absl::OkStatus();
}

absl::Status CheckRequestId(std::string_view field, std::string_view value) {
  const auto printable = [](unsigned char c) { return absl::ascii_isprint(c); };
  if (!value.empty() && value.size() <= limits::kRequestIdBytes &&
      std::all_of(value.begin(), value.end(), printable)) {
    return absl::OkStatus();
  }
  return InvalidField(
      field, SafeText(value),
      absl::StrCat("1 to ", limits::kRequestIdBytes, " printable ASCII characters"));
}

absl::Status CheckFork(const std::string& field, const v1::Fork& fork) {
  const auto path = [&](std::string_view name) { return Joined(field, name); };
  absl::Status s = CheckId(path("source"), fork.source(), /*required=*/true);
  if (fork.generation() == 0) {
    s.Update(InvalidField(path("generation"), "0", "the source's generation"));
  }
  if (fork.has_length()) {
    s.Update(CheckRange(path("length"), fork.length(), 0, kPositionLimit));
  }
  s.Update(CheckId(path("session"), fork.session(), /*required=*/true));
  s.Update(CheckRequestId(path("request_id"), fork.request_id()));
  return s;
}

absl::Status CheckNames(const v1::CreateSessionRequest& request) {
  absl::Status s = CheckId("session", request.session(), /*required=*/true);
  s.Update(CheckRequestId("request_id", request.request_id()));
  s.Update(CheckId("tenant", request.tenant(), /*required=*/false));
  s.Update(CheckId("group", request.group(), /*required=*/false));
  s.Update(CheckBytes("model", request.model(), limits::kModelBytes));
  s.Update(CheckBytes("model_revision", request.model_revision(), limits::kModelBytes));
  s.Update(CheckBytes("rope_digest", request.rope_digest(), limits::kModelBytes));
  s.Update(CheckRange("position_base", request.position_base(), 0, kPositionLimit));
  s.Update(CheckRange("rollback_tokens", request.rollback_tokens(), 0, kPositionLimit));
  return s;
}

absl::StatusOr<std::vector<PrefixKey>> DecodePrefixKeys(const v1::CreateSessionRequest& request) {
  if (request.prefix_keys_size() > limits::kPrefixKeys) {
    return InvalidField("prefix_keys", absl::StrCat(request.prefix_keys_size(), " keys"),
                        absl::StrCat("0 to ", limits::kPrefixKeys));
  }
  std::vector<PrefixKey> keys;
  for (int i = 0; i < request.prefix_keys_size(); ++i) {
    const v1::PrefixKey& prefix = request.prefix_keys(i);
    const std::string field = Indexed("prefix_keys", i);
    const std::int64_t least = keys.empty() ? 1 : keys.back().length + 1;
    absl::Status s = CheckRange(Joined(field, "length"), prefix.length(), least, kPositionLimit);
    const auto bytes = static_cast<std::int64_t>(prefix.key().size());
    if (bytes < limits::kMinPrefixKeyBytes || bytes > limits::kMaxPrefixKeyBytes) {
      s.Update(InvalidField(
          Joined(field, "key"), absl::StrCat(bytes, " bytes"),
          absl::StrCat(limits::kMinPrefixKeyBytes, " to ", limits::kMaxPrefixKeyBytes)));
    }
    if (!s.ok()) return s;
    keys.push_back({.length = prefix.length(), .key = prefix.key()});
  }
  return keys;
}

// FNV-1a of 128 bits over the request's bytes: enough to tell a repeat from another request, which
// a client would have to make up against itself.
std::string ContentDigest(const v1::CreateSessionRequest& request) {
  using Digest = unsigned __int128;
  constexpr Digest kPrime = (Digest{1} << 88) + 0x13b;
  Digest digest = (Digest{0x6c62272e07bb0142} << 64) + 0x62b821756295c58d;
  for (const unsigned char byte : request.SerializeAsString()) digest = (digest ^ byte) * kPrime;
  return absl::StrCat(absl::Hex(static_cast<std::uint64_t>(digest >> 64), absl::kZeroPad16),
                      absl::Hex(static_cast<std::uint64_t>(digest), absl::kZeroPad16));
}

}  // namespace

absl::StatusOr<SessionConfig> DecodeCreateSession(const v1::CreateSessionRequest& request,
                                                  Profile default_profile) {
  if (absl::Status s = CheckNames(request); !s.ok()) return s;
  SessionConfig config;
  if (request.storage_dtype() != v1::DATA_TYPE_UNSPECIFIED) {
    const absl::StatusOr<DType> storage = DecodeDType("storage_dtype", request.storage_dtype());
    if (!storage.ok() || *storage == DType::kFP32) {
      return InvalidField("storage_dtype", absl::StrCat(static_cast<int>(request.storage_dtype())),
                          "DATA_TYPE_BF16 or DATA_TYPE_FP16");
    }
    config.storage = *storage;
  }
  if (absl::Status s = DecodeLayers(request, default_profile, config); !s.ok()) return s;
  absl::StatusOr<std::vector<PrefixKey>> keys = DecodePrefixKeys(request);
  if (!keys.ok()) return keys.status();
  config.prefix_keys = *std::move(keys);
  config.id = request.session();
  config.request_id = request.request_id();
  config.content_digest = ContentDigest(request);
  config.tenant = request.tenant();
  config.group = request.group();
  config.model = request.model();
  config.model_revision = request.model_revision();
  config.rope_digest = request.rope_digest();
  config.position_base = request.position_base();
  if (request.has_rollback_tokens()) config.rollback_tokens = request.rollback_tokens();
  return config;
}

absl::StatusOr<std::optional<ParentPrefix>> DecodeParent(const v1::CreateSessionRequest& request) {
  if (!request.has_parent()) return std::nullopt;
  const v1::ParentPrefix& parent = request.parent();
  absl::Status s = CheckId("parent.session", parent.session(), /*required=*/true);
  s.Update(CheckRange("parent.length", parent.length(), 0, kPositionLimit));
  if (!s.ok()) return s;
  ParentPrefix decoded{.session = parent.session(), .generation = parent.generation()};
  if (parent.has_length()) decoded.length = parent.length();
  return decoded;
}

absl::StatusOr<std::vector<ForkItem>> DecodeForks(const v1::ForkSessionRequest& request) {
  if (request.forks().empty() || request.forks_size() > limits::kItems) {
    return InvalidField("forks", absl::StrCat(request.forks_size(), " forks"),
                        absl::StrCat("1 to ", limits::kItems));
  }
  std::vector<ForkItem> items;
  for (int i = 0; i < request.forks_size(); ++i) {
    const v1::Fork& fork = request.forks(i);
    if (absl::Status s = CheckFork(Indexed("forks", i), fork); !s.ok()) return s;
    ForkItem& item = items.emplace_back();
    item.source = fork.source();
    item.generation = fork.generation();
    if (fork.has_length()) item.length = fork.length();
    item.session = fork.session();
    item.request_id = fork.request_id();
    item.replace = fork.replace();
  }
  return items;
}

absl::StatusOr<Retention> DecodeRetention(std::string_view field, const v1::Retention& retention) {
  constexpr std::int64_t kMostSeconds = 9'000'000'000;  // in nanoseconds, an int64
  Retention decoded{.priority = retention.priority(), .pinned = retention.pinned()};
  if (!retention.has_ttl()) return decoded;
  const google::protobuf::Duration& ttl = retention.ttl();
  decoded.ttl = absl::Seconds(ttl.seconds()) + absl::Nanoseconds(ttl.nanos());
  const bool canonical = 0 <= ttl.nanos() && ttl.nanos() < 1'000'000'000;
  if (!canonical || decoded.ttl <= absl::ZeroDuration() ||
      decoded.ttl > absl::Seconds(kMostSeconds)) {
    return InvalidField(Joined(field, "ttl"),
                        absl::StrCat(ttl.seconds(), " s, ", ttl.nanos(), " ns"),
                        absl::StrCat("1 ns to ", kMostSeconds, " s"));
  }
  return decoded;
}

absl::StatusOr<ImportOptions> DecodeImportHeader(const v1::ImportSessionHeader& header) {
  absl::Status s = CheckId("header.session", header.session(), /*required=*/false);
  s.Update(CheckRequestId("header.request_id", header.request_id()));
  s.Update(CheckId("header.tenant", header.tenant(), /*required=*/false));
  s.Update(CheckBytes("header.model", header.model(), limits::kModelBytes));
  s.Update(CheckBytes("header.model_revision", header.model_revision(), limits::kModelBytes));
  s.Update(CheckBytes("header.rope_digest", header.rope_digest(), limits::kModelBytes));
  if (!s.ok()) return s;
  ImportOptions options;
  options.session = header.session();
  options.request_id = header.request_id();
  if (header.has_tenant()) options.tenant = header.tenant();
  if (header.has_model()) options.model = header.model();
  if (header.has_model_revision()) options.model_revision = header.model_revision();
  if (header.has_rope_digest()) options.rope_digest = header.rope_digest();
  if (header.has_retention()) {
    const absl::StatusOr<Retention> retention =
        DecodeRetention("header.retention", header.retention());
    if (!retention.ok()) return retention.status();
    options.retention = *retention;
  }
  return options;
}

}  // namespace oscarkv
