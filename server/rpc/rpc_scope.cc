#include "server/rpc/rpc_scope.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/base/error.h"
#include "server/base/string_view.h"
#include "server/log.h"
#include "server/rpc/fields.h"

namespace oscarkv {
namespace {

absl::Status Guarded(absl::FunctionRef<absl::Status()> work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return MakeError(absl::StatusCode::kResourceExhausted, "no memory for the request",
                     {.reason = "OUT_OF_MEMORY", .retry_after = absl::Seconds(1)});
  } catch (const std::exception& exception) {
    return MakeError(absl::StatusCode::kInternal, exception.what(), {.reason = "INTERNAL"});
  }
}

LogLevel LevelOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return LogLevel::kDebug;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return LogLevel::kError;
    default:
      return LogLevel::kInfo;
  }
}

std::string Milliseconds(absl::Duration duration) {
  return absl::StrCat(absl::ToDoubleMilliseconds(duration));
}

}  // namespace

RpcScope::RpcScope(WorkQueue& queue, const char* method, const grpc::CallbackServerContext* context)
    : method_(method), context_(context), arrived_(absl::Now()) {
  absl::StatusOr<WorkQueue::Ticket> ticket = queue.Admit();
  if (ticket.ok()) {
    ticket_ = *std::move(ticket);
  } else {
    status_ = ticket.status();
  }
}

RpcScope::~RpcScope() {
  const LogLevel level = LevelOf(status_);
  if (!LogEnabled(level)) return;
  const absl::Time now = absl::Now();
  const absl::Time ended = std::min(ended_, now);
  const absl::Time began = std::min(began_, ended);  // some end before they are taken
  Log(level, "rpc",
      {{"method", method_},
       {"code", absl::StatusCodeToString(status_.code())},
       {"error", SafeText(ToStd(status_.message()), 1024)},
       {"request_id", request_id_},
       {"peer", context_->peer()},
       {"queued_ms", Milliseconds(began - arrived_)},
       {"work_ms", Milliseconds(ended - began)},
       {"reply_ms", Milliseconds(now - ended)}});
}

bool RpcScope::IsGivenUp() const {
  return std::chrono::system_clock::now() >= context_->deadline() || context_->IsCancelled();
}

absl::Status RpcScope::GivenUpError() const {
  if (std::chrono::system_clock::now() >= context_->deadline()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded,
                     "the deadline passed before the work began", {.reason = "DEADLINE_EXCEEDED"});
  }
  return MakeError(absl::StatusCode::kCancelled, "the client cancelled before the work began",
                   {.reason = "CANCELLED"});
}

void RpcScope::Drop(WhyDropped why) {
  Guard([this, why]() -> absl::Status {
    if (why == WhyDropped::kNoMemory) throw std::bad_alloc();
    return GivenUpError();
  }).IgnoreError();
}

bool RpcScope::Submit(Work* work) {
  return Queue([&] { return ticket_.Submit(work); });
}

bool RpcScope::Resume(Work* work) {
  return Queue([&] {
    ticket_.Resume(work);
    return absl::OkStatus();
  });
}

bool RpcScope::Queue(absl::FunctionRef<absl::Status()> submit) {
  absl::Status status = Guarded(submit);
  if (status.ok()) return true;  // another thread has the scope
  status_ = std::move(status);
  return false;
}

absl::Status RpcScope::Take() {
  ended_ = absl::Now();
  began_ = std::min(began_, ended_);
  status_ = Guarded([this] { return IsGivenUp() ? GivenUpError() : absl::OkStatus(); });
  return status_;
}

absl::Status RpcScope::Guard(absl::FunctionRef<absl::Status()> step) {
  status_ = Guarded(step);
  ended_ = absl::Now();
  return status_;
}

absl::Status RpcScope::Run(absl::FunctionRef<absl::Status()> work) {
  if (!Take().ok()) return status_;
  return Guard(work);
}

void RpcScope::set_request_id(std::string_view id) { request_id_ = SafeText(id); }

}  // namespace oscarkv
