// Tables of text, and numbers as people read them.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace oscarkv {

// Columns are as wide as their widest cell; cells that begin with a digit, "-" or "+" are aligned
// to the right with their column's title.
class Table {
 public:
  explicit Table(std::vector<std::string> titles) : rows_{std::move(titles)} {}

  // REQUIRES: as many cells as titles.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  void Print(std::ostream& out) const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the first are the titles
};

// A line for each: the name, a colon, the value; values below each other.
void PrintFields(std::ostream& out, const std::vector<std::pair<const char*, std::string>>& fields);

// "0 B", "1023 B", "1.5 KiB", "2.0 GiB".
std::string FormatBytes(std::int64_t bytes);
// Three digits: "850 ns", "12.3 us", "4.56 ms", "1.2 s".
std::string FormatSeconds(double seconds);

}  // namespace oscarkv
