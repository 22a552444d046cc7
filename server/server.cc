#include "server/server.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/base/error_counts.h"
#include "server/base/kernel_status.h"
#include "server/base/string_view.h"
#include "server/file/data_dir.h"
#include "server/health_watch.h"
#include "server/log.h"
#include "server/metrics/metrics_endpoint.h"
#include "server/rpc/kv_cache_service.h"
#include "server/session/session_store.h"

namespace oscarkv {
namespace {

constexpr std::string_view kUnix = "unix:";

// Once nothing is under way: for clients at work to be refused in so many words, rather than by a
// connection that closes on them; and for connections to close, which takes the clients' part.
constexpr absl::Duration kLinger = absl::Milliseconds(100);
constexpr absl::Duration kCloseTime = absl::Milliseconds(500);

// gRPC's own messages, as lines of this log.
void LogFromGrpc(gpr_log_func_args* args) {
  const LogLevel level = args->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kWarn
                         : args->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                   : LogLevel::kDebug;
  Log(level, "grpc", {{"message", args->message}});
}

// Protobuf complains of requests that cannot be parsed; they are answered with an error.
void LogFromProtobuf(google::protobuf::LogLevel level, const char* /*file*/, int /*line*/,
                     const std::string& message) {
  Log(level == google::protobuf::LOGLEVEL_FATAL ? LogLevel::kError : LogLevel::kDebug, "protobuf",
      {{"message", message}});
}

// Plugins and logs are of the whole process.
void InitGrpcOnce() {
  static const bool once = [] {
    gpr_set_log_function(LogFromGrpc);
    google::protobuf::SetLogHandler(LogFromProtobuf);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  static_cast<void>(once);
}

// gRPC would take a socket away from a server that listens on it.
bool SomeoneListensOn(std::string_view unix_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (unix_path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, unix_path.data(), unix_path.size());
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return false;
  const bool connected =
      ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(socket);
  return connected;
}

absl::StatusOr<std::int64_t> BudgetOf(const Config& config, const BackendInfo& backend) {
  if (config.memory_budget_bytes == 0) return backend.memory_bytes / 2;
  if (config.memory_budget_bytes <= backend.memory_bytes) return config.memory_budget_bytes;
  return absl::InvalidArgumentError(absl::StrCat("--memory-budget is ", config.memory_budget_bytes,
                                                 "; expected at most ", backend.memory_bytes,
                                                 ", the memory of ", backend.device));
}

// Generations count up from here: above 2^24 of them are bits that differ from boot to boot, so
// that neither a restart nor a clock set back repeats one, and none can be guessed.
std::uint64_t FirstGeneration() {
  constexpr int kCounterBits = 24;                // a carry beyond them does no harm
  constexpr int kRandomBits = 63 - kCounterBits;  // the highest bit stays free for that carry
  std::random_device device;
  const std::uint64_t random = std::uint64_t{device()} << 32 | device();
  return (random >> (64 - kRandomBits)) << kCounterBits | 1;
}

void LogTierFailure(std::string_view session, const absl::Status& status) {
  Log(LogLevel::kError, "session_file",
      {{"session", std::string(session)}, {"error", std::string(status.message())}});
}

void LogDropped(std::string_view session, EvictionReason reason) {
  const char* const why = reason == EvictionReason::kTtl     ? "expired"
                          : reason == EvictionReason::kQuota ? "quota"
                                                             : "memory";
  Log(LogLevel::kInfo, "session_dropped", {{"session", std::string(session)}, {"reason", why}});
}

void Configure(const Config& config, grpc::ServerBuilder& builder) {
  constexpr int kSecond = 1000;
  const int max_message = static_cast<int>(config.max_message_bytes);
  builder.SetMaxReceiveMessageSize(max_message);
  builder.SetMaxSendMessageSize(max_message);
  // Two servers on one port would share its connections unawares.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Finds dead clients within a minute, and lets idle ones keep their connections alive.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 40 * kSecond);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20 * kSecond);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10 * kSecond);
}

}  // namespace

class Server::Impl {
 public:
  absl::Status Start(const Config& config);
  bool Drain(absl::Duration grace);
  std::string address() const { return address_; }
  std::string metrics_address() const { return metrics_ ? metrics_->address() : "off"; }
  std::string backend() const {
    const int threads = backend_info_.threads;
    return absl::StrCat(backend_info_.name, ", ", backend_info_.device, ", ", threads,
                        threads == 1 ? " thread" : " threads");
  }

