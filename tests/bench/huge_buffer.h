// Memory for data that is streamed: huge pages where the system gives them.
//
// Thread-safety: as a plain array.
#pragma once

#include <cstddef>

namespace oscarkv::bench {

class HugeBuffer {
 public:
  // Zeros, aligned to 2 MiB. Ends the program if there is no memory.
  explicit HugeBuffer(std::size_t bytes);
  ~HugeBuffer();
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
};

}  // namespace oscarkv::bench
