#include "server/rpc/import_session_stream.h"

#include <utility>

#include "server/rpc/calls.h"
#include "server/rpc/limits.h"
#include "server/rpc/wire.h"

namespace oscarkv {

void ImportSessionStream::Process(bool more) {
  const bool first = !scope_.has_value();
  if (first) NewScope();
  more_ = more;
  if (scope_->status().ok() && scope_->IsGivenUp()) scope_->Drop(WhyDropped::kGivenUp);
  if (scope_->status().ok()) scope_->Guard([&] { return Prepare(first); }).IgnoreError();
  if (scope_->status().ok() && (first ? scope_->Submit(this) : scope_->Resume(this))) return;
  FinishWith(scope_->status());
}

absl::Status ImportSessionStream::Prepare(bool first) {
  const auto kib = static_cast<std::int64_t>(request_.Valid() ? request_.Length() >> 10 : 0);
  if (more_) {
    if (absl::Status s = ParseMessage(request_, message_); !s.ok()) return s;
  }
  if (first && message_.has_header()) {
    scope_->set_request_id(message_.header().request_id());
    tenant_ = TenantOf(handlers_, message_.header());
  }
  // Its KiB, and something for the making of the session.
  set_facts({.tenant = tenant_, .cost = kib + 64});
  return absl::OkStatus();
}

void ImportSessionStream::Run() {
  const absl::Status status = scope_->Run([this] { return Step(); });
  if (!status.ok() || !more_) return FinishWith(status);
  scope_->EndWork();  // a client that sends slowly keeps no one else waiting
  ReadNext();
}

absl::Status ImportSessionStream::Step() {
  if (more_) {
    absl::Status status = importer_->Take(message_);
    message_.Clear();
    return status;
  }
  v1::ImportSessionResponse response;
  if (absl::Status s = importer_->Finish(response); !s.ok()) return s;
  return SerializeMessage(response, handlers_.facts().max_message_bytes, reply_);
}

void ImportSessionStream::Drop(WhyDropped why) {
  scope_->Drop(why);
  FinishWith(scope_->status());
}

void ImportSessionStream::Release(const absl::Status& status) {
  importer_.reset();
  message_.Clear();
  if (!scope_.has_value()) return;
  scope_->Guard([&] { return status; }).IgnoreError();
  scope_->EndWork();
}

}  // namespace oscarkv
