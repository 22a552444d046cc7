// What was done to a layer, as a model of a store remembers it: its tokens follow from it, and who
// does the same to a layer of its own gets the very same layer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace oscarkv {

struct LayerEvent {
  enum class Kind : std::uint8_t { kAppend, kAttend, kTruncate, kSettle };
  Kind kind = Kind::kAppend;
  std::int64_t begin = 0;    // truncate: the length left
  std::int32_t count = 0;    // tokens
  std::int32_t queries = 0;  // append: 1 with those of the sample; attend: how many
  std::uint64_t seed = 0;    // of the tokens
};

// A value: copies are cheap and share what they have in common.
class LayerHistory {
 public:
  struct LastAppend {
    std::int64_t begin = 0;
    std::int32_t count = 0;
    std::uint64_t seed = 0;
  };

  std::int64_t length() const { return length_; }
  // Since the layer was empty.
  int events() const { return events_; }
  const std::optional<LastAppend>& last() const { return last_; }
  // Truncates to here and beyond lose nothing.
  std::int64_t free_limit() const { return free_limit_; }
  // Tokens from here on are in 16 bits.
  std::int64_t coded_limit() const { return coded_limit_; }
  bool SameAs(const LayerHistory& other) const {
    return newest_ == other.newest_ && length_ == other.length_ &&
           last_.has_value() == other.last_.has_value();
  }

  // Of the token at `position`, which may be one to come; and where tokens of another seed begin.
  std::uint64_t SeedAt(std::int64_t position) const;
  std::int64_t SeedEnd(std::int64_t position) const;
  // Tokens to come from `begin` on have this seed.
  void SetSeed(std::int64_t begin, std::uint64_t seed);

  // The next tokens, or queries alone, of a layer with such a window.
  void Add(const LayerEvent& event, std::int64_t window, std::int64_t rollback_tokens);
  void Settle(std::int64_t rollback_tokens);
  // Tokens to come have the seed `next`.
  void Truncate(std::int64_t length, std::uint64_t next);
  // Where what was last appended is not known for certain.
  void ForgetLast() { last_.reset(); }

  // The oldest first.
  std::vector<LayerEvent> Events() const;

 private:
  struct Node {
    std::shared_ptr<const Node> before;
    LayerEvent event;
  };
  struct Run {
    std::int64_t begin = 0;
    std::uint64_t seed = 0;
  };

  void Push(const LayerEvent& event);
  void NoteFreed(std::int64_t rollback_tokens);

  std::shared_ptr<const Node> newest_;
  int events_ = 0;
  std::int64_t length_ = 0;
  std::optional<LastAppend> last_;
  std::int64_t free_limit_ = 0;
  std::int64_t coded_limit_ = 0;
  std::vector<Run> runs_;  // ascending
};

}  // namespace oscarkv
