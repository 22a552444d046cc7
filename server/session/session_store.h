// All sessions of a server, and what can be done to them. Knows neither gRPC nor protobuf.
//
// Thread-safety: all functions may be called at once. Appends to one layer of a session are
// ordered; different layers and different sessions go in parallel; truncate and delete wait for
// requests under way on the session and keep new ones waiting.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/api/backend.h"
#include "kernels/api/layer_spec.h"
#include "server/base/duration_histogram.h"
#include "server/file/durability.h"
#include "server/pages/memory_budget.h"
#include "server/session/eviction_policy.h"
#include "server/session/retention.h"
#include "server/session/tenant_quotas.h"

namespace oscarkv {

// Positions and lengths that clients name are at most this: no sum of a few of them overflows.
inline constexpr std::int64_t kPositionLimit = std::int64_t{1} << 48;

// See SessionConfig::rollback_tokens.
inline constexpr std::int64_t kDefaultRollbackTokens = 256;

// A name that the worker gives to the first `length` tokens of a session: the same for the same
// tokens, as a hash of the chain of their ids is. 8 to 64 bytes.
struct PrefixKey {
  std::int64_t length = 0;
  std::string key;

  friend bool operator==(const PrefixKey&, const PrefixKey&) = default;
};

// Fixed at create.
struct SessionConfig {
  std::string id;
  std::string request_id;
  std::string content_digest;  // of the create request: equal for a repeat
  std::string tenant;
  std::string group;
  std::string model;
  std::string model_revision;
  std::string rope_digest;
  DType storage = DType::kBF16;
  std::int64_t position_base = 0;
  // How many tokens a truncate may drop whatever is appended: layers with a sliding window keep
  // what is seen from there.
  std::int64_t rollback_tokens = kDefaultRollbackTokens;
  std::vector<LayerSpec> layers;       // validated, defaults filled in, in the order of their ids
  std::vector<bool> value_folded;      // [layers]: the worker rotated the values; only told back
  std::vector<PrefixKey> prefix_keys;  // by length; a fork has none

  // Where in `layers` the layer of that id is.
  std::optional<std::size_t> IndexOf(int layer) const;
};

struct LayerStats {
  int layer = 0;
  std::int64_t length = 0;
  std::int64_t kept_from = 0;            // as LayerState's
  std::int64_t min_truncate_length = 0;  // as LayerState's
  std::int64_t sealed_tokens = 0;
  std::int64_t window_begin = 0;  // where the next page will begin
  std::int64_t window_room = 0;   // for tokens, in the window's last block
  std::int64_t due_pages = 0;     // that the next append seals; without those that are sealed ahead
  std::int64_t pages_sealed_without_queries = 0;
  std::int64_t logical_bytes = 0;  // of the tokens that are there
  std::int64_t page_bytes = 0;
  std::int64_t window_bytes = 0;    // sinks, window, query samples, residual directions
  std::int64_t prepared_bytes = 0;  // pages that are sealed ahead, copies of queries for that
  // Of whole pages: page_bytes * 8 over the keys and values of kPageTokens tokens a page, also
  // where a truncate has left a page with fewer. 0 without pages.
  double bits_per_value = 0;
};

struct SessionInfo {
  std::shared_ptr<const SessionConfig> config;
  std::uint64_t generation = 0;
  absl::Time create_time;
  Retention retention;
  std::vector<LayerStats> layers;  // in the order of config->layers
  std::int64_t committed_length = 0;
  std::int64_t min_truncate_length = 0;  // the largest of all layers
  std::int64_t reused_length = 0;        // that it began with, by a prefix key or its parent
  // Of the last checkpoint; 0 without one. What a restart finds, and maybe more on some layers.
  std::int64_t durable_length = 0;
  bool evicted = false;  // to its file: the next request that needs its tokens brings them back
  std::int64_t logical_bytes = 0;
  std::int64_t resident_bytes = 0;  // of the layers: page, window and prepared bytes
};

struct StoreTotals {
  std::int64_t sessions = 0;
  std::int64_t budget_bytes = 0;
  // Of what the budget counts: the sessions' resident bytes, and what each session takes before
  // its first token.
  std::int64_t resident_bytes = 0;
  std::array<std::int64_t, kMemoryKinds> resident_bytes_of = {};  // by MemoryKind
  std::int64_t logical_bytes = 0;
  // As the backend counts them: of blocks, and of the memory that it holds for them.
  std::int64_t block_bytes = 0;
  std::int64_t held_bytes = 0;
  std::int64_t evicted_sessions = 0;
  // Committed lengths, of the sessions in memory and of those that are evicted.
  std::int64_t tokens = 0;
  std::int64_t evicted_tokens = 0;
  std::int64_t pages_sealed_without_queries = 0;
  // How long the oldest change has waited to be in a file. 0: none waits, or there are no files.
  absl::Duration checkpoint_lag = absl::ZeroDuration();
  std::int64_t evictions = 0;  // these count from the start of the store
  std::int64_t restores = 0;
  std::int64_t checkpoints = 0;
  std::int64_t eviction_failures = 0;
  std::int64_t restore_failures = 0;
  std::int64_t checkpoint_failures = 0;
  std::int64_t tier_failures = 0;  // evictions and checkpoints that failed
  DurationCounts eviction_times;   // of those that did not fail
  DurationCounts restore_times;
  DurationCounts checkpoint_times;
  std::int64_t expired_sessions = 0;        // deleted: nobody used them for their time to live
  std::int64_t dropped_sessions = 0;        // deleted to make room, or for a quota
  std::int64_t restores_within_minute = 0;  // of the session's eviction
  std::int64_t file_written_bytes = 0;      // by evictions and checkpoints
  std::int64_t file_read_bytes = 0;         // by restores
  std::int64_t passes = 0;                  // over all sessions, in the background
  std::int64_t failed_passes = 0;
  std::int64_t settle_failures = 0;  // layers that could not be sealed when it was tried
  std::int64_t pages_prepared = 0;   // sealed ahead of the append that needs them
  std::int64_t prepare_failures = 0;
};

// Rows of a tensor that the caller keeps alive during the call. Packed, any alignment, finite.
struct Rows {
  DType dtype = DType::kBF16;
  int heads = 0;
  int dim = 0;
  const void* data = nullptr;  // [rows][heads][dim]
};

struct AttendOptions {
  bool causal = true;
  bool count_sink_logits = true;
};

// One session's part of a batch: what is asked, then what became of it. An item applies whole or
// not at all.
struct BatchItem {
  std::string_view session;
  int layer = 0;
  // By what the caller sized outputs and checked rows; null: not checked. A session of that id that
  // was made since has another one: then the item is refused with GENERATION_MISMATCH, and nothing
  // is touched, the outputs neither.
  std::shared_ptr<const SessionConfig> config;
  std::uint64_t generation = 0;
  std::optional<std::int64_t> expected_length;  // set where num_tokens > 0

