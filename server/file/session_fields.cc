#include "server/file/session_fields.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/api/page_layout.h"
#include "server/base/crc32c.h"
#include "server/base/string_view.h"
#include "server/file/byte_codec.h"
#include "server/file/record.h"

namespace oscarkv {
namespace {

// The session record's payload begins after the file's first bytes and its own header.
constexpr std::uint64_t kPayloadOffset = sizeof(FileStart) + sizeof(RecordHeader);

// What a layer in the file says beside its LayerSpec.
struct LayerExtras {
  bool value_folded = false;
  std::uint64_t page_bytes = 0;
};

std::uint64_t PageBytes(const LayerSpec& spec) {
  return static_cast<std::uint64_t>(PageLayout(spec).bytes);
}

void PutCodec(const CodecSpec& codec, ByteWriter& out) {
  out.Put(static_cast<std::uint8_t>(codec.key_bits));
  out.Put(static_cast<std::uint8_t>(codec.value_bits));
  out.Put(static_cast<std::uint8_t>(codec.key_group));
  out.Put(static_cast<std::uint8_t>(codec.value_group));
  out.Put(static_cast<std::uint8_t>(codec.value_fit));
  out.Put(static_cast<std::uint8_t>(codec.scaling));
  out.Put(static_cast<std::uint8_t>(codec.plan));
  out.Put(static_cast<std::uint8_t>(codec.residual));
  out.Put(static_cast<std::uint8_t>(codec.value_rotation));
  out.Put(static_cast<std::uint8_t>(codec.sinks));
  out.Put(static_cast<std::uint16_t>(codec.window));
}

// An enumerator or a bool of the file; beyond `last` it is remembered as wrong.
template <typename Enum>
Enum TakeEnum(ByteReader& in, Enum last, bool& right) {
  const auto number = in.Take<std::uint8_t>();
  right = right && number <= static_cast<std::uint8_t>(last);
  return static_cast<Enum>(right ? number : 0);
}

CodecSpec TakeCodec(ByteReader& in, bool& right) {
  CodecSpec codec;
  codec.key_bits = in.Take<std::uint8_t>();
  codec.value_bits = in.Take<std::uint8_t>();
  codec.key_group = in.Take<std::uint8_t>();
  codec.value_group = in.Take<std::uint8_t>();
  codec.value_fit = TakeEnum(in, Fit::kMinMax, right);
  codec.scaling = TakeEnum(in, Scaling::kPerHead, right);
  codec.plan = TakeEnum(in, PlanMode::kGiven, right);
  codec.residual = TakeEnum(in, true, right);
  codec.value_rotation = TakeEnum(in, Rotation::kNone, right);
  codec.sinks = in.Take<std::uint8_t>();
  codec.window = in.Take<std::uint16_t>();
  return codec;
}

void PutLayer(const LayerSpec& spec, bool value_folded, ByteWriter& out) {
  out.Put(static_cast<std::uint16_t>(spec.layer));
  out.Put(static_cast<std::uint16_t>(spec.query_heads));
  out.Put(static_cast<std::uint16_t>(spec.kv_heads));
  out.Put(static_cast<std::uint16_t>(spec.key_dim));
  out.Put(static_cast<std::uint16_t>(spec.value_dim));
  out.Put(static_cast<std::uint16_t>(value_folded));
  PutCodec(spec.codec, out);
  out.Put(spec.scale);
  out.Put(spec.softcap);
  out.Put(spec.sliding_window);
  out.Put(PageBytes(spec));
  out.Put(static_cast<std::uint32_t>(spec.given_plan.size()));
  for (const HeadPlan& plan : spec.given_plan) {
    out.Put(static_cast<std::uint8_t>(plan.rotation));
    out.Put(static_cast<std::uint8_t>(plan.fit));
  }
  out.PutFloats(spec.given_directions);
  out.PutFloats(spec.sink_logits);
}

LayerSpec TakeLayer(ByteReader& in, LayerExtras& extras, bool& right) {
  LayerSpec spec;
  spec.layer = in.Take<std::uint16_t>();
  spec.query_heads = in.Take<std::uint16_t>();
  spec.kv_heads = in.Take<std::uint16_t>();
  spec.key_dim = in.Take<std::uint16_t>();
  spec.value_dim = in.Take<std::uint16_t>();
  const auto folded = in.Take<std::uint16_t>();
  right = right && folded <= 1;
  extras.value_folded = folded == 1;
  spec.codec = TakeCodec(in, right);
  spec.scale = in.Take<float>();
  spec.softcap = in.Take<float>();
  spec.sliding_window = in.Take<std::int64_t>();
  extras.page_bytes = in.Take<std::uint64_t>();
  for (auto plans = in.Take<std::uint32_t>(); plans > 0 && !in.short_of_bytes(); --plans) {
    const Rotation rotation = TakeEnum(in, Rotation::kNone, right);
    spec.given_plan.push_back({rotation, TakeEnum(in, Fit::kMinMax, right)});
  }
  spec.given_directions = in.TakeFloats();
  spec.sink_logits = in.TakeFloats();
  return spec;
}

absl::Status Damaged(std::string_view found, std::string_view expected) {
  return FileDamaged(kPayloadOffset, absl::StrCat("session record: ", ToAbsl(found)), expected);
}

absl::Status CheckPageBytes(const SessionConfig& config, const std::vector<LayerExtras>& extras) {
  for (std::size_t i = 0; i < extras.size(); ++i) {
    if (extras[i].page_bytes == PageBytes(config.layers[i])) continue;
    return FileUnsupported(absl::StrCat("page size of layer ", config.layers[i].layer),
                           absl::StrCat(extras[i].page_bytes, " bytes"),
                           absl::StrCat(PageBytes(config.layers[i])));
  }
  return absl::OkStatus();
}

}  // namespace

std::uint32_t DirectionsCrc(const SessionConfig& config) {
  std::uint32_t crc = 0;
  for (const LayerSpec& spec : config.layers) {
    crc = Crc32c(spec.given_directions.data(), spec.given_directions.size() * sizeof(float), crc);
  }
  return crc;
}

std::vector<std::byte> EncodeSession(const SessionFields& fields) {
  const SessionConfig& config = fields.config;
  ByteWriter out;
  out.Put(config.position_base);
  out.Put(config.rollback_tokens);
  out.Put(absl::ToUnixNanos(fields.create_time));
  out.Put(DirectionsCrc(config));
  out.Put(static_cast<std::uint16_t>(config.storage));
  out.Put(static_cast<std::uint16_t>(config.layers.size()));
  for (const std::string* name :
       {&config.id, &config.request_id, &config.content_digest, &config.tenant, &config.group,
        &config.model, &config.model_revision, &config.rope_digest}) {
    out.PutString(*name);
  }
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    PutLayer(config.layers[i], config.value_folded[i], out);
  }
  out.Put(static_cast<std::uint16_t>(config.prefix_keys.size()));
  for (const PrefixKey& prefix : config.prefix_keys) {
    out.Put(prefix.length);
    out.PutString(prefix.key);
  }
  return std::move(out.bytes());
}

