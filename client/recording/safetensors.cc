#include "client/recording/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace oscarkv {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // as the reference implementation
constexpr char kMetadata[] = "__metadata__";

template <typename... Parts>
absl::Status Corrupt(const Parts&... parts) {
  return absl::DataLossError(absl::StrCat(parts...));
}

// Names come from the file: short and printable in messages.
std::string Quote(const std::string& name) {
  constexpr std::size_t kMaxShown = 64;
  return Json(name.substr(0, kMaxShown)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

// 0 for types that this code does not know.
std::int64_t ElementBytesOf(std::string_view dtype) {
  static constexpr std::pair<std::string_view, std::int64_t> kTypes[] = {
      {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"U16", 2},     {"I16", 2},
      {"F16", 2},  {"BF16", 2}, {"U32", 4}, {"I32", 4},     {"F32", 4},
      {"U64", 8},  {"I64", 8},  {"F64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const auto& [name, bytes] : kTypes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

// The JSON, or nullopt. `duplicate` becomes a key that occurs twice in one object: JSON allows it,
// and readers disagree about what it means.
std::optional<Json> ParseJson(std::string_view text, std::optional<std::string>& duplicate) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) duplicate = key;
    }
    return true;
  };
  Json json = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (json.is_discarded()) return std::nullopt;
  return json;
}

std::optional<std::int64_t> ToLength(const Json& json) {
  if (!json.is_number_unsigned()) return std::nullopt;
  const auto value = json.get<std::uint64_t>();
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(value);
}

// All elements as lengths; nullopt if `json` is no array of those.
std::optional<std::vector<std::int64_t>> ToLengths(const Json& json) {
  if (!json.is_array()) return std::nullopt;
  std::vector<std::int64_t> lengths;
  for (const Json& element : json) {
    const auto length = ToLength(element);
    if (!length.has_value()) return std::nullopt;
    lengths.push_back(*length);
  }
  return lengths;
}

// nullopt if the product does not fit.
std::optional<std::int64_t> ByteCount(std::int64_t element_bytes,
                                      const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = element_bytes;
  for (const std::int64_t length : shape) {
    if (__builtin_mul_overflow(bytes, length, &bytes)) return std::nullopt;
  }
  return bytes;
}

absl::StatusOr<SafeTensor> ParseTensor(const std::string& name, const Json& json,
                                       std::span<const std::byte> data) {
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    return Corrupt("tensor ", Quote(name), " lacks dtype, shape or data_offsets");
  }
  SafeTensor tensor;
  const auto* dtype = json["dtype"].get_ptr<const std::string*>();
  const std::int64_t element_bytes = dtype == nullptr ? 0 : ElementBytesOf(*dtype);
  if (element_bytes == 0) return Corrupt("tensor ", Quote(name), " has an unknown dtype");
  tensor.dtype = *dtype;
  auto shape = ToLengths(json["shape"]);
  if (!shape.has_value())
    return Corrupt("the shape of tensor ", Quote(name), " is no list of lengths");
  tensor.shape = *std::move(shape);
  const auto offsets = ToLengths(json["data_offsets"]);
  if (!offsets.has_value() || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1] ||
      static_cast<std::uint64_t>((*offsets)[1]) > data.size()) {
    return Corrupt("the data_offsets of tensor ", Quote(name), " are not within the file's ",
                   data.size(), " bytes of data");
  }
  const std::int64_t begin = (*offsets)[0];
  const std::int64_t size = (*offsets)[1] - begin;
  if (ByteCount(element_bytes, tensor.shape) != size) {
    return Corrupt("tensor ", Quote(name), " has ", size,
                   " bytes, which is not what its shape takes");
  }
  tensor.bytes = data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
  return tensor;
}

// Neither gaps nor overlaps: what is not part of a tensor could hide anything.
absl::Status CheckCoverage(const std::map<std::string, SafeTensor, std::less<>>& tensors,
                           std::span<const std::byte> data) {
  std::vector<std::pair<std::size_t, std::size_t>> ranges;  // begin and end
  for (const auto& [name, tensor] : tensors) {
    const auto begin = static_cast<std::size_t>(tensor.bytes.data() - data.data());
    ranges.emplace_back(begin, begin + tensor.bytes.size());
  }
  std::sort(ranges.begin(), ranges.end());
  std::size_t covered = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin < covered) return Corrupt("tensors overlap at byte ", begin, " of the data");
    if (begin > covered) return Corrupt("no tensor has byte ", covered, " of the data");
    covered = end;
  }
  if (covered != data.size()) return Corrupt("no tensor has byte ", covered, " of the data");
  return absl::OkStatus();
}

}  // namespace

class SafeTensorsFile::Mapping {
 public:
  static absl::StatusOr<std::shared_ptr<const Mapping>> Open(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return absl::ErrnoToStatus(errno, path);
    const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
    struct stat info;
    if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, path);
    if (!S_ISREG(info.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
    }
    const auto size = static_cast<std::size_t>(info.st_size);
    if (size == 0) return std::shared_ptr<const Mapping>(new Mapping(nullptr, 0));
    void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, path);
    return std::shared_ptr<const Mapping>(new Mapping(data, size));
  }
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  Mapping(void* data, std::size_t size) : data_(data), size_(size) {}

  void* const data_;
  const std::size_t size_;
};

absl::StatusOr<SafeTensorsFile> SafeTensorsFile::Open(const std::string& path) {
  auto mapping = Mapping::Open(path);
  if (!mapping.ok()) return mapping.status();
  SafeTensorsFile file;
  file.mapping_ = *std::move(mapping);
  if (absl::Status status = file.Parse(file.mapping_->bytes()); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  }
  return file;
}

absl::Status SafeTensorsFile::Parse(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) return Corrupt("too short for a safetensors file");
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes || length > file.size() - kLengthBytes) {
    return Corrupt("not a safetensors file: a header of ", length, " bytes in a file of ",
                   file.size());
  }
  const auto header = file.subspan(kLengthBytes, static_cast<std::size_t>(length));
  const auto data = file.subspan(kLengthBytes + header.size());

  std::optional<std::string> duplicate;
  const auto json =
      ParseJson({reinterpret_cast<const char*>(header.data()), header.size()}, duplicate);
  if (!json.has_value() || !json->is_object()) return Corrupt("the header is not a JSON object");
  if (duplicate.has_value()) return Corrupt("the header has ", Quote(*duplicate), " twice");
  for (const auto& [name, value] : json->items()) {
    if (name == kMetadata) continue;
    auto tensor = ParseTensor(name, value, data);
    if (!tensor.ok()) return tensor.status();
    tensors_.emplace(name, *std::move(tensor));
  }
  if (const auto metadata = json->find(kMetadata); metadata != json->end()) {
    if (!metadata->is_object()) return Corrupt(kMetadata, " is not an object");
    for (const auto& [key, value] : metadata->items()) {
      const auto* text = value.get_ptr<const std::string*>();
      if (text == nullptr) return Corrupt(kMetadata, ".", Quote(key), " is not a string");
      metadata_.emplace(key, *text);
    }
  }
  return CheckCoverage(tensors_, data);
}

}  // namespace oscarkv