 private:
  absl::Status MakeStore(const Config& config);
  absl::Status Recover();
  void CheckpointAll();
  absl::Status ServeMetrics(const Config& config);
  Readings ReadMetrics() const;
  absl::Status Listen(const Config& config);
  // Whether the service serves well; "" of the health service is whether the process answers.
  void TellHealth(const absl::Status& status);

  std::uint64_t boot_epoch_ = 0;
  BackendInfo backend_info_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DataDir> data_dir_;
  std::unique_ptr<SessionStore> store_;
  std::unique_ptr<KvCacheService> service_;
  std::unique_ptr<grpc::Server> listener_;
  std::unique_ptr<HealthWatch> watch_;
  std::string address_;
  std::atomic<bool> ready_{false};  // what the health service says of the service
  std::unique_ptr<MetricsEndpoint> metrics_;
};

absl::Status Server::Impl::Start(const Config& config) {
  InitGrpcOnce();
  boot_epoch_ = static_cast<std::uint64_t>(absl::ToUnixMicros(absl::Now()));
  if (absl::Status s = MakeStore(config); !s.ok()) return s;
  const ServerFacts facts = {.version = std::string(ServerVersion()),
                             .boot_epoch = boot_epoch_,
                             .backend = backend_info_,
                             .default_profile = config.profile,
                             .max_message_bytes = config.max_message_bytes};
  // Besides two that run batches: more than one write replies, and run what is no batch.
  const ServiceOptions options = {.threads = 2 + std::clamp(backend_info_.threads, 2, 14),
                                  .max_concurrent_requests = config.max_concurrent_requests};
  service_ = std::make_unique<KvCacheService>(store_.get(), facts, options);
  if (absl::Status s = ServeMetrics(config); !s.ok()) return s;
  return Listen(config);
}

absl::Status Server::Impl::MakeStore(const Config& config) {
  BackendResult made = MakeBackend({.kind = config.backend,
                                    .threads = config.threads,
                                    .cpu_instructions = config.cpu_instructions});
  if (!made.status.ok()) return FromKernelStatus(made.status);
  backend_ = std::move(made.backend);
  backend_info_ = backend_->Info();
  const absl::StatusOr<std::int64_t> budget = BudgetOf(config, backend_info_);
  if (!budget.ok()) return budget.status();
  if (!config.data_dir.empty()) {
    absl::StatusOr<std::unique_ptr<DataDir>> data_dir = DataDir::Open(config.data_dir);
    if (!data_dir.ok()) return data_dir.status();
    data_dir_ = *std::move(data_dir);
  }
  store_ = std::make_unique<SessionStore>(
      backend_.get(), StoreOptions{.memory_budget_bytes = *budget,
                                   .settle_after = config.settle_after,
                                   .step_lease = config.step_lease,
                                   .first_generation = FirstGeneration(),
                                   .data_dir = data_dir_.get(),
                                   .durability = config.durability,
                                   .checkpoint_interval = config.checkpoint_interval,
                                   .checkpoint_tokens = config.checkpoint_tokens,
                                   .low_watermark = config.low_watermark,
                                   .high_watermark = config.high_watermark,
                                   .drop_when_full = config.drop_when_full,
                                   .quotas = config.quotas,
                                   .on_dropped = LogDropped,
                                   .on_tier_failure = LogTierFailure});
  return data_dir_ ? Recover() : absl::OkStatus();
}

absl::Status Server::Impl::Recover() {
  const absl::Time began = absl::Now();
  const absl::StatusOr<RecoveryReport> report = store_->Recover();
  if (!report.ok()) return report.status();
  for (const std::string& remark : report->remarks) {
    Log(LogLevel::kWarn, "data_dir", {{"message", remark}});
  }
  Log(LogLevel::kInfo, "recovered",
      {{"data_dir", data_dir_->path()},
       {"sessions", absl::StrCat(report->sessions)},
       {"remarks", absl::StrCat(report->remarks.size())},
       {"took", absl::FormatDuration(absl::Now() - began)}});
  return absl::OkStatus();
}

void Server::Impl::CheckpointAll() {
  if (!data_dir_) return;
  if (const absl::Status s = store_->CheckpointAll(); !s.ok()) {
    Log(LogLevel::kError, "checkpoint", {{"error", std::string(s.message())}});
  }
}

absl::Status Server::Impl::Listen(const Config& config) {
  const std::string_view address = config.address;
  if (address.starts_with(kUnix) && SomeoneListensOn(address.substr(kUnix.size()))) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", config.address, ": another server listens there"));
  }
  grpc::ServerBuilder builder;
  Configure(config, builder);
  int port = 0;
  builder.AddListeningPort(config.address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service_.get());
  listener_ = builder.BuildAndStart();
  if (listener_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", config.address,
        ": the address is in use, is not of this machine, or may not be used by this user"));
  }
  listener_->GetHealthCheckService()->SetServingStatus(v1::KvCacheService::service_full_name(),
                                                       true);
  ready_ = true;
  address_ = address.starts_with(kUnix)
                 ? config.address
                 : absl::StrCat(ToAbsl(address.substr(0, address.rfind(':'))), ":", port);
  watch_ = std::make_unique<HealthWatch>([this] { return store_->Health(); },
                                         [this](const absl::Status& s) { TellHealth(s); });
  return absl::OkStatus();
}

