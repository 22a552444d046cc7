#include "server/session/tier_health.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/base/error.h"

namespace oscarkv {
namespace {

std::string Seconds(std::chrono::steady_clock::duration duration) {
  return absl::StrCat(std::chrono::duration_cast<std::chrono::seconds>(duration).count(), " s");
}

bool TellsOfFiles(const absl::Status& status) {
  const auto details = DetailsOf(status);
  return !details || (details->reason != "OUT_OF_MEMORY" && details->reason != "SESSION_NOT_FOUND");
}

}  // namespace

void TierHealth::NotePass(const absl::Status& status) {
  MutexLock lock(&mutex_);
  failed_passes_ = status.ok() ? 0 : failed_passes_ + 1;
  pass_error_ = status;
}

void TierHealth::NoteWrite(const absl::Status& status, Time now) {
  if (!status.ok() && !TellsOfFiles(status)) return;
  MutexLock lock(&mutex_);
  if (!status.ok() && failed_writes_ == 0) failing_since_ = now;
  failed_writes_ = status.ok() ? 0 : failed_writes_ + 1;
  write_error_ = status;
}

void TierHealth::NoteAllWritten() {
  MutexLock lock(&mutex_);
  failed_writes_ = 0;
}

absl::Status TierHealth::Check(Time now) const {
  const Time last = heartbeat_.last();
  if (last != Time() && now - last >= absl::ToChronoNanoseconds(stalled_after_)) {
    return absl::UnavailableError(
        absl::StrCat("the thread that writes sessions to their files has stood still for ",
                     Seconds(now - last), "; what is appended is in memory alone"));
  }
  MutexLock lock(&mutex_);
  if (failed_passes_ >= kPassesInARow) {
    return absl::UnavailableError(
        absl::StrCat("writing sessions to their files failed ", failed_passes_,
                     " times in a row, the last time: ", pass_error_.message()));
  }
  if (failed_writes_ >= kWritesInARow ||
      (failed_writes_ > 0 && now - failing_since_ >= kUnwrittenFor)) {
    return absl::UnavailableError(absl::StrCat("no session could be written to its file for ",
                                               Seconds(now - failing_since_), " (", failed_writes_,
                                               failed_writes_ == 1 ? " try" : " tries",
                                               "), the last time: ", write_error_.message()));
  }
  return absl::OkStatus();
}

}  // namespace oscarkv
