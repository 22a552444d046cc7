// Errors of the kernels layer: a plain struct, because a GPU machine may have nothing but a C++
// compiler, CUDA and CMake. The server turns it into absl::Status (server/base/kernel_status.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace oscarkv {

enum class KernelErrorCode : std::uint8_t {
  kOk,
  kInvalidArgument,    // the caller broke a documented precondition
  kResourceExhausted,  // no memory for a block or for scratch
  kUnavailable,        // the device is lost or absent
  kInternal,
};

struct [[nodiscard]] KernelStatus {
  KernelErrorCode code = KernelErrorCode::kOk;
  std::string message;  // empty if ok

  bool ok() const { return code == KernelErrorCode::kOk; }

  static KernelStatus Ok() { return {}; }
  static KernelStatus InvalidArgument(std::string message) {
    return {KernelErrorCode::kInvalidArgument, std::move(message)};
  }
  static KernelStatus ResourceExhausted(std::string message) {
    return {KernelErrorCode::kResourceExhausted, std::move(message)};
  }
  static KernelStatus Unavailable(std::string message) {
    return {KernelErrorCode::kUnavailable, std::move(message)};
  }
  static KernelStatus Internal(std::string message) {
    return {KernelErrorCode::kInternal, std::move(message)};
  }
};

}  // namespace oscarkv
