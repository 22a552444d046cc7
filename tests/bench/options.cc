#include "tests/bench/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <regex>
#include <utility>

#include "kernels/backend_factory.h"

namespace oscarkv::bench {
namespace {

constexpr std::int64_t kMostTokens = 1 << 24;
constexpr int kMost = 4096;  // sessions, heads, threads

// Parameters of rows of one's own: every combination of the values.
struct Combination {
  std::vector<std::string> operations;
  std::vector<std::string> profiles{"DENSE"};
  std::vector<std::int64_t> contexts{8192};
  std::vector<int> batches{1};
  std::vector<int> query_heads{32};
  std::vector<int> kv_heads{8};
  std::vector<int> head_dims{128};
  std::vector<int> queries{512};
  std::vector<int> threads;
};

template <typename T, typename Set>
std::vector<Row> Vary(const std::vector<Row>& rows, const std::vector<T>& values, Set set) {
  std::vector<Row> out;
  for (const Row& row : rows) {
    for (const T& value : values) {
      out.push_back(row);
      set(out.back(), value);
    }
  }
  return out;
}

// REQUIRES: names are those of operations and profiles.
std::vector<Row> RowsOf(const Combination& c) {
  std::vector<Row> rows(1);
  rows = Vary(rows, c.operations,
              [](Row& row, const std::string& name) { row.operation = *OperationOf(name); });
  rows = Vary(rows, c.profiles,
              [](Row& row, const std::string& name) { row.profile = *ProfileOf(name); });
  rows = Vary(rows, c.contexts, [](Row& row, std::int64_t x) { row.context = x; });
  rows = Vary(rows, c.batches, [](Row& row, int x) { row.batch = x; });
  rows = Vary(rows, c.query_heads, [](Row& row, int x) { row.query_heads = x; });
  rows = Vary(rows, c.kv_heads, [](Row& row, int x) { row.kv_heads = x; });
  rows = Vary(rows, c.head_dims, [](Row& row, int x) { row.head_dim = x; });
  rows = Vary(rows, c.threads, [](Row& row, int x) { row.threads = x; });
  std::vector<Row> out;
  for (Row& row : rows) {
    if (row.operation != Operation::kPrefill) {
      out.push_back(row);
      continue;
    }
    for (const int queries : c.queries) {
      row.queries = queries;
      out.push_back(row);
    }
  }
  return out;
}

std::string NamedOperation(const std::string& name) {
  return OperationOf(name) ? ""
                           : "no operation " + name +
                                 "; there are attend, prefill, append, seal_given, seal_auto and "
                                 "read_tokens";
}

std::string NamedProfile(const std::string& name) {
  return ProfileOf(name) ? "" : "no profile " + name + "; there are DENSE, PRECISE, PAPER and KIVI";
}

std::string Regex(const std::string& text) {
  try {
    const std::regex regex(text);
    return "";
  } catch (const std::regex_error&) {
    return text + " is not a regular expression";
  }
}

void AddCombination(CLI::App& app, Combination& c) {
  constexpr char kGroup[] = "Rows of your own, instead of a set (lists a,b,c: every combination)";
  const auto add = [&](const char* flag, auto& values, const char* help) {
    return app.add_option(flag, values, help)->delimiter(',')->group(kGroup)->capture_default_str();
  };
  const CLI::Range tokens(std::int64_t{1}, kMostTokens);
  const CLI::Range count(1, kMost);
  CLI::Option* const operation = add("--operation", c.operations, "what is measured");
  operation->check(NamedOperation);
  for (CLI::Option* option :
       {add("--profile", c.profiles, "of the codec")->check(NamedProfile),
        add("--context", c.contexts, "tokens of a session; of all but append: multiples of 128")
            ->check(tokens),
        add("--batch", c.batches, "sessions in a call")->check(count),
        add("--query-heads", c.query_heads, "query heads: 1, 2, 4, 8 or 16 times the kv heads")
            ->check(count),
        add("--kv-heads", c.kv_heads, "kv heads")->check(count),
        add("--head-dim", c.head_dims, "width of a head: 64, 128 or 256")->check(count),
        add("--queries", c.queries, "query tokens of a session, of prefill alone: 2 to the context")
            ->check(tokens),
        add("--threads", c.threads, "threads (default: all)")->check(count)}) {
    option->needs(operation);
  }
}

// What would be ignored, and what to do instead; empty: nothing.
std::string WhyIgnored(const CLI::App& app, const Combination& c) {
  if (c.operations.empty()) return "";
  if (app.count("--set") > 0) {
    return "--operation names rows of your own, instead of those of a set: leave out either it or "
           "--set (--quick of scripts/bench)";
  }
  const std::string prefill = NameOf(Operation::kPrefill);
  if (app.count("--queries") > 0 &&
      std::find(c.operations.begin(), c.operations.end(), prefill) == c.operations.end()) {
    return "only prefill has --queries: leave them out, or add it to the --operation";
  }
  return "";
}

// Erases the rows that cannot be measured, and says why of each. False: none is left.
bool LeaveOutUnsupported(std::vector<Row>& rows) {
  std::vector<Row> supported;
  std::string left_out;
  for (const Row& row : rows) {
    const std::string why = WhyUnsupported(row);
    if (why.empty()) {
      supported.push_back(row);
    } else {
      left_out.append("left out: ").append(row.name()).append(": ").append(why).append("\n");
    }
  }
  std::cerr << left_out;
  rows = std::move(supported);
  return !rows.empty();
}

}  // namespace

std::optional<int> ParseOptions(int argc, char** argv, int threads, Options& options) {
  CLI::App app("Times the CPU backend beside BF16 attention and the reading of its bytes.");
  std::string set = "full";
  std::string filter;
  Combination combination;
  combination.threads = {threads};
  options.effort = {7, 0.2, 31};
  app.add_option("--set", set,
                 "rows to measure: quick (a few small ones), must (those of docs/performance.md), "
                 "full (also each parameter varied by itself) or all (every combination)")
      ->check(CLI::IsMember(NamesOfSets()))
      ->capture_default_str();
  app.add_option("--filter", filter, "only rows whose name this regular expression finds")
      ->check(Regex);
  app.add_flag("--list", options.list, "print the names of the rows and stop");
  app.add_option("--repetitions", options.effort.repetitions, "of each row, at least")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--json", options.json, "file to write");
  app.add_option("--revision", options.revision, "of the source, for the JSON");
  std::vector<std::string> instructions = CpuInstructionSets();
  instructions.insert(instructions.begin(), "auto");
  std::string chosen = "auto";
  app.add_option("--cpu-instructions", chosen, "instruction set that ours uses (auto: the fastest)")
      ->check(CLI::IsMember(instructions))
      ->capture_default_str();
  AddCombination(app, combination);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error);
    return status == 0 ? 0 : 2;
  }
  if (const std::string why = WhyIgnored(app, combination); !why.empty()) {
    std::cerr << "error: " << why << "\n";
    return 2;
  }
  if (chosen != "auto") options.cpu_instructions = chosen;
  if (set == "quick" || app.count("--repetitions") > 0) options.effort.least_seconds = 0;
  if (set == "quick" && app.count("--repetitions") == 0) options.effort.repetitions = 3;
  options.rows = combination.operations.empty() ? RowsOf(set, threads) : RowsOf(combination);
  std::erase_if(options.rows, [pattern = std::regex(filter)](const Row& row) {
    return !std::regex_search(row.name(), pattern);
  });
  if (options.rows.empty()) {
    std::cerr << "error: no row's name matches " << filter << "\n";
    return 2;
  }
  if (LeaveOutUnsupported(options.rows)) return std::nullopt;
  std::cerr << "error: no row is left to measure\n";
  return 2;
}

}  // namespace oscarkv::bench
