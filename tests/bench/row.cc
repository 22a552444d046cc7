#include "tests/bench/row.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "kernels/api/page_layout.h"
#include "tests/bench/filled_sessions.h"

namespace oscarkv::bench {
namespace {

constexpr std::array kOperations = {Operation::kAttend,   Operation::kPrefill,
                                    Operation::kAppend,   Operation::kSealGiven,
                                    Operation::kSealAuto, Operation::kReadTokens};
constexpr std::array kProfiles = {Profile::kDense, Profile::kPrecise, Profile::kPaper,
                                  Profile::kKivi};
constexpr std::int64_t kSmallest = 1 << 10;
constexpr std::int64_t kLargest = 256 << 10;
constexpr int kPrefillQueries = 512;

Row Attend(std::int64_t context, int threads) {
  Row row;
  row.context = context;
  row.threads = threads;
  return row;
}

Row Prefill(std::int64_t context, int threads) {
  Row row = Attend(context, threads);
  row.operation = Operation::kPrefill;
  row.queries = kPrefillQueries;
  return row;
}

Row Other(Operation operation, std::int64_t context, int batch, int threads) {
  Row row = Attend(context, threads);
  row.operation = operation;
  row.batch = batch;
  return row;
}

class RowSet {
 public:
  void Add(const Row& row) {
    if (std::find(rows_.begin(), rows_.end(), row) == rows_.end()) rows_.push_back(row);
  }
  void Add(const std::vector<Row>& rows) {
    for (const Row& row : rows) Add(row);
  }
  template <typename T>
  void Vary(Row row, T Row::*parameter, std::initializer_list<T> values) {
    for (const T value : values) {
      row.*parameter = value;
      Add(row);
    }
  }
  std::vector<Row> rows() const { return rows_; }

