// A service inside the process, on a free port of the loopback interface, that fails as it is told.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "oscarkv/v1/kv_cache.grpc.pb.h"

namespace oscarkv {

// A status as the server makes them: ErrorInfo, and RetryInfo if `retry` is positive.
inline google::rpc::Status MakeRpcStatus(grpc::StatusCode code, const std::string& reason,
                                         absl::Duration retry = absl::ZeroDuration()) {
  google::rpc::Status status;
  status.set_code(code);
  status.set_message("injected " + reason);
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("oscarkv");
  (*info.mutable_metadata())["field"] = "items[0].session";
  status.add_details()->PackFrom(info);
  if (retry > absl::ZeroDuration()) {
    google::rpc::RetryInfo retry_info;
    retry_info.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(retry));
    retry_info.mutable_retry_delay()->set_nanos(
        static_cast<int>(absl::ToInt64Nanoseconds(retry - absl::Trunc(retry, absl::Seconds(1)))));
    status.add_details()->PackFrom(retry_info);
  }
  return status;
}

inline grpc::Status MakeGrpcStatus(grpc::StatusCode code, const std::string& reason,
                                   absl::Duration retry = absl::ZeroDuration()) {
  const google::rpc::Status status = MakeRpcStatus(code, reason, retry);
  return grpc::Status(code, status.message(), status.SerializeAsString());
}