  std::int32_t num_tokens = 0;
  Rows keys;    // [num_tokens]
  Rows values;  // [num_tokens]
  // As AppendRecord::crc of keys and values; unset: found where the item is applied.
  std::optional<std::uint32_t> crc;

  std::int32_t num_queries = 0;
  Rows queries;                             // [num_queries]
  std::optional<std::int64_t> query_start;  // absolute position (with position_base)
  std::int32_t query_stride = 0;            // append only; 0: 1
  AttendOptions options;                    // attend only

  // Attend only: [num_queries][query_heads][value_dim] and [num_queries][query_heads]; written only
  // if the item succeeds, or 0 and -inf where the backend failed. REQUIRES: sized by the shape of
  // the layer in `config`.
  float* outputs = nullptr;
  float* log_sum_exps = nullptr;

  absl::Status status;
  std::uint64_t generation_after = 0;  // 0: no such session
  std::int64_t length_after = 0;
  bool repeated = false;
  // The item failed because a call of the backend did, which served other items too: alone it may
  // succeed.
  bool call_failed = false;
  bool over_quota = false;  // refused by its tenant's quota
};

// The tokens of a session that another one is created with.
struct ParentPrefix {
  std::string session;
  std::uint64_t generation = 0;                       // 0: any
  std::optional<std::int64_t> length = std::nullopt;  // default: the session's committed length
};

// A session to be made as another one is up to a length: what is asked, then what became of it.
struct ForkItem {
  std::string source;
  std::uint64_t generation = 0;  // of the source
  std::optional<std::int64_t>
      length;              // at most the source's committed length, which is the default
  std::string session;     // id of the fork
  std::string request_id;  // as SessionConfig::request_id
  // A session of that id ends and the fork takes its place.
  bool replace = false;