absl::StatusOr<SessionFields> DecodeSession(std::span<const std::byte> payload) {
  ByteReader in(payload);
  SessionFields fields;
  SessionConfig& config = fields.config;
  config.position_base = in.Take<std::int64_t>();
  config.rollback_tokens = in.Take<std::int64_t>();
  fields.create_time = absl::FromUnixNanos(in.Take<std::int64_t>());
  const auto directions_crc = in.Take<std::uint32_t>();
  const auto storage = in.Take<std::uint16_t>();
  const auto layers = in.Take<std::uint16_t>();
  for (std::string* name :
       {&config.id, &config.request_id, &config.content_digest, &config.tenant, &config.group,
        &config.model, &config.model_revision, &config.rope_digest}) {
    *name = in.TakeString();
  }
  bool right = storage <= static_cast<std::uint16_t>(DType::kFP16);
  config.storage = storage == 0 ? DType::kBF16 : DType::kFP16;
  std::vector<LayerExtras> extras;
  while (extras.size() < layers && !in.short_of_bytes()) {
    LayerSpec spec = TakeLayer(in, extras.emplace_back(), right);
    spec.storage = config.storage;
    config.layers.push_back(std::move(spec));
    config.value_folded.push_back(extras.back().value_folded);
  }
  for (auto keys = in.Take<std::uint16_t>(); keys > 0 && !in.short_of_bytes(); --keys) {
    const auto length = in.Take<std::int64_t>();
    config.prefix_keys.push_back({.length = length, .key = in.TakeString()});
  }
  if (!in.complete()) return Damaged("its fields do not fill it", "fields that do");
  if (!right) return Damaged("an unknown number for a choice", "one of this version");
  if (const absl::Status s = CheckSession(config); !s.ok()) {
    return Damaged(ToStd(s.message()), "what CreateSession accepts");
  }
  if (directions_crc != DirectionsCrc(config)) {
    return Damaged(absl::StrCat("checksum ", absl::Hex(directions_crc), " of directions"),
                   absl::StrCat(absl::Hex(DirectionsCrc(config))));
  }
  if (const absl::Status s = CheckPageBytes(config, extras); !s.ok()) return s;
  return fields;
}

}  // namespace oscarkv
