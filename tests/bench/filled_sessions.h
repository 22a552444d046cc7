// Sessions of one layer with a context that was decoded for long: sinks, sealed pages, and a window
// that is sealed lazily, as the server keeps them (server/session/INVARIANTS.md). Few pages are
// truly sealed; the others are copies of them in memory of their own, so that a context of any
// length is quick to make and slow to read.
//
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/api/backend.h"

namespace oscarkv::bench {

// How a context lies, when its last `step` tokens came in one request.
struct ContextShape {
  ContextShape(const LayerSpec& spec, std::int64_t context, std::int64_t step);

  std::int64_t pages;
  std::int64_t window_tokens;
  std::int64_t bytes;  // that attention over the whole context has to read
};

class FilledSessions {
 public:
  // `count` sessions of `context` tokens each. Errors of the backend are in status().
  // REQUIRES: backend outlives this; spec.storage is bf16; spec.codec.sinks + step <= context.
  FilledSessions(Backend& backend, LayerSpec spec, std::int64_t context, std::int64_t step,
                 int count);
  ~FilledSessions();
  FilledSessions(const FilledSessions&) = delete;
  FilledSessions& operator=(const FilledSessions&) = delete;

  const KernelStatus& status() const { return status_; }
  const LayerSpec& spec() const { return spec_; }
  int count() const { return static_cast<int>(sessions_.size()); }
  LayerView View(int session) const;

 private:
  struct Session {
    BlockId sinks = kNoBlock;
    std::vector<PageRef> pages;
    std::span<const PageRef> page_run;  // pages, as a view has them
    std::vector<BlockId> window;
  };

  KernelStatus MakeTemplate();
  KernelStatus SealTemplatePages(const std::vector<std::uint16_t>& keys,
                                 const std::vector<std::uint16_t>& values);
  KernelStatus AddSession();
  KernelStatus Allocate(std::int64_t bytes, std::vector<BlockId>& blocks);

  Backend& backend_;
  const LayerSpec spec_;
  const std::int64_t context_;
  const ContextShape shape_;
  std::vector<BlockId> template_sinks_;
  std::vector<BlockId> template_pages_;
  std::vector<BlockId> template_window_;
  std::vector<float> directions_;
  KernelStatus status_;
  std::vector<Session> sessions_;
};

}  // namespace oscarkv::bench