  absl::Status status;
  SessionInfo info;  // where status is OK
};

// CRC-32C of the item's keys, then of its values; 0 without tokens.
std::uint32_t CrcOf(const BatchItem& item);

class DataDir;

// What was found in a data directory.
struct RecoveryReport {
  std::int64_t sessions = 0;
  std::vector<std::string> remarks;  // a line for each file that is no session, or was cut off
};

struct StoreOptions {
  std::int64_t memory_budget_bytes = 0;  // of all blocks, and of the sessions themselves; > 0
  // Of idleness; then finished steps are sealed. A step's repeats and queries over it must come
  // within this time to meet the very state of its first try; later they are answered too, from
  // pages that may have been sealed meanwhile, within their quantization error.
  absl::Duration settle_after = absl::Seconds(60);
  // How many pages of a layer are sealed in the background before the append that needs them
  // sealed, which seals the others; 0: none.
  int prepared_pages = 4;
  // A session with a step under way is not evicted, and keeps the memory that it took for it, for
  // so long after the last append.
  absl::Duration step_lease = absl::Seconds(10);
  std::uint64_t first_generation = 1;  // generations never repeat over restarts

  // Where sessions are kept beside memory; null: nowhere, and a full budget refuses. The sessions
  // that are there already are the store's, with new generations. REQUIRES: outlives the store.
  DataDir* data_dir = nullptr;
  // Of what is written there.
  Durability durability = Durability::kSynced;
  // How long what has changed waits for its checkpoint, about. > 0; infinite: until it is evicted.
  absl::Duration checkpoint_interval = absl::Seconds(60);
  // A session is checkpointed sooner, within about a second, once so many tokens have come on its
  // committed length since its last checkpoint was tried; 0: by time alone.
  std::int64_t checkpoint_tokens = 0;
  // Of the budget: from the high one on, sessions move to their files, the least recently used
  // first, until the low one. 0 < low_watermark <= high_watermark <= 1.
  double low_watermark = 0.85;
  double high_watermark = 0.95;
  // Without a directory, where memory is full: sessions are deleted as if moved to files; else what
  // needs more is refused.
  bool drop_when_full = false;
  // A tenant at its quota gets no more memory for tokens, unless sessions of its own make room, as
  // they do where memory is full. Requests under way may overshoot it.
  TenantQuotas quotas = {};
  // Told of each session that is deleted for one of these, or because its time to live has passed;
  // as on_tier_failure is.
  std::function<void(std::string_view session, EvictionReason reason)> on_dropped = nullptr;
  // How long the thread that keeps files up to date may stand still before Health tells.
  absl::Duration stalled_after = absl::Minutes(2);
  // Told of each checkpoint and eviction that fails, and with "" for the session of other failures
  // of the background; from any thread, with locks held: must not call the store. Null: no one.
  std::function<void(std::string_view session, const absl::Status& status)> on_tier_failure =
      nullptr;
};

// See server/session/session_export.h and session_import.h.
class SessionExport;
class SessionImport;

// What an import makes of a file.
struct ImportOptions {
  std::string session;  // id; "": the file's
  std::string request_id;
  std::optional<std::string> tenant;  // not set: the file's
  // Where set, the file must have the same.
  std::optional<std::string> model;
  std::optional<std::string> model_revision;
  std::optional<std::string> rope_digest;
  std::optional<Retention> retention = std::nullopt;  // not set: the file's
};

class SessionStore {
 public:
  // REQUIRES: backend outlives the store.
  SessionStore(Backend* backend, const StoreOptions& options);
  ~SessionStore();
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  // ALREADY_EXISTS unless the id is new, or request_id and content_digest are those of before;
  // RESOURCE_EXHAUSTED if the budget has no room for the session itself. The session is empty, or a
  // fork of one of the same tenant, model and layers that has the longest prefix of those that both
  // have a key for.
  // `parent`: it is a fork of that one instead. NOT_FOUND if there is none of the tenant's,
  // INVALID_ARGUMENT if it is of another model or other layers, or errors as ForkItem's: then there
  // is no session.
  absl::StatusOr<SessionInfo> Create(SessionConfig config, const Retention& retention = {},
                                     const std::optional<ParentPrefix>& parent = std::nullopt);
  absl::StatusOr<SessionInfo> Get(std::string_view id) const;
  // One of its layers, as Get tells; nullopt if there is no such session or layer.
  std::optional<LayerStats> StatsOf(std::string_view id, int layer) const;
  // Sessions with id > `after` in the order of ids, at most `limit`, of one tenant if given.
  std::vector<SessionInfo> List(std::string_view after, int limit,
                                std::optional<std::string_view> tenant) const;
  // generation 0: any.
  absl::Status Delete(std::string_view id, std::uint64_t generation);
  // Drops tokens at positions >= length and begins a new generation. FAILED_PRECONDITION for
  // lengths below min_truncate_length, but for 0. A repeat of the session's last truncate (the same
  // request_id, not empty, with the generation and length of then) changes nothing and returns the
  // session as it is.
  absl::StatusOr<SessionInfo> Truncate(std::string_view id, std::string_view request_id,
                                       std::uint64_t generation, std::int64_t length);

