#include "client/client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/error_info.h"
#include "client/stream_transport.h"
#include "oscarkv/v1/kv_cache.grpc.pb.h"

namespace oscarkv {
namespace {

using Stub = v1::KvCacheService::Stub;

constexpr int kListPageSize = 1000;
constexpr std::int64_t kImportPieceBytes = 1 << 20;
// gRPC itself waits between attempts to connect; no longer than a retry does.
constexpr int kReconnectMilliseconds = 100;
constexpr int kMaxReconnectMilliseconds = 2000;

int ToChannelLimit(std::int64_t bytes) {
  if (bytes <= 0) return -1;  // gRPC's word for no limit
  return static_cast<int>(std::min<std::int64_t>(bytes, std::numeric_limits<int>::max()));
}

std::unique_ptr<Stub> NewStub(const std::string& address, const ClientOptions& options,
                              std::int64_t max_send, std::int64_t max_receive) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(ToChannelLimit(max_send));
  arguments.SetMaxReceiveMessageSize(ToChannelLimit(max_receive));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMilliseconds);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMilliseconds);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // of its own: which calls may be is known here
  const auto credentials =
      options.credentials ? options.credentials : grpc::InsecureChannelCredentials();
  return v1::KvCacheService::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
}

// One try of a unary method.
template <typename Request, typename Response>
absl::Status CallOnce(Stub& stub,
                      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                      const Request& request, absl::Time deadline, Response* response) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  return StatusFromGrpc((stub.*method)(&context, request, response));
}

// Asks as often as time allows: the server may be starting.
absl::StatusOr<v1::GetServerInfoResponse> AskServer(Stub& stub, const std::string& address,
                                                    const ClientOptions& options) {
  const absl::Time deadline = absl::Now() + options.connect_timeout;
  RetryOptions retry = options.retry;
  retry.max_attempts = std::numeric_limits<int>::max();
  v1::GetServerInfoResponse info;
  const absl::Status status = CallWithRetries(retry, deadline, /*repeatable=*/true, [&] {
    return CallOnce(stub, &Stub::GetServerInfo, v1::GetServerInfoRequest(), deadline, &info);
  });
  if (status.ok()) return info;
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
    return absl::UnavailableError(absl::StrCat("no answer from ", address, ": ", status.message()));
  }
  return absl::Status(status.code(), absl::StrCat(address, ": ", status.message()));
}

// Repeats of items that name the length they expect are recognized by the server.
template <typename Request>
bool MayBeRepeated(const Request& request) {
  return std::all_of(request.items().begin(), request.items().end(), [](const v1::Item& item) {
    return item.num_tokens() == 0 || item.has_expected_length();
  });
}

}  // namespace

// Immutable after Connect, so that any thread may use it.
struct Client::Connection {
  ClientOptions options;
  v1::GetServerInfoResponse server_info;
  std::int64_t max_send = 0;
  std::int64_t max_receive = 0;
  std::unique_ptr<Stub> stub;

  absl::Time Deadline(const CallOptions& call, absl::Duration otherwise) const {
    return absl::Now() + (call.timeout > absl::ZeroDuration() ? call.timeout : otherwise);
  }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request, const CallOptions& call_options,
                                bool repeatable) {
    const absl::Time deadline = Deadline(call_options, options.timeout);
    Response response;
    const absl::Status status = CallWithRetries(options.retry, deadline, repeatable, [&] {
      return CallOnce(*stub, method, request, deadline, &response);
    });
    if (!status.ok()) return status;
    return response;
  }

  // Of methods that name a session and a generation, and return the session.
  template <typename Request, typename Response>
  absl::StatusOr<v1::Session> CallOnSession(grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                         const Request&, Response*),
                                            const std::string& session, std::uint64_t generation,
                                            const CallOptions& call_options) {
    Request request;
    request.set_session(session);
    request.set_generation(generation);
    auto response = Call(method, request, call_options, /*repeatable=*/true);
    if (!response.ok()) return response.status();
    return std::move(*response->mutable_session());
  }

  // `open` is the stub's method that opens the stream.
  template <typename Stream, typename Open>
  std::unique_ptr<Stream> OpenStream(Open open, const CallOptions& call_options) {
    auto transport = std::make_unique<typename Stream::Transport>();
    const absl::Time deadline = Deadline(call_options, options.stream_timeout);
    transport->context().set_deadline(absl::ToChronoTime(deadline));
    transport->Start((stub.get()->*open)(&transport->context()));
    return std::make_unique<Stream>(std::move(transport));
  }
};

