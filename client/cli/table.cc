#include "client/cli/table.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace oscarkv {
namespace {

bool LooksLikeANumber(const std::string& cell) {
  return !cell.empty() && (absl::ascii_isdigit(cell[0]) || cell[0] == '-' || cell[0] == '+');
}

}  // namespace

void Table::Print(std::ostream& out) const {
  const std::size_t columns = rows_[0].size();
  std::vector<std::size_t> widths(columns);
  std::vector<bool> right(columns, rows_.size() > 1);
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      widths[c] = std::max(widths[c], rows_[r][c].size());
      if (r > 0 && !LooksLikeANumber(rows_[r][c])) right[c] = false;
    }
  }
  for (const std::vector<std::string>& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < columns; ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      line += right[c] ? padding + row[c] : row[c] + padding;
      line += "  ";
    }
    absl::StripTrailingAsciiWhitespace(&line);
    out << line << "\n";
  }
}

void PrintFields(std::ostream& out,
                 const std::vector<std::pair<const char*, std::string>>& fields) {
  for (const auto& [name, value] : fields) {
    out << absl::StrFormat("%-20s %s\n", absl::StrCat(name, ":"), value);
  }
}

std::string FormatBytes(std::int64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return absl::StrFormat("%d B", bytes);
  auto scaled = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (scaled /= 1024; scaled >= 1024 && unit + 1 < std::size(kUnits); scaled /= 1024) ++unit;
  return absl::StrFormat("%.1f %s", scaled, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  if (seconds < 1e-6) return absl::StrFormat("%.0f ns", seconds * 1e9);
  if (seconds < 1e-3) return absl::StrFormat("%.3g us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.3g ms", seconds * 1e3);
  return absl::StrFormat("%.3g s", seconds);
}

}  // namespace oscarkv
