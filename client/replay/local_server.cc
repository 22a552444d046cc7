#include "client/replay/local_server.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "server/config.h"
#include "server/log.h"
#include "server/server.h"

namespace oscarkv {

absl::StatusOr<std::unique_ptr<LocalServer>> LocalServer::Start() {
  std::error_code error;
  std::string directory = (std::filesystem::temp_directory_path(error) / "oscarkv-XXXXXX").string();
  if (error || mkdtemp(directory.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, "cannot make a temporary directory for a socket");
  }
  std::unique_ptr<LocalServer> local(new LocalServer());
  local->directory_ = directory;
  local->address_ = absl::StrCat("unix:", directory, "/socket");

  InitLog(LogLevel::kError, LogFormat::kText);
  Config config;
  config.address = local->address_;
  auto server = Server::Start(config);
  if (!server.ok()) return server.status();
  local->server_ = *std::move(server);
  return local;
}

LocalServer::~LocalServer() {
  server_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

}  // namespace oscarkv