Client::Client(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& address,
                                                        const ClientOptions& options) {
  const auto stub = NewStub(address, options, /*max_send=*/0, /*max_receive=*/0);
  auto info = AskServer(*stub, address, options);
  if (!info.ok()) return info.status();

  auto connection = std::make_unique<Connection>();
  connection->options = options;
  connection->max_send = info->max_receive_message_bytes();
  if (options.max_send_message_bytes > 0) {
    connection->max_send = connection->max_send > 0
                               ? std::min(options.max_send_message_bytes, connection->max_send)
                               : options.max_send_message_bytes;
  }
  connection->max_receive = options.max_receive_message_bytes > 0
                                ? options.max_receive_message_bytes
                                : info->max_send_message_bytes();
  connection->server_info = *std::move(info);
  // Limits belong to a channel, so the one that learned them is not the one that keeps them.
  connection->stub = NewStub(address, options, connection->max_send, connection->max_receive);
  return std::unique_ptr<Client>(new Client(std::move(connection)));
}

const v1::GetServerInfoResponse& Client::server_info() const { return connection_->server_info; }
std::int64_t Client::max_send_message_bytes() const { return connection_->max_send; }
std::int64_t Client::max_receive_message_bytes() const { return connection_->max_receive; }

absl::StatusOr<v1::GetServerInfoResponse> Client::GetServerInfo(const CallOptions& options) {
  return connection_->Call(&Stub::GetServerInfo, v1::GetServerInfoRequest(), options, true);
}

absl::StatusOr<v1::Session> Client::CreateSession(v1::CreateSessionRequest request,
                                                  const CallOptions& options) {
  if (request.request_id().empty()) request.set_request_id(NewRequestId());
  auto response = connection_->Call(&Stub::CreateSession, request, options, true);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_session());
}

absl::StatusOr<v1::Session> Client::GetSession(const std::string& session,
                                               const CallOptions& options) {
  v1::GetSessionRequest request;
  request.set_session(session);
  auto response = connection_->Call(&Stub::GetSession, request, options, true);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_session());
}

absl::StatusOr<std::vector<v1::Session>> Client::ListSessions(
    const std::optional<std::string>& tenant, const CallOptions& options) {
  v1::ListSessionsRequest request;
  request.set_page_size(kListPageSize);
  if (tenant.has_value()) request.set_tenant(*tenant);
  std::vector<v1::Session> sessions;
  do {
    auto response = connection_->Call(&Stub::ListSessions, request, options, true);
    if (!response.ok()) return response.status();
    for (v1::Session& session : *response->mutable_sessions()) {
      sessions.push_back(std::move(session));
    }
    request.set_page_token(response->next_page_token());
  } while (!request.page_token().empty());
  return sessions;
}

absl::Status Client::DeleteSession(const std::string& session, std::uint64_t generation,
                                   const CallOptions& options) {
  v1::DeleteSessionRequest request;
  request.set_session(session);
  request.set_generation(generation);
  return connection_->Call(&Stub::DeleteSession, request, options, false).status();
}

absl::StatusOr<v1::ForkSessionResponse> Client::ForkSession(v1::ForkSessionRequest request,
                                                            const CallOptions& options) {
  for (v1::Fork& fork : *request.mutable_forks()) {
    if (fork.request_id().empty()) fork.set_request_id(NewRequestId());
  }
  return connection_->Call(&Stub::ForkSession, request, options, true);
}

absl::StatusOr<v1::Session> Client::TruncateSession(const std::string& session,
                                                    std::uint64_t generation, std::int64_t length,
                                                    const CallOptions& options) {
  v1::TruncateSessionRequest request;
  request.set_session(session);
  request.set_generation(generation);
  request.set_length(length);
  request.set_request_id(NewRequestId());
  auto response = connection_->Call(&Stub::TruncateSession, request, options, true);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_session());
}

absl::StatusOr<v1::Session> Client::UpdateSession(const std::string& session,
                                                  const v1::Retention& retention,
                                                  std::uint64_t generation,
                                                  const CallOptions& options) {
  v1::UpdateSessionRequest request;
  request.set_session(session);
  request.set_generation(generation);
  *request.mutable_retention() = retention;
  auto response = connection_->Call(&Stub::UpdateSession, request, options, true);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_session());
}

absl::StatusOr<v1::Session> Client::EvictSession(const std::string& session,
                                                 std::uint64_t generation,
                                                 const CallOptions& options) {
  return connection_->CallOnSession(&Stub::EvictSession, session, generation, options);
}

absl::StatusOr<v1::Session> Client::RestoreSession(const std::string& session,
                                                   std::uint64_t generation,
                                                   const CallOptions& options) {
  return connection_->CallOnSession(&Stub::RestoreSession, session, generation, options);
}

absl::StatusOr<v1::Session> Client::CheckpointSession(const std::string& session,
                                                      std::uint64_t generation,
                                                      const CallOptions& options) {
  return connection_->CallOnSession(&Stub::CheckpointSession, session, generation, options);
}

absl::StatusOr<v1::AppendResponse> Client::Append(const v1::AppendRequest& request,
                                                  const CallOptions& options) {
  return connection_->Call(&Stub::Append, request, options, MayBeRepeated(request));
}

