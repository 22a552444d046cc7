// Exports and imports of sessions, step by step, and what tests of them need.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/clock.h"
#include "tests/e2e/test_server.h"

namespace oscarkv::testing {

// 16 KiB a token, stored as sent: a thousand are more than a connection buffers.
inline constexpr TestModel kWide = {.layers = 1, .query_heads = 16, .kv_heads = 16, .dim = 256};
inline constexpr int kWideTokens = 1000;

inline v1::Session CreateWide(Stub& stub) {
  v1::CreateSessionRequest request = CreateRequest("wide", kWide);
  request.mutable_codec()->set_key_bits(16);
  request.mutable_codec()->set_value_bits(16);
  v1::CreateSessionResponse created;
  const absl::Status s = Call(stub, &Stub::CreateSession, request, created);
  EXPECT_TRUE(s.ok()) << s;
  for (int begin = 0; begin < kWideTokens; begin += 100) {
    Append(stub, AppendRequestOf(kWide, created.session(), 0, begin, 100));
  }
  return created.session();
}

inline v1::Session CreateWith(Stub& stub, const std::string& id, int tokens) {
  const v1::Session session = Create(stub, id);
  for (const int layer : {0, 1}) Append(stub, AppendRequestOf({}, session, layer, 0, tokens));
  return Get(stub, id);
}

inline v1::GetServerInfoResponse Info(Stub& stub) {
  v1::GetServerInfoResponse info;
  const absl::Status s = Call(stub, &Stub::GetServerInfo, v1::GetServerInfoRequest(), info);
  EXPECT_TRUE(s.ok()) << s;
  return info;
}

// The server comes to hold what it held before: that a client has left is noticed in time.
inline void ExpectHoldsAgain(Stub& stub, const v1::GetServerInfoResponse& before) {
  const absl::Time end = absl::Now() + absl::Seconds(30);
  v1::GetServerInfoResponse now = Info(stub);
  const auto same = [&] {
    return now.block_bytes() == before.block_bytes() &&
           now.resident_bytes() == before.resident_bytes() &&
           now.logical_bytes() == before.logical_bytes() && now.sessions() == before.sessions();
  };
  while (!same() && absl::Now() < end) now = Info(stub);
  EXPECT_TRUE(same()) << now.ShortDebugString() << "\nbefore: " << before.ShortDebugString();
}

class Export {
 public:
  Export(Stub& stub, const std::string& session, std::uint64_t generation = 0,
         std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
    if (timeout) context_.set_deadline(std::chrono::system_clock::now() + *timeout);
    v1::ExportSessionRequest request;
    request.set_session(session);
    request.set_generation(generation);
    reader_ = stub.ExportSession(&context_, request);
  }

  // False at the end.
  bool ReadPiece() {
    v1::ExportSessionResponse piece;
    if (!reader_->Read(&piece)) return false;
    EXPECT_EQ(piece.has_header(), file_.empty());
    if (piece.has_header()) header_ = piece.header();
    EXPECT_LE(piece.data().size(), 1u << 20);
    file_ += piece.data();
    return true;
  }
  absl::Status Finish() {
    while (ReadPiece()) {
    }
    return FromGrpcStatus(reader_->Finish());
  }
  void Cancel() { context_.TryCancel(); }

  const std::string& file() const { return file_; }
  const v1::ExportSessionHeader& header() const { return header_; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::ExportSessionResponse>> reader_;
  v1::ExportSessionHeader header_;
  std::string file_;
};

inline std::string FileOf(Stub& stub, const std::string& session) {
  Export whole(stub, session);
  const absl::Status s = whole.Finish();
  EXPECT_TRUE(s.ok()) << s;
  return whole.file();
}

inline v1::ImportSessionHeader Header(const std::string& session,
                                      const std::string& request_id = "r") {
  v1::ImportSessionHeader header;
  header.set_session(session);
  header.set_request_id(request_id);
  return header;
}

class Import {
 public:
  explicit Import(Stub& stub, std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
    if (timeout) context_.set_deadline(std::chrono::system_clock::now() + *timeout);
    writer_ = stub.ImportSession(&context_, &response_);
  }

  // False once the server has ended the call.
  bool Send(const v1::ImportSessionHeader& header) {
    v1::ImportSessionRequest request;
    *request.mutable_header() = header;
    return writer_->Write(request);
  }
  bool Send(std::string_view file, std::size_t piece = 100'000) {
    v1::ImportSessionRequest request;
    for (; !file.empty(); file.remove_prefix(std::min(piece, file.size()))) {
      request.set_data(std::string(file.substr(0, piece)));
      if (!writer_->Write(request)) return false;
    }
    return true;
  }
  bool SendNothing() { return writer_->Write(v1::ImportSessionRequest()); }
  absl::Status Finish() {
    writer_->WritesDone();
    return FromGrpcStatus(writer_->Finish());
  }
  absl::Status WaitForEnd() { return FromGrpcStatus(writer_->Finish()); }
  void Cancel() { context_.TryCancel(); }

  const v1::Session& session() const { return response_.session(); }

 private:
  grpc::ClientContext context_;
  v1::ImportSessionResponse response_;
  std::unique_ptr<grpc::ClientWriter<v1::ImportSessionRequest>> writer_;
};

// `session`, where it is not null, becomes the answer.
inline absl::Status ImportFile(Stub& stub, const v1::ImportSessionHeader& header,
                               std::string_view file, v1::Session* session = nullptr) {
  Import import(stub);
  if (import.Send(header)) import.Send(file);
  absl::Status s = import.Finish();
  if (session != nullptr) *session = import.session();
  return s;
}

}  // namespace oscarkv::testing
