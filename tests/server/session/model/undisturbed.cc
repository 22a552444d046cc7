#include "tests/server/session/model/undisturbed.h"

#include <algorithm>
#include <vector>

#include "kernels/backend_factory.h"

namespace oscarkv {

Source SourceOf(const SessionConfig& config, std::size_t layer, std::uint64_t seed) {
  const LayerSpec& spec = config.layers[layer];
  return {.spec = &spec, .seed = seed * kModelLayers + static_cast<std::uint64_t>(spec.layer)};
}

Request RequestOf(const LayerEvent& event, const Source& source, const std::string& session,
                  std::uint64_t generation) {
  if (event.kind == LayerEvent::Kind::kAttend) {
    return AttendRequest(session, generation, source, event.begin, event.count, event.queries);
  }
  return AppendRequest(session, generation, source, event.begin, event.count, event.queries > 0);
}

Undisturbed::Undisturbed() {
  BackendResult made = MakeBackend({.kind = BackendKind::kCpu, .threads = 1});
  EXPECT_TRUE(made.status.ok()) << made.status.message;
  backend_ = std::move(made.backend);
  store_ = std::make_unique<SessionStore>(backend_.get(),
                                          StoreOptions{.memory_budget_bytes = std::int64_t{1} << 30,
                                                       .settle_after = absl::InfiniteDuration(),
                                                       .prepared_pages = 0});
}

void Undisturbed::Replay(const ModelShape& shape, std::size_t layer, const LayerHistory& history) {
  (void)store_->Delete("o", 0);
  config_ = ModelConfig(shape);
  config_.layers = {config_.layers[layer]};
  config_.value_folded = {false};
  config_.id = "o";
  config_.prefix_keys = {};
  config_.rollback_tokens = kPositionLimit;
  layer_ = layer;
  generation_ = store_->Create(config_)->generation;
  for (const LayerEvent& event : history.Events()) {
    switch (event.kind) {
      case LayerEvent::Kind::kTruncate: {
        const auto info = store_->Truncate(
            "o", "", generation_, std::min(event.begin, store_->Get("o")->layers[0].length));
        ASSERT_TRUE(info.ok()) << info.status();
        generation_ = info->generation;
        break;
      }
      case LayerEvent::Kind::kSettle:
        store_->Settle();
        break;
      default: {
        Request request = RequestOf(event, SourceOf(config_, 0, event.seed), "o", generation_);
        const int id = config_.layers[0].layer;
        const absl::Status s = event.kind == LayerEvent::Kind::kAttend
                                   ? oscarkv::Attend(store_.get(), id, &request)
                                   : Append(store_.get(), id, &request);
        ASSERT_TRUE(s.ok()) << s;
        ASSERT_FALSE(request.item.repeated);
      }
    }
  }
  ASSERT_EQ(store_->Get("o")->committed_length, history.length());
}

absl::Status Undisturbed::Attend(const LayerEvent& event, std::uint64_t seed, Request* request) {
  *request = RequestOf(event, SourceOf(config_, 0, seed), "o", generation_);
  return oscarkv::Attend(store_.get(), config_.layers[0].layer, request);
}

::testing::AssertionResult Undisturbed::IsLike(const SessionStore& store,
                                               const std::string& session) const {
  absl::StatusOr<Tokens> tokens = ReadAll(store, session, layer_);
  // Where others move it meanwhile.
  for (int i = 0; i < 100 && absl::IsUnavailable(tokens.status()); ++i) {
    tokens = ReadAll(store, session, layer_);
  }
  if (!tokens.ok()) return ::testing::AssertionFailure() << tokens.status();
  const LayerStats expected = store_->Get("o")->layers[0];
  const absl::StatusOr<SessionInfo> info = store.Get(session);
  if (!info.ok()) return ::testing::AssertionFailure() << info.status();
  const LayerStats& stats = info->layers[layer_];
  const auto differs = [&](const char* what, std::int64_t is, std::int64_t should) {
    return ::testing::AssertionFailure() << session << ", layer " << layer_ << ": " << what
                                         << " is " << is << ", undisturbed " << should;
  };
  if (stats.length != expected.length) return differs("length", stats.length, expected.length);
  const bool seals = config_.layers[0].seals();
  const std::int64_t freed = seals ? stats.kept_from : 0;
  if (stats.sealed_tokens + freed != expected.sealed_tokens) {
    return differs("sealed_tokens", stats.sealed_tokens, expected.sealed_tokens - freed);
  }
  if (!info->evicted && seals && stats.window_bytes != expected.window_bytes) {
    return differs("window_bytes", stats.window_bytes, expected.window_bytes);
  }
  if (stats.kept_from == 0) {
    if (stats.pages_sealed_without_queries != expected.pages_sealed_without_queries) {
      return differs("pages_sealed_without_queries", stats.pages_sealed_without_queries,
                     expected.pages_sealed_without_queries);
    }
    if (!info->evicted && stats.page_bytes != expected.page_bytes) {
      return differs("page_bytes", stats.page_bytes, expected.page_bytes);
    }
  }
  Tokens should = *ReadAll(*store_, "o", 0);
  for (std::vector<std::uint16_t>* rows : {&should.keys, &should.values}) {
    std::fill_n(rows->begin(), stats.kept_from * config_.layers[0].key_dim, 0);
  }
  if (!(*tokens == should)) {
    return ::testing::AssertionFailure() << session << ", layer " << layer_ << ": other tokens";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace oscarkv