absl::StatusOr<v1::AttendResponse> Client::Attend(const v1::AttendRequest& request,
                                                  const CallOptions& options) {
  return connection_->Call(&Stub::Attend, request, options, MayBeRepeated(request));
}

std::unique_ptr<AppendStream> Client::OpenAppendStream(const CallOptions& options) {
  return connection_->OpenStream<AppendStream>(&Stub::AppendStream, options);
}

std::unique_ptr<DecodeStream> Client::OpenDecodeStream(const CallOptions& options) {
  return connection_->OpenStream<DecodeStream>(&Stub::Decode, options);
}

absl::Status Client::ReadTokens(
    v1::ReadTokensRequest request,
    absl::FunctionRef<absl::Status(const v1::ReadTokensResponse&)> on_tokens,
    const CallOptions& options) {
  const absl::Time deadline = connection_->Deadline(options, connection_->options.stream_timeout);
  absl::Status refused;  // by on_tokens
  bool complete = false;
  const auto read_rest = [&]() -> absl::Status {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    const auto reader = connection_->stub->ReadTokens(&context, request);
    for (v1::ReadTokensResponse run; reader->Read(&run);) {
      refused = on_tokens(run);
      if (!refused.ok()) {
        context.TryCancel();
        break;
      }
      const std::int64_t tokens = run.key().shape_size() > 0 ? run.key().shape(0) : 0;
      request.set_begin(run.begin() + tokens);
      if (request.has_num_tokens()) {
        request.set_num_tokens(request.num_tokens() - tokens);
        complete = request.num_tokens() <= 0;
      }
    }
    const absl::Status status = StatusFromGrpc(reader->Finish());
    return complete || !refused.ok() ? absl::OkStatus() : status;
  };
  const absl::Status status =
      CallWithRetries(connection_->options.retry, deadline, /*repeatable=*/true, read_rest);
  return refused.ok() ? status : refused;
}

absl::StatusOr<v1::ExportSessionHeader> Client::ExportSession(
    const std::string& session, std::uint64_t generation,
    absl::FunctionRef<absl::Status(std::string_view)> on_bytes, const CallOptions& options) {
  const absl::Time deadline = connection_->Deadline(options, connection_->options.stream_timeout);
  v1::ExportSessionRequest request;
  request.set_session(session);
  request.set_generation(generation);
  v1::ExportSessionHeader header;
  absl::Status broken;  // what must not be repeated: bytes have been given away
  const auto read_all = [&]() -> absl::Status {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    const auto reader = connection_->stub->ExportSession(&context, request);
    bool began = false;
    for (v1::ExportSessionResponse piece; reader->Read(&piece);) {
      if (!std::exchange(began, true)) header = piece.header();
      broken = on_bytes(piece.data());
      if (!broken.ok()) {
        context.TryCancel();
        break;
      }
    }
    absl::Status status = StatusFromGrpc(reader->Finish());
    if (!began) return status;
    if (broken.ok()) broken = status;
    return absl::OkStatus();
  };
  const absl::Status status =
      CallWithRetries(connection_->options.retry, deadline, /*repeatable=*/true, read_all);
  if (!status.ok()) return status;
  if (!broken.ok()) return broken;
  return header;
}

absl::StatusOr<v1::Session> Client::ImportSession(
    v1::ImportSessionHeader header,
    absl::FunctionRef<absl::StatusOr<std::string>(std::int64_t offset, std::int64_t most)> read,
    const CallOptions& options) {
  const absl::Time deadline = connection_->Deadline(options, connection_->options.stream_timeout);
  if (header.request_id().empty()) header.set_request_id(NewRequestId());
  const std::int64_t most = connection_->max_send > 0
                                ? std::min(kImportPieceBytes, connection_->max_send / 2)
                                : kImportPieceBytes;
  v1::ImportSessionResponse response;
  absl::Status unreadable;  // by `read`
  const auto send_all = [&]() -> absl::Status {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    const auto writer = connection_->stub->ImportSession(&context, &response);
    v1::ImportSessionRequest request;
    *request.mutable_header() = header;
    for (std::int64_t offset = 0; writer->Write(request);) {
      absl::StatusOr<std::string> bytes = read(offset, most);
      if (!bytes.ok()) {
        unreadable = bytes.status();
        context.TryCancel();
        break;
      }
      if (bytes->empty()) break;
      offset += static_cast<std::int64_t>(bytes->size());
      request.set_data(*std::move(bytes));
    }
    writer->WritesDone();
    const absl::Status status = StatusFromGrpc(writer->Finish());
    return unreadable.ok() ? status : absl::OkStatus();
  };
  const absl::Status status =
      CallWithRetries(connection_->options.retry, deadline, /*repeatable=*/true, send_all);
  if (!unreadable.ok()) return unreadable;
  if (!status.ok()) return status;
  return std::move(*response.mutable_session());
}

}  // namespace oscarkv
