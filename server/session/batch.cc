#include "server/session/batch.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

#include "server/base/crc32c.h"
#include "server/base/error.h"
#include "server/base/kernel_status.h"
#include "server/session/tiers.h"

namespace oscarkv {
namespace {

std::size_t BytesOf(const Rows& rows, std::int32_t count) {
  return static_cast<std::size_t>(count) * static_cast<std::size_t>(rows.heads) *
         static_cast<std::size_t>(rows.dim) * SizeOf(rows.dtype);
}

}  // namespace

std::uint32_t CrcOf(const BatchItem& item) {
  if (item.num_tokens <= 0) return 0;
  const std::uint32_t keys = Crc32c(item.keys.data, BytesOf(item.keys, item.num_tokens));
  return Crc32c(item.values.data, BytesOf(item.values, item.num_tokens), keys);
}

Batch::Batch(const BatchContext& context, std::span<BatchItem* const> items, BatchKind kind)
    : context_(context), items_(items), kind_(kind) {}

void Batch::Run() {
  Open();
  ForEach([this](Work* work) { return Check(work); });
  ForEach([this](Work* work) { return Prepare(work); });
  Seal();
  Write();
  if (kind_ == BatchKind::kAttend) Attend();
  Commit();
  works_.clear();
}

void Batch::Open() {
  std::vector<BatchItem*> order(items_.begin(), items_.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const BatchItem* a, const BatchItem* b) { return a->session < b->session; });
  const BatchItem* before = nullptr;
  for (BatchItem* item : order) {
    item->generation_after = 0;
    item->length_after = 0;
    item->repeated = false;
    item->call_failed = false;
    item->over_quota = false;
    if (before && before->session == item->session) {
      item->status = InvalidField("session", item->session, "a session once in a request");
    } else {
      item->status = OpenItem(item);
    }
    before = item;
  }
}

absl::Status Batch::OpenItem(BatchItem* item) {
  std::shared_ptr<Session> session = context_.sessions->Find(item->session);
  if (!session) return SessionNotFound(item->session);
  const std::optional<std::size_t> index = session->IndexOf(item->layer);
  if (!index) {
    item->generation_after = session->generation();
    return LayerNotFound(item->session, item->layer);
  }
  // Before any lock is taken: the bytes are many.
  const std::uint32_t crc = item->crc ? *item->crc : CrcOf(*item);
  session->NoteUse();
  std::unique_ptr<LayerLease> lease;
  while (true) {
    if (context_.tiers) {
      // What the batch holds already cannot be evicted.
      const auto patience = works_.empty() ? Tiers::Wait::kForRoom : Tiers::Wait::kForNothing;
      if (absl::Status s = context_.tiers->EnsureResident(session.get(), patience); !s.ok()) {
        return s;
      }
    }
    lease = std::make_unique<LayerLease>(session, *index);
    if (!session->evicted()) break;
    lease.reset();  // evicted since
  }
  if (session->deleted()) return SessionNotFound(item->session);
  works_.push_back({.item = item,
                    .crc = crc,
                    .lease = std::move(lease),
                    .promise = MemoryReservation(context_.budget, MemoryKind::kPromised)});
  Work& work = works_.back();
  work.change =
      std::make_unique<LayerChange>(&work.layer(), context_.pool, context_.budget, &work.promise);
  return absl::OkStatus();
}

absl::Status Batch::Check(Work* work) const {
  const BatchItem& item = *work->item;
  const LayerState& layer = work->layer();
  const Session& session = work->lease->session();
  const std::uint64_t generation = session.generation();
  if ((item.config && item.config != session.config()) || item.generation != generation) {
    return GenerationMismatch(item.generation, generation, layer.length());
  }
  const bool attend = kind_ == BatchKind::kAttend;
  absl::Status status = CheckShapes(layer.spec(), item, attend);
  if (!status.ok()) return status;
  const absl::StatusOr<AppendKind> append = CheckLength(layer, item, work->crc, generation);
  if (!append.ok()) return append.status();
  work->append = *append;
  const std::int64_t length = layer.length() + (*append == AppendKind::kNew ? item.num_tokens : 0);
  const absl::StatusOr<QueryRows> queries =
      QueriesOf(item, attend, session.config()->position_base, length);
  if (!queries.ok()) return queries.status();
  work->queries = *queries;
  return attend ? CheckSeen(layer, *queries, session.config()->position_base) : absl::OkStatus();
}

