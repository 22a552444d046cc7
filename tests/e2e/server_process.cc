#include "tests/e2e/server_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "absl/strings/str_cat.h"

namespace oscarkv::testing {
namespace {

// What follows `key` in `text`, up to white space; "" if it is not there whole.
std::string WordAfter(const std::string& text, const std::string& key) {
  const std::size_t begin = text.find(key);
  if (begin == std::string::npos) return "";
  const std::size_t end = text.find_first_of(" \n", begin + key.size());
  if (end == std::string::npos) return "";
  return text.substr(begin + key.size(), end - begin - key.size());
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

ServerProcess::ServerProcess(std::vector<std::string> flags, Start start) {
  for (const std::string address : {"--address=", "--metrics-address="}) {
    const auto is_given = [&](const std::string& flag) { return flag.starts_with(address); };
    if (std::none_of(flags.begin(), flags.end(), is_given))
      flags.push_back(address + "127.0.0.1:0");
  }
  flags.insert(flags.begin(), OSCARKV_SERVER_PATH);
  std::vector<char*> arguments;
  for (std::string& flag : flags) arguments.push_back(flag.data());
  arguments.push_back(nullptr);

  log_path_ = ::testing::TempDir() + "oscarkv_server_XXXXXX";
  const int log = mkstemp(log_path_.data());
  pid_ = fork();
  if (pid_ == 0) {
    dup2(log, STDERR_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(log);
  if (start == kDoNotWait) return;
  for (int i = 0; i < 6000 && address_.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::string said = Log();
    address_ = WordAfter(said, "serving address=");
    metrics_address_ = WordAfter(said, " metrics=");
  }
  if (address_.empty()) ADD_FAILURE() << "the server does not serve: " << Log();
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    WaitForExit();
  }
  unlink(log_path_.c_str());
}

void ServerProcess::Kill(int signal) const { kill(pid_, signal); }

int ServerProcess::WaitForExit() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

std::string ServerProcess::Log() const { return ReadFile(log_path_); }

std::int64_t ServerProcess::PeakResidentBytes() const {
  std::string status = ReadFile(absl::StrCat("/proc/", pid_, "/status"));
  std::replace(status.begin(), status.end(), '\t', ' ');
  const std::size_t line = status.find("VmHWM:");
  if (line == std::string::npos) return 0;
  return std::stoll(status.substr(line + 6)) * 1024;
}

}  // namespace oscarkv::testing