absl::Status Server::Impl::ServeMetrics(const Config& config) {
  if (config.metrics_address.empty()) return absl::OkStatus();
  auto metrics = MetricsEndpoint::Start(config.metrics_address, [this] { return ReadMetrics(); });
  if (!metrics.ok()) return metrics.status();
  metrics_ = *std::move(metrics);
  return absl::OkStatus();
}

Readings Server::Impl::ReadMetrics() const {
  return {.version = std::string(ServerVersion()),
          .backend = backend_info_.name,
          .device = backend_info_.device,
          .start_time = absl::FromUnixMicros(static_cast<std::int64_t>(boot_epoch_)),
          .ready = ready_,
          .store = store_->Totals(),
          .errors = ErrorCounter::OfProcess().Read()};
}

void Server::Impl::TellHealth(const absl::Status& status) {
  ready_ = status.ok();
  listener_->GetHealthCheckService()->SetServingStatus(v1::KvCacheService::service_full_name(),
                                                       status.ok());
  if (status.ok()) {
    Log(LogLevel::kInfo, "healthy", {{"status", "SERVING"}});
  } else {
    Log(LogLevel::kError, "unhealthy",
        {{"status", "NOT_SERVING"}, {"reason", std::string(status.message())}});
  }
}

bool Server::Impl::Drain(absl::Duration grace) {
  if (listener_ == nullptr) return true;
  absl::Time deadline = absl::Now() + grace;
  watch_.reset();  // it would say SERVING again
  ready_ = false;
  listener_->GetHealthCheckService()->SetServingStatus(false);
  const bool ended = service_->Drain(deadline);
  if (ended) {
    absl::SleepFor(std::min(kLinger, deadline - absl::Now()));
    deadline = std::min(deadline, absl::Now() + kCloseTime);
  }
  listener_->Shutdown(absl::ToChronoTime(deadline));
  listener_->Wait();
  listener_.reset();
  CheckpointAll();  // however much time is left: what it would not write is lost
  return ended;
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Config& config) {
  auto impl = std::make_unique<Impl>();
  if (absl::Status s = impl->Start(config); !s.ok()) return s;
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { impl_->Drain(absl::ZeroDuration()); }

std::string Server::address() const { return impl_->address(); }

std::string Server::metrics_address() const { return impl_->metrics_address(); }

std::string Server::backend() const { return impl_->backend(); }

bool Server::Drain(absl::Duration grace) { return impl_->Drain(grace); }

}  // namespace oscarkv
