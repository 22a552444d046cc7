#include "client/cli/progress_bar.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_format.h"

namespace oscarkv {
namespace {

constexpr int kWidth = 30;
constexpr char kEraseLine[] = "\r\x1b[K";

}  // namespace

ProgressBar::ProgressBar(std::ostream& out, bool visible, std::string label)
    : out_(out), visible_(visible), label_(std::move(label)) {}

ProgressBar::~ProgressBar() {
  if (percent_ >= 0) out_ << kEraseLine << std::flush;
}

void ProgressBar::Show(std::int64_t done, std::int64_t total) {
  const auto percent = static_cast<int>(100 * done / total);
  if (!visible_ || percent == percent_) return;
  percent_ = percent;
  const auto filled = static_cast<std::size_t>(kWidth * percent / 100);
  out_ << kEraseLine
       << absl::StrFormat("%s [%s%s] %3d%%", label_, std::string(filled, '='),
                          std::string(kWidth - filled, ' '), percent)
       << std::flush;
}

}  // namespace oscarkv
