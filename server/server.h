// A whole server: backend, sessions, service, listener; for the program and for tests and tools
// that want one in their own process.
//
// Thread-safety: address(), metrics_address() and backend() may be called from anywhere; Drain and
// destruction from one thread. Invariant: what is built later uses what is built earlier, and is
// stopped first.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config.h"

namespace oscarkv {

class Server {
 public:
  // Listens, and serves from then on. Errors have a message for people: UNAVAILABLE if an address
  // cannot be used, INVALID_ARGUMENT if the budget is beyond the memory; if the backend cannot be
  // made, its own error (server/base/kernel_status.h).
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Config& config);

  // Stops at once: requests under way lose their replies.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // What clients connect to: the configured address, with the real port.
  std::string address() const;

  // Where metrics are: the configured address, with the real port; "off" without.
  std::string metrics_address() const;

  // What computes, for people: the backend, its device and its threads.
  std::string backend() const;

  // Says NOT_SERVING, refuses new requests with UNAVAILABLE, and stops listening when those under
  // way have ended, or after `grace`. Returns true if all ended in time. Only the first call acts.
  bool Drain(absl::Duration grace);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscarkv
