#include "client/recording/recording.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/recording/recording_format.h"

namespace oscarkv {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxLayerId = 65535;
constexpr std::int64_t kMaxHeads = 1 << 16;
constexpr std::int64_t kMaxDim = 1 << 16;
constexpr std::uint64_t kMaxPosition = std::uint64_t{1} << 48;  // as of the service

template <typename... Parts>
absl::Status Corrupt(const Parts&... parts) {
  return absl::DataLossError(absl::StrCat(parts...));
}

std::optional<DType> ToDType(std::string_view name) {
  for (const DType dtype : {DType::kFP16, DType::kBF16, DType::kFP32}) {
    if (name == SafeTensorsName(dtype)) return dtype;
  }
  return std::nullopt;
}

absl::StatusOr<RecordedTensor> FindTensor(const SafeTensorsFile& file, int layer,
                                          const char* what) {
  const std::string name = TensorName(layer, what);
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end()) return Corrupt("there is no tensor ", name);
  const SafeTensor& tensor = found->second;
  const auto dtype = ToDType(tensor.dtype);
  if (!dtype.has_value()) return Corrupt(name, " is ", tensor.dtype, "; expected F16, BF16 or F32");
  const bool shaped = tensor.shape.size() == 3 && tensor.shape[0] >= 1 && tensor.shape[1] >= 1 &&
                      tensor.shape[1] <= kMaxHeads && tensor.shape[2] >= 1 &&
                      tensor.shape[2] <= kMaxDim;
  if (!shaped) return Corrupt(name, " does not have the shape [tokens, heads, dim]");
  return RecordedTensor{.dtype = *dtype,
                        .tokens = tensor.shape[0],
                        .heads = static_cast<int>(tensor.shape[1]),
                        .dim = static_cast<int>(tensor.shape[2]),
                        .bytes = tensor.bytes};
}

absl::Status CheckShapes(const RecordedLayer& layer) {
  const RecordedTensor& key = layer.key;
  const RecordedTensor& value = layer.value;
  const RecordedTensor& query = layer.query;
  if (value.tokens != key.tokens || (layer.has_queries() && query.tokens != key.tokens)) {
    return Corrupt("layer ", layer.layer, " has ", key.tokens, " keys, ", value.tokens,
                   " values and ", query.tokens, " queries");
  }
  if (value.heads != key.heads) {
    return Corrupt("keys and values of layer ", layer.layer, " differ in heads");
  }
  if (query.heads % key.heads != 0) {
    return Corrupt("layer ", layer.layer, " has ", query.heads, " query heads for ", key.heads,
                   " kv heads");
  }
  if (query.dim != key.dim) {
    return Corrupt("queries and keys of layer ", layer.layer, " differ in width");
  }
  return absl::OkStatus();
}

// The layer's keys, values and queries; without queries, what their shape would be.
// `query_heads`: as the metadata says; 0: it does not.
absl::Status ReadTensors(const SafeTensorsFile& file, int query_heads, RecordedLayer& layer) {
  const bool queries = file.tensors().contains(TensorName(layer.layer, "query"));
  for (const auto& [what, field] : {std::pair{"key", &layer.key}, std::pair{"value", &layer.value},
                                    std::pair{"query", &layer.query}}) {
    if (field == &layer.query && !queries && query_heads > 0) continue;
    auto tensor = FindTensor(file, layer.layer, what);
    if (!tensor.ok()) return tensor.status();
    *field = *tensor;
  }
  if (!queries) {
    layer.query.heads = query_heads;
    layer.query.dim = layer.key.dim;
  } else if (query_heads > 0 && query_heads != layer.query.heads) {
    return Corrupt("layer ", layer.layer, " has ", layer.query.heads, " query heads and says ",
                   query_heads);
  }
  return CheckShapes(layer);
}

absl::Status ReadSinkLogits(const SafeTensorsFile& file, RecordedLayer& layer) {
  const std::string name = TensorName(layer.layer, "sink_logits");
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end()) return absl::OkStatus();
  const SafeTensor& tensor = found->second;
  const auto dtype = ToDType(tensor.dtype);
  if (!dtype.has_value() || tensor.shape != std::vector<std::int64_t>{layer.query.heads}) {
    return Corrupt(name, " does not have one F16, BF16 or F32 number for each query head");
  }
  layer.sink_logits.resize(static_cast<std::size_t>(layer.query.heads));
  ToFloats(*dtype, tensor.bytes.data(), layer.sink_logits.size(), layer.sink_logits.data());
  const bool finite = std::all_of(layer.sink_logits.begin(), layer.sink_logits.end(),
                                  [](float x) { return std::isfinite(x); });
  return finite ? absl::OkStatus() : Corrupt(name, " is not finite");
}

// One entry of the metadata's `layers`.
struct ListedLayer {
  RecordedLayer layer;  // without tensors
  int query_heads = 0;  // 0: not said
};

