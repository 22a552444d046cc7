// A server inside this process, on a socket that only this user can reach.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace oscarkv {

class Server;

// Thread-safety: none needed; immutable after Start.
class LocalServer {
 public:
  // With default settings; its log is silent but for errors.
  static absl::StatusOr<std::unique_ptr<LocalServer>> Start();
  ~LocalServer();
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  // For Client::Connect.
  const std::string& address() const { return address_; }

 private:
  LocalServer() = default;

  std::string directory_;  // of the socket
  std::string address_;
  std::unique_ptr<Server> server_;
};

}  // namespace oscarkv
