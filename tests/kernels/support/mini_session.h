// The least that makes a session of a backend: blocks, lazy sealing, the query sample. So backends
// can be tested as they are used, without the server.
//
// Thread-safety: none; different sessions may be used at once.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kernels/api/backend.h"
#include "kernels/codec/oracle.h"

namespace oscarkv::testing {

class MiniSession {
 public:
  MiniSession(Backend& backend, LayerSpec spec);
  ~MiniSession();
  MiniSession(const MiniSession&) = delete;
  MiniSession& operator=(const MiniSession&) = delete;

  // One step's tokens, as fp32. Pages that are due by now are sealed first.
  void Append(std::span<const float> keys, std::span<const float> values);
  // Queries of tokens from `position` on: those that belong to the sample are kept.
  void Sample(std::int64_t position, std::span<const float> queries);
  // Seals every page [b, b + 128) with b + 128 + window <= length.
  void Seal();
  // Keeps the first `length` tokens. Those of a page that is cut stay as they are.
  void Truncate(std::int64_t length);

  const LayerSpec& spec() const { return spec_; }
  std::int64_t length() const { return length_; }
  std::int64_t window_begin() const { return window_begin_; }
  std::span<const PageRef> pages() const { return pages_; }
  const std::vector<SealedHead>& sealed_heads() const { return sealed_heads_; }
  float norm_imbalance() const { return norm_imbalance_; }
  LayerView View() const;  // valid until the next change
  std::vector<std::byte> PageBytes(int page) const;

  // All tokens as they were stored; as the cache holds them, decoded by the oracle.
  const oracle::Tokens& Exact() const { return exact_; }
  oracle::Tokens Decoded() const;

 private:
  void AppendToBlock(BlockId block, int capacity, std::int64_t slot, std::int64_t row, int tokens,
                     std::span<const float> keys, std::span<const float> values);
  void SealOldest();

  Backend& backend_;
  const LayerSpec spec_;
  BlockId sinks_ = kNoBlock;
  std::vector<PageRef> pages_;
  std::span<const PageRef> run_;  // pages_, as a view has them
  std::vector<BlockId> window_;
  std::int64_t window_begin_;
  std::int64_t length_ = 0;
  std::map<std::int64_t, std::vector<std::uint16_t>> sample_;  // by position
  std::vector<float> directions_;
  std::vector<SealedHead> sealed_heads_;  // of the last page
  float norm_imbalance_ = 0;
  oracle::Tokens exact_;
};

}  // namespace oscarkv::testing