  // generation 0: any. Waits for requests that are inside the session. What it had of its time to
  // live begins anew.
  absl::StatusOr<SessionInfo> SetRetention(std::string_view id, std::uint64_t generation,
                                           const Retention& retention);

  // Makes sessions that begin as others are, of the same priority and time to live, not pinned,
  // with their configuration, for the price of what differs later: pages and blocks are shared. All
  // sources are taken as they are before the first fork is put in its place, so that sessions may
  // trade places. A repeat (a session of that id, made by the same request_id, source, generation
  // and length) changes nothing. Statuses: NOT_FOUND, GENERATION_MISMATCH, ALREADY_EXISTS,
  // RESOURCE_EXHAUSTED, as Truncate's for a length, INVALID_ARGUMENT for an id that an item before
  // it makes. If it throws bad_alloc, some items may have been applied.
  void Fork(std::span<ForkItem> items);

  // Shapes of the layers, for whoever sizes outputs; NOT_FOUND for the session. Never changes
  // during the life of a session, and two sessions never share one.
  absl::StatusOr<std::shared_ptr<const SessionConfig>> ConfigOf(std::string_view id) const;

  // Each item's status tells of the item; the layers may be different ones. Sessions must differ: a
  // later item of the same session is refused with INVALID_ARGUMENT. The backend is called once for
  // all items, and what an item becomes does not depend on the others, but for `call_failed`. May
  // throw bad_alloc: then no item is applied.
  void Append(std::span<BatchItem* const> items);
  void Attend(std::span<BatchItem* const> items);

  // Decodes tokens [begin, begin + tokens) of a layer to the storage dtype.
  // keys: [tokens][kv_heads][key_dim], values: [tokens][kv_heads][value_dim], sized by `config`.
  // NOT_FOUND if there is no session config->id; GENERATION_MISMATCH if it is not the one that
  // `config` is of, or has another generation; FAILED_PRECONDITION for tokens that have been freed.
  // REQUIRES: config is not null.
  absl::Status Read(const std::shared_ptr<const SessionConfig>& config, std::uint64_t generation,
                    int layer, std::int64_t begin, std::int64_t tokens, std::uint16_t* keys,
                    std::uint16_t* values) const;

  // The session as it is now, as a file; what is done to it later does not show. Requests wait for
  // about as long as a fork takes. NOT_FOUND; GENERATION_MISMATCH, where `generation` is not 0;
  // RESOURCE_EXHAUSTED. REQUIRES: the store outlives the export.
  absl::StatusOr<std::unique_ptr<SessionExport>> Export(std::string_view id,
                                                        std::uint64_t generation);
  // Begins to make a session of a file. REQUIRES: the store outlives the import.
  std::unique_ptr<SessionImport> Import(ImportOptions options);

  // Makes the sessions of StoreOptions::data_dir known, evicted, and begins to keep files up to
  // date. Until then nothing is read or written there. Errors: DataDir::Scan's. REQUIRES: there is
  // a directory; called once, before any other function.
  absl::StatusOr<RecoveryReport> Recover();
  // Moves a session to its file and frees its memory; the next request that needs its tokens brings
  // it back. NOT_FOUND; GENERATION_MISMATCH, where `generation` is not 0; FAILED_PRECONDITION
  // without a data directory; the file's errors.
  absl::StatusOr<SessionInfo> Evict(std::string_view id, std::uint64_t generation);
  // Brings an evicted session back. Errors as Evict's; RESOURCE_EXHAUSTED; DATA_LOSS.
  absl::StatusOr<SessionInfo> Restore(std::string_view id, std::uint64_t generation);
  // Makes what the session has durable. Errors as Evict's.
  absl::StatusOr<SessionInfo> Checkpoint(std::string_view id, std::uint64_t generation);
  // The same of all sessions that have changed since; the first error, after all were tried.
  absl::Status CheckpointAll();

  // Seals at once what the background would seal after `settle_after` of idleness.
  void Settle();

  // Waits for no gate, layer or file.
  StoreTotals Totals() const;
  // Whether sessions get to their files: UNAVAILABLE, with words for an operator, if the thread
  // that brings them there stands still or keeps failing, or none could be written for a while. OK
  // without a data directory. Waits as Totals.
  absl::Status Health() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscarkv
