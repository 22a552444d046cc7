// A work that runs what a test gives it.
#pragma once

#include <gtest/gtest.h>

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
  bool dropped() const { return dropped_; }
  void GiveUp() { given_up_ = true; }

  absl::Status SubmitTo(WorkQueue& queue) {
    absl::StatusOr<WorkQueue::Ticket> ticket = queue.Admit();
    if (!ticket.ok()) return ticket.status();
    ticket_ = *std::move(ticket);
    absl::Status status = ticket_.Submit(this);
    if (!status.ok()) ticket_ = WorkQueue::Ticket();
    return status;
  }

 private:
  bool IsGivenUp() const override { return given_up_; }
  void Drop(WhyDropped why) override {
    EXPECT_EQ(why, WhyDropped::kGivenUp);
    ticket_ = WorkQueue::Ticket();
    dropped_ = true;
  }
  void Run() override {
    if (run_) run_();
    ticket_ = WorkQueue::Ticket();
    ran_ = true;
  }

  std::string name_;
  std::function<void()> run_;
  WorkQueue::Ticket ticket_;
  std::atomic<bool> ran_ = false;
  std::atomic<bool> given_up_ = false;
  std::atomic<bool> dropped_ = false;
};

inline void WaitUntilRan(const TestWork& work) {
  while (!work.ran()) std::this_thread::yield();
}

}  // namespace oscarkv::testing
