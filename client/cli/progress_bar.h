// A bar on a terminal that says how far long work is.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

namespace oscarkv {

// Thread-safety: none.
class ProgressBar {
 public:
  // `visible`: whether `out` is a terminal; otherwise nothing is ever written.
  ProgressBar(std::ostream& out, bool visible, std::string label);
  ~ProgressBar();  // removes the bar
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // REQUIRES: 0 <= done <= total, total > 0.
  void Show(std::int64_t done, std::int64_t total);

 private:
  std::ostream& out_;
  const bool visible_;
  const std::string label_;
  int percent_ = -1;  // what is shown
};

}  // namespace oscarkv
