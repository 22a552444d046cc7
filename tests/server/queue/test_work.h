// A work that runs what a test gives it.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "server/queue/work_queue.h"

namespace oscarkv::testing {

// Gives its ticket back once it has run.
class TestWork : public Work {
 public:
  explicit TestWork(std::function<void()> run) : run_(std::move(run)) {}
  TestWork(std::string name, WorkFacts facts, std::function<void()> run = {})
      : name_(std::move(name)), run_(std::move(run)) {
    set_facts(std::move(facts));
  }
  const std::string& name() const { return name_; }
  bool ran() const { return ran_; }

  absl::Status SubmitTo(WorkQueue& queue) {
    absl::StatusOr<WorkQueue::Ticket> ticket = queue.Admit();
    if (!ticket.ok()) return ticket.status();
    ticket_ = *std::move(ticket);
    absl::Status status = ticket_.Submit(this);
    if (!status.ok()) ticket_ = WorkQueue::Ticket();
    return status;
  }

 private:
  void Run() override {
    if (run_) run_();
    ticket_ = WorkQueue::Ticket();
    ran_ = true;
  }

  std::string name_;
  std::function<void()> run_;
  WorkQueue::Ticket ticket_;
  std::atomic<bool> ran_ = false;
};

inline void WaitUntilRan(const TestWork& work) {
  while (!work.ran()) std::this_thread::yield();
}

}  // namespace oscarkv::testing