absl::StatusOr<ListedLayer> ParseLayer(const Json& json) {
  const auto is_id = [](const Json& id) {
    return id.is_number_unsigned() && id.get<std::uint64_t>() <= kMaxLayerId;
  };
  if (!json.is_object() || !json.contains("layer") || !is_id(json["layer"])) {
    return Corrupt("metadata `layers`: an entry has no `layer` from 0 to ", kMaxLayerId);
  }
  ListedLayer listed;
  RecordedLayer& layer = listed.layer;
  layer.layer = json["layer"].get<int>();
  const std::string where = absl::StrCat("metadata `layers`: layer ", layer.layer);
  for (const auto& [key, value] : json.items()) {
    if (key != "layer" && key != "scale" && key != "sliding_window" && key != "softcap" &&
        key != "begin" && key != "query_heads") {
      return Corrupt(where, " has an unknown field");
    }
  }
  // Both are fp32 in the service.
  const auto is_positive = [](const Json& x) {
    return x.is_number() && x.get<double>() > 0 &&
           x.get<double>() <= std::numeric_limits<float>::max();
  };
  const auto is_count = [](const Json& x, std::uint64_t low, std::uint64_t high) {
    return x.is_number_unsigned() && low <= x.get<std::uint64_t>() &&
           x.get<std::uint64_t>() <= high;
  };
  if (!json.contains("scale") || !is_positive(json["scale"])) {
    return Corrupt(where, " has no positive `scale`");
  }
  layer.scale = json["scale"].get<double>();
  if (json.contains("sliding_window") && !json["sliding_window"].is_null()) {
    const Json& window = json["sliding_window"];
    if (!is_count(window, 1, kMaxPosition)) {
      return Corrupt(where, ": `sliding_window` is neither null nor a number of tokens");
    }
    layer.sliding_window = window.get<std::int64_t>();
  }
  if (json.contains("softcap") && !json["softcap"].is_null()) {
    if (!is_positive(json["softcap"])) {
      return Corrupt(where, ": `softcap` is neither null nor positive");
    }
    layer.softcap = json["softcap"].get<double>();
  }
  if (json.contains("begin")) {
    if (!is_count(json["begin"], 0, kMaxPosition)) {
      return Corrupt(where, ": `begin` is not a position");
    }
    layer.begin = json["begin"].get<std::int64_t>();
  }
  if (json.contains("query_heads")) {
    if (!is_count(json["query_heads"], 1, kMaxHeads)) {
      return Corrupt(where, ": `query_heads` is not a number of heads");
    }
    listed.query_heads = json["query_heads"].get<int>();
  }
  return listed;
}

absl::StatusOr<std::vector<ListedLayer>> ParseLayers(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array() || json.empty()) return Corrupt("metadata `layers` is not a list of layers");
  std::vector<ListedLayer> layers;
  std::set<int> ids;
  for (const Json& entry : json) {
    auto layer = ParseLayer(entry);
    if (!layer.ok()) return layer.status();
    if (!ids.insert(layer->layer.layer).second) {
      return Corrupt("metadata `layers` has layer ", layer->layer.layer, " twice");
    }
    layers.push_back(*std::move(layer));
  }
  std::sort(layers.begin(), layers.end(), [](const ListedLayer& a, const ListedLayer& b) {
    return a.layer.layer < b.layer.layer;
  });
  return layers;
}

}  // namespace

absl::StatusOr<Recording> Recording::Open(const std::string& path) {
  auto file = SafeTensorsFile::Open(path);
  if (!file.ok()) return file.status();
  Recording recording(*std::move(file));
  if (absl::Status status = recording.Parse(); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  }
  return recording;
}

absl::Status Recording::Parse() {
  const auto text = [this](std::string_view key) -> std::string {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? "" : found->second;
  };
  if (text("format") != kRecordingFormat) {
    return Corrupt("not a recording: metadata `format` is not ", kRecordingFormat);
  }
  if (text("version") != kRecordingVersion) {
    return absl::UnimplementedError(
        absl::StrCat("not a recording of version ", kRecordingVersion, ", the only one known"));
  }
  model_ = text("model");
  origin_ = text("origin");
  license_ = text("license");
  if (model_.empty()) return Corrupt("metadata `model` is missing");
  auto layers = ParseLayers(text("layers"));
  if (!layers.ok()) return layers.status();

  std::size_t used = 0;
  for (ListedLayer& listed : *layers) {
    RecordedLayer& layer = layers_.emplace_back(std::move(listed.layer));
    absl::Status status = ReadTensors(file_, listed.query_heads, layer);
    if (!status.ok()) return status;
    if (status = ReadSinkLogits(file_, layer); !status.ok()) return status;
    used += 2 + (layer.has_queries() ? 1 : 0) + (layer.sink_logits.empty() ? 0 : 1);
  }
  if (used != file_.tensors().size()) return Corrupt("there are tensors of no listed layer");
  return absl::OkStatus();
}

}  // namespace oscarkv
