#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/cli/commands.h"
#include "client/cli/session_file.h"
#include "client/cli/table.h"
#include "kernels/api/layer_spec.h"
#include "kernels/api/profiles.h"

namespace oscarkv {
namespace {

using OrderedJson = nlohmann::ordered_json;

// What a layer has in a file, and what of the file it takes.
struct LayerInFile {
  const LayerSpec& spec;
  const FileLayer& layer;
  bool value_folded = false;
  std::uint64_t written_bytes = 0;  // of all its records up to the last commit

  std::uint64_t dead_bytes() const { return written_bytes - layer.live_bytes(); }
  std::int64_t kept_from() const {
    return layer.released_to() > spec.codec.sinks ? layer.released_to() : 0;
  }
  std::int64_t sink_tokens() const { return layer.sinks() ? layer.sinks()->tokens : 0; }
  std::int64_t sealed_tokens() const {
    std::int64_t tokens = 0;
    for (const FilePiece& page : layer.pages()) tokens += page.tokens;
    return tokens;
  }
  std::int64_t blind_pages() const {
    return std::count_if(layer.pages().begin(), layer.pages().end(),
                         [](const FilePiece& page) { return page.blind; });
  }
  // Of whole pages; 0: nothing is sealed.
  double bits_per_value() const {
    if (layer.pages().empty()) return 0;
    const std::int64_t values =
        std::int64_t{kPageTokens} * spec.kv_heads * (spec.key_dim + spec.value_dim);
    return 8.0 * layer.pages().front().place.bytes / static_cast<double>(values);
  }
};

// Bytes of each layer's records up to the last commit, with headers and padding.
absl::StatusOr<std::vector<std::uint64_t>> WrittenBytes(const SessionFile& file) {
  const SessionFileState& state = file.contents.state;
  std::vector<std::uint64_t> written(state.layers().size());
  std::array<std::byte, sizeof(RecordHeader)> bytes;
  for (std::uint64_t at = sizeof(FileStart); at < state.committed_end();) {
    if (absl::Status s = file.file->ReadAt(at, bytes); !s.ok()) return s;
    const auto header = ParseRecordHeader(bytes);
    if (!header || (at > sizeof(FileStart) && !state.Check(*header).ok())) {
      return absl::AbortedError(absl::StrCat(file.file->path(), " changed while it was read"));
    }
    const std::uint64_t record = sizeof(RecordHeader) + PaddedBytes(header->payload_bytes);
    if (RecordType::kSession < header->type && header->type < RecordType::kCommit) {
      written[header->layer] += record;
    }
    at += record;
  }
  return written;
}

absl::StatusOr<std::vector<LayerInFile>> LayersOf(const SessionFile& file) {
  const auto written = WrittenBytes(file);
  if (!written.ok()) return written.status();
  const SessionFileState& state = file.contents.state;
  std::vector<LayerInFile> layers;
  for (std::size_t i = 0; i < state.layers().size(); ++i) {
    layers.push_back({.spec = state.config().layers[i],
                      .layer = state.layers()[i],
                      .value_folded = state.config().value_folded[i],
                      .written_bytes = (*written)[i]});
  }
  return layers;
}

// The profile whose settings these are, if any.
std::optional<Profile> ProfileOf(const LayerSpec& spec) {
  for (const Profile profile :
       {Profile::kDense, Profile::kPrecise, Profile::kPaper, Profile::kKivi}) {
    const ProfileSettings settings = SettingsOf(profile);
    const bool planned = std::all_of(spec.given_plan.begin(), spec.given_plan.end(),
                                     [&](const HeadPlan& plan) { return plan == settings.plan; });
    if (spec.codec == settings.codec && planned && spec.given_directions.empty()) return profile;
  }
  return std::nullopt;
}

const char* RotationName(const LayerInFile& layer) {
  if (layer.value_folded) return "folded";
  return layer.spec.codec.value_rotation == Rotation::kHadamard ? "hadamard" : "none";
}

const char* ScalingName(Scaling scaling) {
  switch (scaling) {
    case Scaling::kNone:
      return "none";
    case Scaling::kJoint:
      return "joint";
    case Scaling::kPerHead:
      return "per_head";
  }
  return "unknown";
}

OrderedJson CodecJson(const LayerInFile& layer) {
  const CodecSpec& codec = layer.spec.codec;
  const auto profile = ProfileOf(layer.spec);
  OrderedJson json;
  json["profile"] = profile ? OrderedJson(NameOf(*profile)) : OrderedJson(nullptr);
  json["key_bits"] = codec.key_bits;
  json["value_bits"] = codec.value_bits;
  json["key_group"] = codec.key_group;
  json["value_group"] = layer.spec.value_group_channels();
  json["value_fit"] = codec.value_fit == Fit::kVariance ? "variance" : "minmax";
  json["scaling"] = ScalingName(codec.scaling);
  json["plan"] = codec.plan == PlanMode::kAuto ? "auto" : "given";
  json["residual"] = codec.residual;
  json["value_rotation"] = RotationName(layer);
  json["window"] = codec.window;
  json["sinks"] = codec.sinks;
  return json;
}

OrderedJson ToJson(const LayerInFile& layer) {
  const LayerSpec& spec = layer.spec;
  return {{"layer", spec.layer},
          {"query_heads", spec.query_heads},
          {"kv_heads", spec.kv_heads},
          {"key_dim", spec.key_dim},
          {"value_dim", spec.value_dim},
          {"scale", spec.scale},
          {"softcap", spec.softcap},
          {"sliding_window", spec.sliding_window},
          {"sink_logits", spec.sink_logits},
          {"codec", CodecJson(layer)},
          {"length", layer.layer.length()},
          {"kept_from", layer.kept_from()},
          {"sink_tokens", layer.sink_tokens()},
          {"sealed_tokens", layer.sealed_tokens()},
          {"pages", layer.layer.pages().size()},
          {"pages_sealed_without_queries", layer.blind_pages()},
          {"window_blocks", layer.layer.blocks().size()},
          {"window_tokens", layer.layer.length() - layer.layer.window_begin()},
          {"queries", layer.layer.queries().size()},
          {"bits_per_value", layer.bits_per_value()},
          {"live_bytes", layer.layer.live_bytes()},
          {"dead_bytes", layer.dead_bytes()}};
}

std::string FormatFullTime(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E*SZ", time, absl::UTCTimeZone());
}

// Of the prefix keys that count: truncating has made longer ones void.
std::vector<std::int64_t> PrefixLengths(const SessionFileState& state) {
  std::vector<std::int64_t> lengths;
  for (const PrefixKey& prefix : state.config().prefix_keys) {
    if (prefix.length <= state.last_commit()->prefix_limit) lengths.push_back(prefix.length);
  }
  return lengths;
}

// Null: it never expires.
OrderedJson TtlSeconds(const Retention& retention) {
  if (retention.ttl == absl::InfiniteDuration()) return nullptr;
  return absl::ToDoubleSeconds(retention.ttl);
}

void PrintJson(const CommandContext& context, const std::string& path, const SessionFile& file,
               const std::vector<LayerInFile>& layers) {
  const SessionFileState& state = file.contents.state;
  const SessionConfig& config = state.config();
  const Retention& retention = state.last_commit()->retention;
  OrderedJson json = {{"file", path},
                      {"version", kSessionFileVersion},
                      {"id", config.id},
                      {"tenant", config.tenant},
                      {"group", config.group},
                      {"model", config.model},
                      {"model_revision", config.model_revision},
                      {"rope_digest", config.rope_digest},
                      {"storage_dtype", NameOf(config.storage)},
                      {"position_base", config.position_base},
                      {"rollback_tokens", config.rollback_tokens},
                      {"prefix_lengths", PrefixLengths(state)},
                      {"priority", retention.priority},
                      {"pinned", retention.pinned},
                      {"ttl_seconds", TtlSeconds(retention)},
                      {"create_time", FormatFullTime(state.fields().create_time)},
                      {"generation", state.last_commit()->generation},
                      {"commit_time", FormatFullTime(state.last_commit()->time)},
                      {"commits", state.commits()},
                      {"committed_length", CommittedLength(state)},
                      {"bytes", file.bytes},
                      {"tail_bytes", file.contents.tail_bytes}};
  const auto damage = TailDamage(file.contents);
  json["tail_damage"] = damage ? OrderedJson(*damage) : OrderedJson(nullptr);
  json["layers"] = OrderedJson::array();
  for (const LayerInFile& layer : layers) json["layers"].push_back(ToJson(layer));
  context.out << json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
}

// Texts of a file that came from anywhere, for a terminal.
std::string Shown(const std::string& text) {
  return text.empty() ? "-" : absl::Utf8SafeCHexEscape(text);
}

std::string DescribeRetention(const Retention& retention) {
  const std::string ttl = retention.ttl == absl::InfiniteDuration()
                              ? "never expires"
                              : absl::StrCat("expires after ", absl::FormatDuration(retention.ttl));
  return absl::StrCat("priority ", retention.priority, ", ", retention.pinned ? "pinned, " : "",
                      ttl);
}

void PrintText(const CommandContext& context, const SessionFile& file,
               const std::vector<LayerInFile>& layers) {
  const SessionFileState& state = file.contents.state;
  const SessionConfig& config = state.config();
  const std::string tail = DescribeTail(file.contents);
  const std::vector<std::int64_t> prefixes = PrefixLengths(state);
  PrintFields(context.out,
              {{"session", config.id},
               {"generation", absl::StrCat(state.last_commit()->generation)},
               {"tokens", absl::StrCat(CommittedLength(state))},
               {"model", Shown(config.model)},
               {"model revision", Shown(config.model_revision)},
               {"tenant", Shown(config.tenant)},
               {"group", Shown(config.group)},
               {"16-bit type", NameOf(config.storage)},
               {"position base", absl::StrCat(config.position_base)},
               {"rollback tokens", absl::StrCat(config.rollback_tokens)},
               {"prefix keys",
                prefixes.empty() ? "-" : absl::StrCat(absl::StrJoin(prefixes, ", "), " tokens")},
               {"retention", DescribeRetention(state.last_commit()->retention)},
               {"created", FormatFullTime(state.fields().create_time)},
               {"committed", FormatFullTime(state.last_commit()->time)},
               {"commits", absl::StrCat(state.commits())},
               {"file", FormatBytes(static_cast<std::int64_t>(file.bytes))},
               {"behind", tail.empty() ? "nothing" : tail}});
  context.out << "\n";
  Table table({"layer", "heads", "dims", "codec", "tokens", "kept from", "sealed", "pages",
               "blocks", "queries", "bits/value", "live", "dead"});
  for (const LayerInFile& in_file : layers) {
    const LayerSpec& spec = in_file.spec;
    const auto profile = ProfileOf(spec);
    table.AddRow({absl::StrCat(spec.layer), absl::StrCat(spec.query_heads, "/", spec.kv_heads),
                  absl::StrCat(spec.key_dim, "/", spec.value_dim),
                  profile ? NameOf(*profile)
                          : absl::StrCat(spec.codec.key_bits, "/", spec.codec.value_bits, " bits"),
                  absl::StrCat(in_file.layer.length()), absl::StrCat(in_file.kept_from()),
                  absl::StrCat(in_file.sealed_tokens()), absl::StrCat(in_file.layer.pages().size()),
                  absl::StrCat(in_file.layer.blocks().size()),
                  absl::StrCat(in_file.layer.queries().size()),
                  absl::StrFormat("%.2f", in_file.bits_per_value()),
                  FormatBytes(static_cast<std::int64_t>(in_file.layer.live_bytes())),
                  FormatBytes(static_cast<std::int64_t>(in_file.dead_bytes()))});
  }
  table.Print(context.out);
}

absl::Status RunInspect(const CommandContext& context, const std::string& path) {
  const auto file = ReadSessionFileIndex(path);
  if (!file.ok()) return file.status();
  const auto layers = LayersOf(*file);
  if (!layers.ok()) return layers.status();
  context.json ? PrintJson(context, path, *file, *layers) : PrintText(context, *file, *layers);
  return absl::OkStatus();
}

}  // namespace

void AddSessionInspectCommand(CLI::App& group, CommandContext& context) {
  CLI::App& command =
      *group.add_subcommand("inspect", "Show what a session file holds, without reading payloads");
  AddJsonFlag(command, context);
  const auto* file = command.add_option("file", "Session file")->type_name("FILE")->required();
  command.callback([&context, file] {
    context.run = [&context, path = file->as<std::string>()] { return RunInspect(context, path); };
  });
}

}  // namespace oscarkv