// Thread-safety: all of it.
class FakeService final : public v1::KvCacheService::Service {
 public:
  FakeService() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~FakeService() override { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

  const std::string& address() const { return address_; }

  // The next `times` calls of a method ("Append") fail with the status.
  void Fail(const std::string& method, int times, const grpc::Status& status) {
    absl::MutexLock lock(&mutex_);
    for (int i = 0; i < times; ++i) failures_[method].push_back(status);
  }
  // The next calls of a method first wait for so long.
  void Delay(const std::string& method, absl::Duration delay) {
    absl::MutexLock lock(&mutex_);
    delays_[method] = delay;
  }
  int calls(const std::string& method) {
    absl::MutexLock lock(&mutex_);
    return calls_[method];
  }
  std::vector<v1::AppendRequest> appends() {
    absl::MutexLock lock(&mutex_);
    return appends_;
  }
  std::vector<std::string> create_request_ids() {
    absl::MutexLock lock(&mutex_);
    return create_request_ids_;
  }
  std::vector<std::string> fork_request_ids() {
    absl::MutexLock lock(&mutex_);
    return fork_request_ids_;
  }
  std::vector<std::string> truncate_request_ids() {
    absl::MutexLock lock(&mutex_);
    return truncate_request_ids_;
  }
  std::vector<v1::ReadTokensRequest> reads() {
    absl::MutexLock lock(&mutex_);
    return reads_;
  }
  std::vector<v1::ImportSessionHeader> import_headers() {
    absl::MutexLock lock(&mutex_);
    return import_headers_;
  }
  // The file of the last ImportSession, and the size of its largest message.
  std::string imported() {
    absl::MutexLock lock(&mutex_);
    return imported_;
  }
  std::size_t largest_piece() {
    absl::MutexLock lock(&mutex_);
    return largest_piece_;
  }
  // ExportSession breaks after so many pieces, once.
  void BreakExportAfter(int pieces) {
    absl::MutexLock lock(&mutex_);
    break_export_after_ = pieces;
  }
  // ReadTokens breaks after so many tokens, once.
  void BreakReadAfter(int tokens) {
    absl::MutexLock lock(&mutex_);
    break_read_after_ = tokens;
  }

  static constexpr int kMaxReceiveBytes = 1 << 20;
  static constexpr int kMaxSendBytes = 2 << 20;

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::GetServerInfoResponse* response) override {
    response->set_version("1.2.3");
    response->set_max_receive_message_bytes(kMaxReceiveBytes);
    response->set_max_send_message_bytes(kMaxSendBytes);
    return Enter("GetServerInfo");
  }
  grpc::Status CreateSession(grpc::ServerContext*, const v1::CreateSessionRequest* request,
                             v1::CreateSessionResponse* response) override {
    {
      absl::MutexLock lock(&mutex_);
      create_request_ids_.push_back(request->request_id());
    }
    response->mutable_session()->set_id(request->session());
    response->mutable_session()->set_generation(7);
    return Enter("CreateSession");
  }
  grpc::Status GetSession(grpc::ServerContext*, const v1::GetSessionRequest* request,
                          v1::GetSessionResponse* response) override {
    response->mutable_session()->set_id(request->session());
    return Enter("GetSession");
  }
  // Three sessions, one a page whatever page size is asked for.
  grpc::Status ListSessions(grpc::ServerContext*, const v1::ListSessionsRequest* request,
                            v1::ListSessionsResponse* response) override {
    const std::string id = request->page_token().empty() ? "a" : request->page_token();
    response->add_sessions()->set_id(id);
    if (id != "c") response->set_next_page_token(std::string(1, static_cast<char>(id[0] + 1)));
    return Enter("ListSessions");
  }
  grpc::Status DeleteSession(grpc::ServerContext*, const v1::DeleteSessionRequest*,
                             v1::DeleteSessionResponse*) override {
    return Enter("DeleteSession");
  }
  grpc::Status ForkSession(grpc::ServerContext*, const v1::ForkSessionRequest* request,
                           v1::ForkSessionResponse* response) override {
    for (const v1::Fork& fork : request->forks()) {
      response->add_results()->mutable_session()->set_id(fork.session());
      absl::MutexLock lock(&mutex_);
      fork_request_ids_.push_back(fork.request_id());
    }
    return Enter("ForkSession");
  }
  grpc::Status TruncateSession(grpc::ServerContext*, const v1::TruncateSessionRequest* request,
                               v1::TruncateSessionResponse* response) override {
    response->mutable_session()->set_id(request->session());
    response->mutable_session()->set_generation(request->generation() + 1);
    {
      absl::MutexLock lock(&mutex_);
      truncate_request_ids_.push_back(request->request_id());
    }
    return Enter("TruncateSession");
  }
  grpc::Status UpdateSession(grpc::ServerContext*, const v1::UpdateSessionRequest* request,
                             v1::UpdateSessionResponse* response) override {
    response->mutable_session()->set_id(request->session());
    return Enter("UpdateSession");
  }
  grpc::Status EvictSession(grpc::ServerContext*, const v1::EvictSessionRequest* request,
                            v1::EvictSessionResponse* response) override {
    response->mutable_session()->set_id(request->session());
    return Enter("EvictSession");
  }
  grpc::Status RestoreSession(grpc::ServerContext*, const v1::RestoreSessionRequest* request,
                              v1::RestoreSessionResponse* response) override {
    response->mutable_session()->set_id(request->session());
    return Enter("RestoreSession");
  }
  grpc::Status CheckpointSession(grpc::ServerContext*, const v1::CheckpointSessionRequest* request,
                                 v1::CheckpointSessionResponse* response) override {
    response->mutable_session()->set_id(request->session());
    return Enter("CheckpointSession");
  }
  grpc::Status Append(grpc::ServerContext*, const v1::AppendRequest* request,
                      v1::AppendResponse* response) override {
    {
      absl::MutexLock lock(&mutex_);
      appends_.push_back(*request);
    }
    Acknowledge(*request, response);
    return Enter("Append");
  }
  grpc::Status Attend(grpc::ServerContext*, const v1::AttendRequest* request,
                      v1::AttendResponse* response) override {
    Acknowledge(*request, response);
    *response->mutable_output() = request->query();
    return Enter("Attend");
  }
  // A request without items fails and the stream goes on; one of layer 13 breaks the stream.
  grpc::Status AppendStream(grpc::ServerContext*,
                            grpc::ServerReaderWriter<v1::AppendStreamResponse,
                                                     v1::AppendStreamRequest>* stream) override {
    for (v1::AppendStreamRequest request; stream->Read(&request);) {
      v1::AppendStreamResponse response;
      if (request.append().layer() == 13) return MakeGrpcStatus(grpc::UNAVAILABLE, "DRAINING");
      if (request.append().items().empty()) {
        *response.mutable_status() = MakeRpcStatus(grpc::INVALID_ARGUMENT, "INVALID_FIELD");
      } else {
        Acknowledge(request.append(), response.mutable_append());
      }
      stream->Write(response);
    }
    return Enter("AppendStream");
  }
  grpc::Status Decode(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::DecodeResponse, v1::DecodeRequest>* stream) override {
    for (v1::DecodeRequest request; stream->Read(&request);) {
      v1::DecodeResponse response;
      Acknowledge(request.attend(), response.mutable_attend());
      *response.mutable_attend()->mutable_output() = request.attend().query();
      stream->Write(response);
    }
    return Enter("Decode");
  }
  // Runs of at most 4 of the layer's 10 tokens, one value each: the token's index.
  grpc::Status ReadTokens(grpc::ServerContext*, const v1::ReadTokensRequest* request,
                          grpc::ServerWriter<v1::ReadTokensResponse>* writer) override {
    int budget = 0;
    {
      absl::MutexLock lock(&mutex_);
      reads_.push_back(*request);
      budget = std::exchange(break_read_after_, 1 << 30);
    }
    const int end =
        request->has_num_tokens() ? static_cast<int>(request->begin() + request->num_tokens()) : 10;
    for (int begin = static_cast<int>(request->begin()); begin < end; begin += 4) {
      if (budget <= 0) return grpc::Status(grpc::UNAVAILABLE, "the connection was lost");
      v1::ReadTokensResponse run;
      run.set_begin(begin);
      run.mutable_key()->add_shape(std::min(4, end - begin));
      writer->Write(run);
      budget -= 4;
    }
    return Enter("ReadTokens");
  }
  // Three pieces: "one", "two", "three".
  grpc::Status ExportSession(grpc::ServerContext*, const v1::ExportSessionRequest* request,
                             grpc::ServerWriter<v1::ExportSessionResponse>* writer) override {
    int budget = 0;
    {
      absl::MutexLock lock(&mutex_);
      budget = std::exchange(break_export_after_, 1 << 30);
    }
    bool first = true;
    for (const char* data : {"one", "two", "three"}) {
      if (budget-- <= 0) {
        Enter("ExportSession");
        return grpc::Status(grpc::UNAVAILABLE, "the connection was lost");
      }
      v1::ExportSessionResponse piece;
      if (std::exchange(first, false)) {
        piece.mutable_header()->set_generation(request->generation());
      }
      piece.set_data(data);
      writer->Write(piece);
    }
    return Enter("ExportSession");
  }
  grpc::Status ImportSession(grpc::ServerContext*,
                             grpc::ServerReader<v1::ImportSessionRequest>* reader,
                             v1::ImportSessionResponse* response) override {
    std::string file;
    std::size_t largest = 0;
    for (v1::ImportSessionRequest request; reader->Read(&request);) {
      if (request.has_header()) {
        response->mutable_session()->set_id(request.header().session());
        absl::MutexLock lock(&mutex_);
        import_headers_.push_back(request.header());
      }
      file += request.data();
      largest = std::max(largest, request.ByteSizeLong());
    }
    {
      absl::MutexLock lock(&mutex_);
      imported_ = file;
      largest_piece_ = largest;
    }
    return Enter("ImportSession");
  }

