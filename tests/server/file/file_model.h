// A simple model of sessions whose state goes to a file: which token is where, each with a stamp
// from which its bytes follow. It knows nothing of records or places in a file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "server/file/byte_stream.h"
#include "server/file/session_file_reader.h"
#include "server/file/session_file_writer.h"

namespace oscarkv {

using Random = std::mt19937_64;

// A session that CreateSession could have made, of small layers of any kind.
SessionFields AnySession(Random& random);

struct ModelPage {
  std::int64_t begin = 0;
  int tokens = kPageTokens;
  bool blind = false;
  std::uint64_t stamp = 0;
};

struct ModelLayer {
  explicit ModelLayer(const LayerSpec& layer_spec)
      : spec(layer_spec), released_to(layer_spec.codec.sinks) {}

  LayerSpec spec;
  std::int64_t released_to;
  std::vector<std::uint64_t> stamps;                                 // of the tokens, by position
  std::vector<ModelPage> pages;                                      // those that are not released
  std::map<std::int64_t, std::uint64_t> sample;                      // position -> stamp
  std::optional<std::pair<std::int64_t, std::uint64_t>> directions;  // begin of the page, stamp

  std::int64_t length() const { return static_cast<std::int64_t>(stamps.size()); }
  std::int64_t window_begin() const;
  // Rows of tokens [begin, begin + count), TokenBlockLayout.
  std::vector<std::byte> Tokens(std::int64_t begin, std::int64_t count) const;
  std::vector<std::byte> Page(const ModelPage& page) const;
  std::vector<std::byte> Query(std::uint64_t stamp) const;
  std::vector<std::byte> Directions() const;
};

class FileModel {
 public:
  explicit FileModel(Random* random);

  const SessionFields& fields() const { return fields_; }
  const std::vector<ModelLayer>& layers() const { return layers_; }

  // Changes some layers at random: appends, seals, releases, truncates.
  void Step();
  // Adds to a file what it lacks of the present state, and commits.
  absl::Status Checkpoint(SessionFileWriter* writer, Durability durability);
  // Checks that a file's contents are the present state, byte for byte.
  void Expect(const ByteSource& file, const SessionFileContents& contents) const;

 private:
  void Append(ModelLayer& layer);
  void Seal(ModelLayer& layer);
  void Release(ModelLayer& layer);
  void Truncate(std::size_t index, std::int64_t length);
  absl::Status Add(std::size_t index, SessionFileWriter* writer);
  std::int64_t Below(std::int64_t limit);

  Random& random_;
  SessionFields fields_;
  std::vector<ModelLayer> layers_;
  std::vector<std::int64_t> cut_;  // least length of each layer since the last checkpoint
  SessionCommit commit_;
};

}  // namespace oscarkv
