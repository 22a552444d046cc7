// Numbers and strings as bytes, little-endian, one after the other without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace oscarkv {

class ByteWriter {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T>
  void Put(T x) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&x);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
  }
  // Its length (32 bits), then its bytes.
  void PutString(std::string_view s) {
    Put(static_cast<std::uint32_t>(s.size()));
    const auto bytes = std::as_bytes(std::span(s));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  // Their count (32 bits), then they.
  void PutFloats(std::span<const float> floats) {
    Put(static_cast<std::uint32_t>(floats.size()));
    for (const float x : floats) Put(x);
  }

  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Takes what a ByteWriter has put. Where bytes are missing it returns zeros and remembers that.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  requires std::is_arithmetic_v<T> T Take() {
    T x{};
    const auto taken = TakeBytes(sizeof(T));
    if (!taken.empty()) std::memcpy(&x, taken.data(), sizeof(T));
    return x;
  }
  std::string TakeString() {
    const auto taken = TakeBytes(Take<std::uint32_t>());
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  std::vector<float> TakeFloats() {
    const auto taken = TakeBytes(std::size_t{Take<std::uint32_t>()} * sizeof(float));
    std::vector<float> floats(taken.size() / sizeof(float));
    if (!floats.empty()) std::memcpy(floats.data(), taken.data(), taken.size());
    return floats;
  }

  // All bytes were taken, and none was missing.
  bool complete() const { return !short_ && bytes_.empty(); }
  bool short_of_bytes() const { return short_; }

 private:
  std::span<const std::byte> TakeBytes(std::size_t count) {
    if (count > bytes_.size()) {
      short_ = true;
      bytes_ = {};
      return {};
    }
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }

  std::span<const std::byte> bytes_;
  bool short_ = false;
};

}  // namespace oscarkv
