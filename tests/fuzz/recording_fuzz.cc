// Any file is a recording or is refused with a status; what a recording names can be read.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "client/recording/recording.h"

namespace {

// Touches all bytes, so that the address sanitizer sees a span that lies outside of the file.
unsigned Sum(const oscarkv::RecordedTensor& tensor) {
  if (tensor.bytes.size() != tensor.row_bytes() * static_cast<std::size_t>(tensor.tokens)) {
    std::abort();
  }
  unsigned sum = 0;
  for (std::byte byte : tensor.bytes) sum += std::to_integer<unsigned>(byte);
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int file = memfd_create("recording", MFD_CLOEXEC);
  if (file < 0 || write(file, data, size) != static_cast<ssize_t>(size)) std::abort();
  const auto recording = oscarkv::Recording::Open("/proc/self/fd/" + std::to_string(file));
  close(file);
  if (!recording.ok()) return 0;

  volatile unsigned sum = 0;
  for (const oscarkv::RecordedLayer& layer : recording->layers()) {
    sum = sum + Sum(layer.key) + Sum(layer.value) + Sum(layer.query);
  }
  return 0;
}
