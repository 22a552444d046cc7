// Calls of any method with bytes for messages, on one thread, at the least cost that gRPC's
// asynchronous interface allows.
//
// Thread-safety: none.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace oscarkv::bench {

inline grpc::ByteBuffer ToBytes(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

template <typename Message>
Message FromBytes(const grpc::ByteBuffer& bytes) {
  Message message;
  grpc::Slice slice;
  if (bytes.DumpToSingleSlice(&slice).ok()) {
    message.ParseFromArray(slice.begin(), static_cast<int>(slice.size()));
  }
  return message;
}

inline void Require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

class RawUnary {
 public:
  RawUnary(const std::shared_ptr<grpc::Channel>& channel, std::string method)
      : stub_(channel), method_(std::move(method)) {}

  grpc::ByteBuffer Call(const std::string& request) {
    grpc::ClientContext context;
    const auto call = stub_.PrepareUnaryCall(&context, method_, ToBytes(request), &queue_);
    call->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    call->Finish(&reply, &status, this);
    void* tag = nullptr;
    bool ok = false;
    Require(queue_.Next(&tag, &ok) && ok && status.ok(), method_.c_str());
    return reply;
  }

 private:
  grpc::GenericStub stub_;
  const std::string method_;
  grpc::CompletionQueue queue_;
};

class RawStream {
 public:
  RawStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method)
      : stub_(channel), call_(stub_.PrepareCall(&context_, method, &queue_)) {
    call_->StartCall(this);
    Wait();
  }
  ~RawStream() {
    call_->WritesDone(this);
    Wait();
    grpc::Status status;
    call_->Finish(&status, this);
    Wait();
  }

  grpc::ByteBuffer Exchange(const std::string& request) {
    grpc::ByteBuffer reply;
    call_->Read(&reply, this);
    call_->Write(ToBytes(request), this);
    Wait();
    Wait();
    return reply;
  }

 private:
  void Wait() {
    void* tag = nullptr;
    bool ok = false;
    Require(queue_.Next(&tag, &ok) && ok, "exchange of a stream");
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

}  // namespace oscarkv::bench