 private:
  grpc::Status Enter(const std::string& method) {
    absl::Duration delay;
    {
      absl::MutexLock lock(&mutex_);
      delay = delays_[method];
    }
    absl::SleepFor(delay);
    absl::MutexLock lock(&mutex_);
    ++calls_[method];
    auto& failures = failures_[method];
    if (failures.empty()) return grpc::Status::OK;
    grpc::Status status = failures.front();
    failures.erase(failures.begin());
    return status;
  }

  // Items of the session "missing" are not found.
  template <typename Request, typename Response>
  static void Acknowledge(const Request& request, Response* response) {
    for (const v1::Item& item : request.items()) {
      v1::ItemResult& result = *response->add_results();
      if (item.session() == "missing") {
        *result.mutable_status() = MakeRpcStatus(grpc::NOT_FOUND, "SESSION_NOT_FOUND");
        continue;
      }
      result.set_generation(item.generation());
      result.set_length(item.expected_length() + item.num_tokens());
    }
  }

  absl::Mutex mutex_;
  std::map<std::string, std::vector<grpc::Status>> failures_;
  std::map<std::string, absl::Duration> delays_;
  std::map<std::string, int> calls_;
  std::vector<v1::AppendRequest> appends_;
  std::vector<std::string> create_request_ids_;
  std::vector<std::string> fork_request_ids_;
  std::vector<std::string> truncate_request_ids_;
  std::vector<v1::ReadTokensRequest> reads_;
  std::vector<v1::ImportSessionHeader> import_headers_;
  std::string imported_;
  std::size_t largest_piece_ = 0;
  int break_export_after_ = 1 << 30;
  int break_read_after_ = 1 << 30;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace oscarkv