 private:
  std::vector<Row> rows_;
};

std::vector<Row> Quick(int threads) {
  RowSet set;
  set.Vary(Attend(0, threads), &Row::context, {std::int64_t{1} << 10, std::int64_t{8} << 10});
  set.Vary(Attend(8 << 10, threads), &Row::profile, {Profile::kPrecise, Profile::kPaper});
  set.Add(Other(Operation::kAppend, 2048, 1, threads));
  set.Add(Other(Operation::kSealGiven, kPageTokens, 1, 1));
  set.Add(Other(Operation::kReadTokens, 4 << 10, 1, threads));
  return set.rows();
}

std::vector<Row> Must(int threads) {
  RowSet set;
  for (std::int64_t context = kSmallest; context <= kLargest; context *= 2) {
    set.Add(Attend(context, threads));
  }
  set.Vary(Attend(4 << 10, threads), &Row::batch, {8, 48});
  set.Vary(Attend(128 << 10, threads), &Row::profile, {Profile::kPrecise, Profile::kPaper});
  set.Add(Prefill(32 << 10, threads));
  set.Add(Other(Operation::kSealGiven, kPageTokens, 1, 1));
  set.Add(Other(Operation::kSealAuto, kPageTokens, 1, 1));
  set.Add(Other(Operation::kReadTokens, 8 << 10, 1, threads));
  return set.rows();
}

std::vector<Row> Full(int threads) {
  RowSet set;
  set.Add(Must(threads));
  for (const std::int64_t context : {std::int64_t{8} << 10, std::int64_t{128} << 10}) {
    const Row base = Attend(context, threads);
    set.Vary(base, &Row::profile,
             {Profile::kDense, Profile::kPrecise, Profile::kPaper, Profile::kKivi});
    set.Vary(base, &Row::query_heads, {8, 32, 64, 128});
    set.Vary(base, &Row::head_dim, {64, 128, 256});
    set.Vary(base, &Row::threads, {1, threads});
  }
  set.Vary(Attend(4 << 10, threads), &Row::batch, {1, 8, 48});
  set.Vary(Prefill(32 << 10, threads), &Row::query_heads, {8, 32, 128});
  set.Vary(Prefill(32 << 10, threads), &Row::threads, {1, threads});
  set.Vary(Other(Operation::kAppend, 2048, 1, threads), &Row::threads, {1, threads});
  set.Add(Other(Operation::kAppend, 1, 48, threads));
  for (const Operation operation : {Operation::kSealGiven, Operation::kSealAuto}) {
    set.Vary(Other(operation, kPageTokens, 1, 1), &Row::profile,
             {Profile::kDense, Profile::kPrecise});
    set.Add(Other(operation, kPageTokens, 8, threads));
  }
  set.Vary(Other(Operation::kSealGiven, kPageTokens, 1, 1), &Row::profile,
           {Profile::kPaper, Profile::kKivi});
  set.Vary(Other(Operation::kReadTokens, 8 << 10, 1, threads), &Row::profile,
           {Profile::kDense, Profile::kPrecise, Profile::kPaper, Profile::kKivi});
  set.Add(Other(Operation::kReadTokens, 8 << 10, 1, 1));
  return set.rows();
}

std::vector<Row> All(int threads) {
  RowSet set;
  set.Add(Full(threads));
  Row row;
  for (std::int64_t context = kSmallest; context <= kLargest; context *= 2) {
    row.context = context;
    for (const int batch : {1, 8, 48}) {
      row.batch = batch;
      for (const int group : {1, 4, 8, 16}) {
        row.query_heads = row.kv_heads * group;
        for (const int dim : {64, 128, 256}) {
          row.head_dim = dim;
          for (const Profile profile : kProfiles) {
            row.profile = profile;
            set.Vary(row, &Row::threads, {1, threads});
          }
        }
      }
    }
  }
  return set.rows();
}

}  // namespace

const char* NameOf(Operation operation) {
  switch (operation) {
    case Operation::kAttend:
      return "attend";
    case Operation::kPrefill:
      return "prefill";
    case Operation::kAppend:
      return "append";
    case Operation::kSealGiven:
      return "seal_given";
    case Operation::kSealAuto:
      return "seal_auto";
    case Operation::kReadTokens:
      return "read_tokens";
  }
  return "?";
}

std::optional<Operation> OperationOf(const std::string& name) {
  for (const Operation operation : kOperations) {
    if (name == NameOf(operation)) return operation;
  }
  return std::nullopt;
}

std::optional<Profile> ProfileOf(const std::string& name) {
  for (const Profile profile : kProfiles) {
    if (name == NameOf(profile)) return profile;
  }
  return std::nullopt;
}

std::string Row::name() const {
  std::ostringstream out;
  out << NameOf(operation) << "/" << NameOf(profile) << "/context:" << context << "/batch:" << batch
      << "/heads:" << query_heads << "x" << kv_heads << "/dim:" << head_dim;
  if (queries > 1) out << "/queries:" << queries;
  out << "/threads:" << threads;
  return out.str();
}

LayerSpec Row::spec() const {
  const ProfileSettings settings = SettingsOf(profile);
  LayerSpec spec;
  spec.query_heads = query_heads;
  spec.kv_heads = kv_heads;
  spec.key_dim = head_dim;
  spec.value_dim = head_dim;
  spec.scale = 1 / std::sqrt(static_cast<float>(head_dim));
  spec.codec = settings.codec;
  if (operation == Operation::kSealGiven) spec.codec.plan = PlanMode::kGiven;
  if (operation == Operation::kSealAuto) spec.codec.plan = PlanMode::kAuto;
  if (spec.codec.plan == PlanMode::kGiven) spec.given_plan.assign(kv_heads, settings.plan);
  return spec;
}

AttentionShape Row::shape() const {
  return {context, batch, query_heads, kv_heads, head_dim, queries};
}

std::int64_t Row::bytes() const {
  switch (operation) {
    case Operation::kAttend:
    case Operation::kPrefill:
    case Operation::kReadTokens:
      return batch * ContextShape(spec(), context, queries).bytes;
    case Operation::kAppend:
      return bf16_bytes();
    case Operation::kSealGiven:
    case Operation::kSealAuto:
      return batch * context / kPageTokens * PageLayout(spec()).bytes;
  }
  return 0;
}

std::int64_t Row::bf16_bytes() const { return batch * context * spec().logical_bytes_per_token(); }

std::string WhyUnsupported(const Row& row) {
  const bool attends = row.operation == Operation::kAttend || row.operation == Operation::kPrefill;
  if (!attends && row.queries != 1) return "only prefill has several queries";
  if (row.operation == Operation::kAttend && row.queries != 1) return "attend has one query";
  if (row.operation == Operation::kPrefill && row.queries < 2)
    return "prefill has two queries or more";
  if ((row.operation == Operation::kSealGiven || row.operation == Operation::kSealAuto) &&
      row.context % kPageTokens != 0) {
    return "what is sealed must be a multiple of 128 tokens";
  }
  // The shape of the heads is checked by the baseline, of which a context must be whole blocks.
  AttentionShape shape = row.shape();
  if (row.operation == Operation::kAppend) shape.context = kPrefillBlock;
  return WhyUnsupported(shape);
}

std::vector<Row> RowsOf(const std::string& set, int threads) {
  if (set == "quick") return Quick(threads);
  if (set == "must") return Must(threads);
  if (set == "full") return Full(threads);
  if (set == "all") return All(threads);
  return {};
}

std::vector<std::string> NamesOfSets() { return {"quick", "must", "full", "all"}; }

}  // namespace oscarkv::bench
