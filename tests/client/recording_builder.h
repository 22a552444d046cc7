// Builds recordings in memory, good and bad, and files of them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace oscarkv {

// A safetensors file from its two parts.
inline std::string SafeTensorsBytes(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + data;
}

// A file that is gone with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& bytes) {
    static int count = 0;
    path_ = testing::TempDir() + "/oscarkv-" + std::to_string(getpid()) + "-" +
            std::to_string(++count) + ".safetensors";
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A recording whose parts tests then change.
class RecordingBuilder {
 public:
  RecordingBuilder() {
    metadata = {{"format", "oscarkv-recording"},
                {"version", "1"},
                {"model", "Test-1B"},
                {"origin", "made up"},
                {"license", "MIT"}};
    layers = nlohmann::json::array();
  }

  // Bytes of 1 (keys), 2 (values) and 3 (queries); F16, F16, F32.
  RecordingBuilder& AddLayer(int layer, int tokens, int kv_heads, int query_heads, int key_dim,
                             int value_dim) {
    AddLayerWithoutQueries(layer, tokens, kv_heads, query_heads, key_dim, value_dim);
    layers.back().erase("query_heads");
    return AddTensor("layers." + std::to_string(layer) + ".query", "F32",
                     {tokens, query_heads, key_dim},
                     std::string(4 * tokens * query_heads * key_dim, '\3'));
  }
  RecordingBuilder& AddLayerWithoutQueries(int layer, int tokens, int kv_heads, int query_heads,
                                           int key_dim, int value_dim) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    AddTensor(prefix + "key", "F16", {tokens, kv_heads, key_dim},
              std::string(2 * tokens * kv_heads * key_dim, '\1'));
    AddTensor(prefix + "value", "F16", {tokens, kv_heads, value_dim},
              std::string(2 * tokens * kv_heads * value_dim, '\2'));
    layers.push_back({{"layer", layer},
                      {"scale", 0.125},
                      {"sliding_window", nullptr},
                      {"softcap", nullptr},
                      {"query_heads", query_heads}});
    return *this;
  }

  RecordingBuilder& AddTensor(const std::string& name, const std::string& dtype,
                              const std::vector<std::int64_t>& shape, const std::string& bytes) {
    tensors[name] = {{"dtype", dtype},
                     {"shape", shape},
                     {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
    return *this;
  }

  std::string Header() const {
    nlohmann::json header = tensors;
    header["__metadata__"] = metadata;
    if (!layers.is_null()) header["__metadata__"]["layers"] = layers.dump();
    return header.dump();
  }
  std::string Bytes() const { return SafeTensorsBytes(Header(), data); }

  nlohmann::json tensors = nlohmann::json::object();
  nlohmann::json metadata;
  nlohmann::json layers;  // null: no such metadata
  std::string data;
};

}  // namespace oscarkv
