#include "client/recording/recording_layout.h"

#include <bit>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "client/recording/recording_format.h"

namespace oscarkv {
namespace {

using Json = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie");

// Of the tensors' part of the file, so that it begins at a multiple of it, as the format asks for.
constexpr std::size_t kAlignment = 8;

Json LayersJson(const std::vector<RecordedLayer>& layers) {
  Json json = Json::array();
  for (const RecordedLayer& layer : layers) {
    Json& entry = json.emplace_back();
    entry["layer"] = layer.layer;
    entry["scale"] = layer.scale;
    entry["sliding_window"] = layer.sliding_window ? Json(*layer.sliding_window) : Json(nullptr);
    entry["softcap"] = layer.softcap ? Json(*layer.softcap) : Json(nullptr);
    entry["begin"] = layer.begin;
    entry["query_heads"] = layer.query.heads;
  }
  return json;
}

// The tensors of a file, one behind the other.
class Tensors {
 public:
  // Returns where it begins among the tensors' bytes.
  std::uint64_t Add(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape) {
    const std::uint64_t begin = bytes_;
    std::uint64_t size = SizeOf(dtype);
    for (const std::int64_t length : shape) size *= static_cast<std::uint64_t>(length);
    bytes_ += size;
    json_[name] = {
        {"dtype", SafeTensorsName(dtype)}, {"shape", shape}, {"data_offsets", {begin, bytes_}}};
    return begin;
  }
  std::uint64_t Add(int layer, const char* what, const RecordedTensor& tensor) {
    return Add(TensorName(layer, what), tensor.dtype, {tensor.tokens, tensor.heads, tensor.dim});
  }

  Json& json() { return json_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  Json json_ = Json::object();
  std::uint64_t bytes_ = 0;
};

// The file up to its tensors.
std::string HeaderBytes(const Json& json) {
  std::string header = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  header.resize((header.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header;
}

}  // namespace

RecordingLayout LayOutRecording(const RecordingOrigin& origin,
                                const std::vector<RecordedLayer>& layers) {
  Tensors tensors;
  std::string sink_logits;
  for (const RecordedLayer& layer : layers) {
    if (layer.sink_logits.empty()) continue;
    tensors.Add(TensorName(layer.layer, "sink_logits"), DType::kFP32, {layer.query.heads});
    sink_logits.append(reinterpret_cast<const char*>(layer.sink_logits.data()),
                       layer.sink_logits.size() * sizeof(float));
  }
  RecordingLayout layout;
  for (const RecordedLayer& layer : layers) {
    layout.layers.push_back({.key = tensors.Add(layer.layer, "key", layer.key),
                             .value = tensors.Add(layer.layer, "value", layer.value)});
  }
  tensors.json()["__metadata__"] = {
      {"format", kRecordingFormat}, {"version", kRecordingVersion},
      {"model", origin.model},      {"origin", origin.origin},
      {"license", origin.license},  {"layers", LayersJson(layers).dump()}};
  layout.start = HeaderBytes(tensors.json());
  for (RecordingLayout::Layer& layer : layout.layers) {
    layer.key += layout.start.size();
    layer.value += layout.start.size();
  }
  layout.bytes = layout.start.size() + tensors.bytes();
  layout.start += sink_logits;
  return layout;
}

}  // namespace oscarkv
