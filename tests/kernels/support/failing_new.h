// Lets one allocation fail: the n-th one of this thread from when it was armed throws bad_alloc.
// Whoever links this has a global operator new that can do so; aligned and array forms are as ever
// (the latter fails too where the library's calls the plain form).
//
// Thread-safety: each thread arms its own.
#pragma once

namespace oscarkv::testing {

class FailingNew {
 public:
  // Allocation number `n` of this thread from now on, from 0, fails.
  explicit FailingNew(int n);
  // From here on nothing fails any more.
  ~FailingNew();
  FailingNew(const FailingNew&) = delete;
  FailingNew& operator=(const FailingNew&) = delete;

  // Whether an allocation has failed.
  bool struck() const;
};

}  // namespace oscarkv::testing
