// oscarkv-server as a process of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace oscarkv::testing {

class ServerProcess {
 public:
  enum Start { kWaitUntilServing, kDoNotWait };

  // Adds --address=127.0.0.1:0 and --metrics-address=127.0.0.1:0 unless they are given. Fails the
  // test if it does not serve within a minute.
  explicit ServerProcess(std::vector<std::string> flags, Start start = kWaitUntilServing);
  // Kills it.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& address() const { return address_; }
  const std::string& metrics_address() const { return metrics_address_; }
  void Kill(int signal) const;
  // The exit code; 256 + the signal that ended it.
  int WaitForExit();
  // What it has written to standard error so far.
  std::string Log() const;

  // From /proc: the most memory that was ever resident.
  std::int64_t PeakResidentBytes() const;

 private:
  pid_t pid_ = -1;
  std::string log_path_;
  std::string address_;
  std::string metrics_address_;
};

}  // namespace oscarkv::testing
