// oscarkv-server. Exits with 0 after a stop, 1 if it cannot serve, 2 if it is told nonsense.
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/config.h"
#include "server/log.h"
#include "server/server.h"

namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

// Blocked in every thread, so that WaitForStop receives them.
sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

void ExitAtOnce(int signal) { _exit(128 + signal); }

// Waits for a first signal, and lets a second one end the process.
int WaitForStop(const sigset_t& signals) {
  int received = 0;
  sigwait(&signals, &received);
  std::signal(SIGINT, ExitAtOnce);
  std::signal(SIGTERM, ExitAtOnce);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  return received;
}

// Messages are large and pass from thread to thread. By default glibc keeps what is freed, ever
// larger buffers of it, in eight arenas a processor: many times what the messages under way take.
// With a fixed limit for those it would give the rest back too eagerly: what one step has freed the
// next one would have to fault in again, page by page.
void BoundFreeMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 16 << 20);
  mallopt(M_ARENA_MAX, 4);
#endif
}

int Serve(const oscarkv::Config& config) {
  using oscarkv::LogLevel;
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  absl::StatusOr<std::unique_ptr<oscarkv::Server>> server = oscarkv::Server::Start(config);
  if (!server.ok()) {
    std::fprintf(stderr, "oscarkv-server: %s\n", std::string(server.status().message()).c_str());
    return kExitFailure;
  }
  oscarkv::Log(LogLevel::kInfo, "serving",
               {{"address", (*server)->address()},
                {"metrics", (*server)->metrics_address()},
                {"version", std::string(oscarkv::ServerVersion())},
                {"backend", (*server)->backend()}});
  const int signal = WaitForStop(signals);
  oscarkv::Log(LogLevel::kInfo, "stopping",
               {{"signal", signal == SIGINT ? "SIGINT" : "SIGTERM"},
                {"grace", absl::FormatDuration(config.shutdown_grace)}});
  const bool ended = (*server)->Drain(config.shutdown_grace);
  oscarkv::Log(LogLevel::kInfo, "stopped", {{"all_requests_ended", ended ? "true" : "false"}});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const absl::StatusOr<oscarkv::CommandLine> line = oscarkv::ParseCommandLine(argc, argv);
  if (!line.ok()) {
    std::fprintf(stderr, "oscarkv-server: %s\n", std::string(line.status().message()).c_str());
    return kExitUsage;
  }
  if (!line->text.empty()) {
    std::fputs(line->text.c_str(), stdout);
    return 0;
  }
  BoundFreeMemory();
  oscarkv::InitLog(line->config.log_level, line->config.log_format);
  return Serve(line->config);
}
