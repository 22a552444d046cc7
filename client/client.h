// The service for C++ programs: a connection with deadlines, message limits and safe retries.
//
//   auto client = oscarkv::Client::Connect("127.0.0.1:50051").value();
//
// Requests and responses are the messages of proto/oscarkv/v1/kv_cache.proto, which is their
// manual; helpers are in client/tensors.h (tensors), client/error_info.h (details of errors) and
// client/session_writer.h (contexts larger than a message).
//
// Errors are absl::Status with the server's code and message; ErrorInfoOf() tells the rest. The
// status of a call says nothing of its items: see FirstItemError().
//
// Retries. Calls that may be repeated by contract are, with growing pauses, while the server cannot
// be reached or asks to come back: all reads, CreateSession, ForkSession, TruncateSession,
// UpdateSession, EvictSession, RestoreSession, CheckpointSession, Attend and Append whose items
// name their expected_length, ImportSession, and ExportSession until its first bytes are there.
// DeleteSession never is: whether the first try was done must be found out by whoever asked for it.
// Streams never are either, except ReadTokens.
//
// Thread-safety: all functions of Client may be called at once. A stream is for one thread that
// writes and one that reads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/retry.h"
#include "client/streams.h"
#include "oscarkv/v1/kv_cache.pb.h"

namespace grpc {
class ChannelCredentials;
}

namespace oscarkv {

struct ClientOptions {
  // For a call with all its retries.
  absl::Duration timeout = absl::Seconds(30);
  // For the whole life of a stream.
  absl::Duration stream_timeout = absl::Hours(1);
  // For Connect.
  absl::Duration connect_timeout = absl::Seconds(5);
  RetryOptions retry;
  // The largest message to send and to receive. 0: the server's own limits, asked at Connect. The
  // server's limit on what it receives holds in any case.
  std::int64_t max_send_message_bytes = 0;
  std::int64_t max_receive_message_bytes = 0;
  // Null: no encryption.
  std::shared_ptr<grpc::ChannelCredentials> credentials;
};

struct CallOptions {
  // 0: as in ClientOptions.
  absl::Duration timeout = absl::ZeroDuration();
};

class Client {
 public:
  // Connects to "host:port" or "unix:path" and asks the server for its limits. UNAVAILABLE if it
  // does not answer within connect_timeout.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& address,
                                                         const ClientOptions& options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // What the server said at Connect.
  const v1::GetServerInfoResponse& server_info() const;
  std::int64_t max_send_message_bytes() const;
  std::int64_t max_receive_message_bytes() const;

  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo(const CallOptions& options = {});

  // An empty request_id is filled in.
  absl::StatusOr<v1::Session> CreateSession(v1::CreateSessionRequest request,
                                            const CallOptions& options = {});
  absl::StatusOr<v1::Session> GetSession(const std::string& session,
                                         const CallOptions& options = {});
  // All of them, or all of one tenant, in the order of their ids, without layers.
  absl::StatusOr<std::vector<v1::Session>> ListSessions(
      const std::optional<std::string>& tenant = std::nullopt, const CallOptions& options = {});
  // generation 0: whatever the session's is.
  absl::Status DeleteSession(const std::string& session, std::uint64_t generation = 0,
                             const CallOptions& options = {});
  // One result for each fork, in order. Empty request_ids are filled in.
  absl::StatusOr<v1::ForkSessionResponse> ForkSession(v1::ForkSessionRequest request,
                                                      const CallOptions& options = {});
  // Returns the session with its new generation.
  absl::StatusOr<v1::Session> TruncateSession(const std::string& session, std::uint64_t generation,
                                              std::int64_t length, const CallOptions& options = {});
  // generation 0: whatever the session's is.
  absl::StatusOr<v1::Session> UpdateSession(const std::string& session,
                                            const v1::Retention& retention,
                                            std::uint64_t generation = 0,
                                            const CallOptions& options = {});
  // Of servers that keep sessions in files. generation 0: whatever the session's is.
  absl::StatusOr<v1::Session> EvictSession(const std::string& session, std::uint64_t generation = 0,
                                           const CallOptions& options = {});
  absl::StatusOr<v1::Session> RestoreSession(const std::string& session,
                                             std::uint64_t generation = 0,
                                             const CallOptions& options = {});
  absl::StatusOr<v1::Session> CheckpointSession(const std::string& session,
                                                std::uint64_t generation = 0,
                                                const CallOptions& options = {});

  absl::StatusOr<v1::AppendResponse> Append(const v1::AppendRequest& request,
                                            const CallOptions& options = {});
  absl::StatusOr<v1::AttendResponse> Attend(const v1::AttendRequest& request,
                                            const CallOptions& options = {});
  std::unique_ptr<AppendStream> OpenAppendStream(const CallOptions& options = {});
  std::unique_ptr<DecodeStream> OpenDecodeStream(const CallOptions& options = {});

  // Calls `on_tokens` with one run of tokens after the other; an error from it ends the call and is
  // returned. A stream that breaks is resumed after the last run.
  absl::Status ReadTokens(v1::ReadTokensRequest request,
                          absl::FunctionRef<absl::Status(const v1::ReadTokensResponse&)> on_tokens,
                          const CallOptions& options = {});

  // Calls `on_bytes` with one piece of the session's file after the other; an error from it ends
  // the call and is returned. generation 0: whatever the session's is. Returns what the file has of
  // the session; it is whole only then.
  absl::StatusOr<v1::ExportSessionHeader> ExportSession(
      const std::string& session, std::uint64_t generation,
      absl::FunctionRef<absl::Status(std::string_view)> on_bytes, const CallOptions& options = {});
  // Makes a session of the file that `read` reads: from `offset` on, 1 to `most` bytes, none at its
  // end. An error from it ends the call and is returned. A call that is repeated reads the file
  // again from its beginning. An empty request_id is filled in.
  absl::StatusOr<v1::Session> ImportSession(
      v1::ImportSessionHeader header,
      absl::FunctionRef<absl::StatusOr<std::string>(std::int64_t offset, std::int64_t most)> read,
      const CallOptions& options = {});

 private:
  struct Connection;
  explicit Client(std::unique_ptr<Connection> connection);

  std::unique_ptr<Connection> connection_;
};

// A random UUID, for CreateSessionRequest.request_id and ids of sessions.
std::string NewRequestId();

}  // namespace oscarkv
