#include "tests/bench/report.h"

#include <cstdio>
#include <nlohmann/json.hpp>

namespace oscarkv::bench {
namespace {

using Json = nlohmann::ordered_json;

bool MovesTokens(Operation operation) {
  return operation != Operation::kAttend && operation != Operation::kPrefill;
}

// Bytes that GB/s counts: what attention reads of the cache; of other operations the 16-bit tokens.
std::int64_t CountedBytes(const Row& row) {
  return MovesTokens(row.operation) ? row.bf16_bytes() : row.bytes();
}

std::string Ratio(const std::optional<Timing>& over, const Timing& under) {
  if (!over.has_value()) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.2fx", over->seconds / under.seconds);
  return text;
}

std::string Milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f", 1e3 * seconds);
  return text;
}

Json Seconds(const std::optional<Timing>& timing) {
  return timing.has_value() ? Json(timing->seconds) : Json(nullptr);
}

Json Spread(const std::optional<Timing>& timing) {
  return timing.has_value() ? Json::array({timing->least, timing->most}) : Json(nullptr);
}

Json RowToJson(const Measurement& m) {
  const Row& row = m.row;
  return {{"operation", NameOf(row.operation)},
          {"profile", NameOf(row.profile)},
          {"context", row.context},
          {"batch", row.batch},
          {"query_heads", row.query_heads},
          {"kv_heads", row.kv_heads},
          {"head_dim", row.head_dim},
          {"queries", row.queries},
          {"threads", row.threads},
          {"seconds", m.ours.seconds},
          {"bf16_seconds", Seconds(m.bf16)},
          {"read_seconds", Seconds(m.read)},
          {"bf16_read_seconds", Seconds(m.bf16_read)},
          {"bytes", row.bytes()},
          {"bf16_bytes", row.bf16_bytes()},
          {"repetitions", m.repetitions},
          {"huge_page_share", m.huge_page_share ? Json(*m.huge_page_share) : Json(nullptr)},
          {"spread",
           {{"seconds", Spread(m.ours)},
            {"bf16_seconds", Spread(m.bf16)},
            {"read_seconds", Spread(m.read)},
            {"bf16_read_seconds", Spread(m.bf16_read)}}},
          {"peers", Json::object()}};
}

}  // namespace

void PrintHeading(std::ostream& out, const RunInfo& info) {
  out << info.machine.processor << ", " << info.machine.cores << " cores, "
      << (info.machine.cache_bytes >> 20)
      << " MiB last-level cache, huge pages: " << info.machine.huge_pages << "\n"
      << "backend " << info.backend << "; BF16 baseline: " << info.baseline << "\n"
      << "ms: median of a call. vs bf16: BF16 time over ours, more is better. vs read: ours over "
         "the "
         "time to read\nthe bytes, 1 is best. bf16 read: the same of the baseline. GB/s: of "
         "compressed bytes (attend, prefill), of\n16-bit tokens (others).\n\n";
  char line[160];
  std::snprintf(line, sizeof(line), "%-11s %-8s %7s %5s %7s %4s %7s %10s %9s %8s %9s %7s\n",
                "operation", "profile", "context", "batch", "heads", "dim", "threads", "ms",
                "vs bf16", "vs read", "bf16 read", "GB/s");
  out << line << std::flush;
}

void PrintRow(std::ostream& out, const Measurement& m) {
  const Row& row = m.row;
  const std::string heads = std::to_string(row.query_heads) + "x" + std::to_string(row.kv_heads);
  std::string operation = NameOf(row.operation);
  if (row.queries > 1) operation.append(" ").append(std::to_string(row.queries));
  // Reading bytes once says nothing of a prefill, whose work grows with its queries.
  const bool comparable = row.operation != Operation::kPrefill;
  const std::string of_read = comparable && m.read ? Ratio(m.ours, *m.read) : "-";
  const std::string of_bf16_read = comparable && m.bf16_read ? Ratio(m.bf16, *m.bf16_read) : "-";
  char line[160];
  std::snprintf(line, sizeof(line), "%-11s %-8s %7lld %5d %7s %4d %7d %10s %9s %8s %9s %7.2f\n",
                operation.c_str(), NameOf(row.profile), static_cast<long long>(row.context),
                row.batch, heads.c_str(), row.head_dim, row.threads,
                Milliseconds(m.ours.seconds).c_str(), Ratio(m.bf16, m.ours).c_str(),
                of_read.c_str(), of_bf16_read.c_str(),
                1e-9 * static_cast<double>(CountedBytes(row)) / m.ours.seconds);
  out << line << std::flush;
}

std::string ToJson(const RunInfo& info, const std::vector<Measurement>& measurements) {
  Json rows = Json::array();
  for (const Measurement& measurement : measurements) rows.push_back(RowToJson(measurement));
  const Machine& machine = info.machine;
  const Json file = {{"machine",
                      {{"processor", machine.processor},
                       {"cores", machine.cores},
                       {"last_level_cache_bytes", machine.cache_bytes},
                       {"memory_bytes", machine.memory_bytes},
                       {"huge_pages", machine.huge_pages},
                       {"backend", info.backend},
                       {"baseline", info.baseline}}},
                     {"date", info.date},
                     {"version", info.version},
                     {"revision", info.revision},
                     {"working_set_bytes", info.working_set_bytes},
                     {"rows", rows}};
  return file.dump(1) + "\n";
}

}  // namespace oscarkv::bench