absl::Status Batch::Prepare(Work* work) const {
  const BatchItem& item = *work->item;
  if (work->append == AppendKind::kRepeat) return absl::OkStatus();
  Session& session = work->lease->session();
  StepMemory& step = session.step_memory();
  TokenRows tokens;
  std::int64_t pages = 0;
  if (work->append == AppendKind::kNew) {
    tokens = {.count = item.num_tokens,
              .dtype = item.keys.dtype,
              .keys = item.keys.data,
              .values = item.values.data,
              .crc = work->crc};
    pages = work->layer().DuePages();
    const auto begin_step = [&]() -> absl::StatusOr<std::vector<LayerStats>> {
      const TenantUse* const tenant = session.tenant();
      absl::Status within = tenant ? tenant->Check() : absl::OkStatus();
      work->item->over_quota = !within.ok();
      if (!within.ok()) return within;
      return session.Published();
    };
    absl::Status s =
        step.Take(work->lease->index(), work->layer(), item.num_tokens, begin_step, &work->promise);
    if (!s.ok()) return s;
  } else if (work->queries.count > 0) {
    step.TakeForQueries(work->lease->index(), &work->promise);
  }
  return work->change->Prepare(pages, tokens, work->queries);
}

void Batch::Seal() {
  std::vector<SealItem> items;
  std::vector<Work*> works;
  for (Work& work : works_) {
    if (!work.change || work.change->seal_items().empty()) continue;
    const std::span<const SealItem> seals = work.change->seal_items();
    items.insert(items.end(), seals.begin(), seals.end());
    works.push_back(&work);
  }
  if (!items.empty()) NoteCall(context_.backend->Seal(items), works);
  for (Work& work : works_) {
    if (work.change) work.change->Apply();
  }
}

void Batch::Write() {
  std::vector<CopyItem> copies;
  std::vector<AppendItem> appends;
  std::vector<Work*> works;
  for (Work& work : works_) {
    if (!work.change || work.change->append_items().empty()) continue;
    const std::span<const CopyItem> copied = work.change->copy_items();
    const std::span<const AppendItem> appended = work.change->append_items();
    copies.insert(copies.end(), copied.begin(), copied.end());
    appends.insert(appends.end(), appended.begin(), appended.end());
    works.push_back(&work);
  }
  if (appends.empty()) return;
  KernelStatus status;
  if (!copies.empty()) status = context_.backend->Copy(copies);
  if (status.ok()) status = context_.backend->Append(appends);
  NoteCall(status, works);
}

void Batch::Attend() {
  std::vector<AttendItem> items;
  std::vector<Work*> works;
  for (Work& work : works_) {
    if (!work.change) continue;
    items.push_back({.layer = work.layer().View(),
                     .num_queries = work.queries.count,
                     .query_begin = work.queries.begin,
                     .dtype = work.queries.dtype,
                     .queries = work.queries.data,
                     .causal = work.item->options.causal,
                     .count_sink_logits = work.item->options.count_sink_logits,
                     .outputs = work.item->outputs,
                     .log_sum_exps = work.item->log_sum_exps});
    works.push_back(&work);
  }
  if (items.empty()) return;
  const KernelStatus status = context_.backend->Attend(items);
  if (status.ok()) return;
  // The backend may have written some rows before it failed.
  for (const AttendItem& item : items) {
    const LayerSpec& spec = *item.layer.spec;
    const std::int64_t rows = std::int64_t{item.num_queries} * spec.query_heads;
    std::fill_n(item.outputs, rows * spec.value_dim, 0.0F);
    std::fill_n(item.log_sum_exps, rows, -std::numeric_limits<float>::infinity());
  }
  NoteCall(status, works);
}

void Batch::Commit() {
  for (Work& work : works_) {
    BatchItem& item = *work.item;
    if (work.change) {
      work.change->Commit();
      item.repeated = work.append == AppendKind::kRepeat;
      if (work.append == AppendKind::kNew) work.lease->session().NoteChange();
    }
    ReturnPromise(&work);
    // What a failed item had taken of what was prepared is prepared again.
    if (context_.preparer) context_.preparer->Prepare(&work.layer());
    item.generation_after = work.lease->session().generation();
    item.length_after = work.layer().length();
  }
}

void Batch::ForEach(const std::function<absl::Status(Work*)>& step) {
  for (Work& work : works_) {
    if (work.change) Fail(step(&work), &work);
  }
}

void Batch::Fail(const absl::Status& status, Work* work) {
  if (status.ok()) return;
  work->item->status = status;
  work->change.reset();
}

void Batch::ReturnPromise(Work* work) {
  work->lease->session().step_memory().Return(work->lease->index(), work->layer(),
                                              work->queries.count > 0, &work->promise);
}

void Batch::NoteCall(const KernelStatus& status, std::span<Work* const> works) {
  if (status.ok()) return;
  const absl::Status error = FromKernelStatus(status);
  for (Work* work : works) {
    work->item->call_failed = works.size() > 1;
    Fail(error, work);
  }
}

}  // namespace oscarkv
