#include "server/session/session_export.h"

#include <random>
#include <utility>

namespace oscarkv {

absl::StatusOr<std::unique_ptr<SessionExport>> SessionExport::Begin(SessionFields fields,
                                                                    SessionCommit commit,
                                                                    std::shared_ptr<Session> copy,
                                                                    Backend* backend) {
  std::unique_ptr<SessionExport> made(new SessionExport(std::move(commit), std::move(copy)));
  std::random_device device;
  const std::uint64_t file_id = std::uint64_t{device()} << 32 | device();
  absl::StatusOr<std::unique_ptr<SessionFileWriter>> writer =
      SessionFileWriter::Create(std::move(fields), file_id, &made->sink_);
  if (!writer.ok()) return writer.status();
  made->writer_ = *std::move(writer);
  const AloneInGate alone(&made->copy_->gate());
  const std::vector<LayerState*> layers = made->copy_->Layers();
  made->saver_.emplace(std::vector<const LayerState*>(layers.begin(), layers.end()), 0, backend,
                       made->writer_.get());
  return made;
}

absl::StatusOr<std::vector<std::byte>> SessionExport::Next(std::size_t most) {
  while (sink_.collected.size() < most && !saver_->done()) {
    if (absl::Status s = saver_->Step(); !s.ok()) return s;
  }
  if (saver_->done()) {
    saver_.reset();
    absl::Status s = writer_->Commit(commit_, Durability::kWritten);
    copy_.reset();  // its memory is needed no more
    if (!s.ok()) return s;
  }
  return std::exchange(sink_.collected, {});
}

}  // namespace oscarkv
