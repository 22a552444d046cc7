#include "tests/server/support/session_rig.h"

#include <gtest/gtest.h>

#include <utility>

#include "kernels/api/page_layout.h"
#include "tests/server/support/fake_backend.h"

namespace oscarkv {

SessionRig::SessionRig(Backend* backend, std::int64_t budget_bytes, int most_pages)
    : backend_(backend), budget_(budget_bytes), pool_(backend, &budget_) {
  ReplacePreparer(most_pages);
}

void SessionRig::ReplacePreparer(int most_pages) {
  preparer_.reset();
  preparer_ = std::make_unique<Preparer>(backend_, &pool_, &budget_, most_pages);
}

std::shared_ptr<Session> SessionRig::Create(SessionConfig config) {
  auto session =
      std::make_shared<Session>(std::move(config), next_generation_++, &budget_, &logical_bytes_);
  EXPECT_EQ(sessions_.Insert(session), nullptr);
  return session;
}

BatchContext SessionRig::context(bool prepared) {
  return {.sessions = &sessions_,
          .backend = backend_,
          .pool = &pool_,
          .budget = &budget_,
          .preparer = prepared ? preparer_.get() : nullptr};
}

absl::Status SessionRig::Append(Request* request, bool prepared) {
  return Run(request, BatchKind::kAppend, prepared);
}

absl::Status SessionRig::Attend(Request* request, bool prepared) {
  request->item.outputs = request->outputs.data();
  request->item.log_sum_exps = request->log_sum_exps.data();
  return Run(request, BatchKind::kAttend, prepared);
}

absl::Status SessionRig::Run(Request* request, BatchKind kind, bool prepared) {
  request->item.session = request->session;
  BatchItem* const item = &request->item;
  Batch(context(prepared), std::span(&item, 1), kind).Run();
  return item->status;
}

void SessionRig::Truncate(Session* session, std::int64_t length) {
  const AloneInGate alone(&session->gate());
  session->Truncate({.request_id = "", .generation = session->generation(), .length = length},
                    next_generation_++);
}

void SessionRig::Delete(Session* session) {
  const AloneInGate alone(&session->gate());
  session->Delete();
  sessions_.Erase(*session);
}

int SessionRig::DoPieces(int most) {
  int done = 0;
  while (done < most && preparer_->DoPiece()) ++done;
  return done;
}

std::vector<std::string> SessionRig::Pages(Session* session, std::size_t layer) {
  Session::Layer& found = session->layer(layer);
  MutexLock lock(&found.mutex);
  std::vector<std::string> pages;
  for (const PageRef& page : AllPages(found.state.View().page_runs)) {
    std::string bytes(static_cast<std::size_t>(PageLayout(found.state.spec()).bytes), '\0');
    EXPECT_TRUE(backend_->ReadBlock(page.block, std::as_writable_bytes(std::span(bytes))).ok());
    pages.push_back(std::move(bytes));
  }
  return pages;
}

}  // namespace oscarkv
