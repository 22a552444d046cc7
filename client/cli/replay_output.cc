#include "client/cli/replay_output.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/cli/table.h"

namespace oscarkv {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson ToJson(const LayerReport& layer) {
  return {{"layer", layer.layer},
          {"tokens", layer.tokens},
          {"bits_per_value", layer.bits_per_value},
          {"logical_bytes", layer.logical_bytes},
          {"resident_bytes", layer.resident_bytes},
          {"output_relative_error", layer.output_relative_error},
          {"lse_max_abs_error", layer.lse_max_abs_error}};
}

OrderedJson ToJson(const ReplayReport& report) {
  OrderedJson json = {{"model", report.model},
                      {"profile", ProfileName(report.profile)},
                      {"layers", OrderedJson::array()}};
  for (const LayerReport& layer : report.layers) json["layers"].push_back(ToJson(layer));
  json["summary"] = {{"bits_per_value", report.bits_per_value},
                     {"logical_bytes", report.logical_bytes},
                     {"resident_bytes", report.resident_bytes},
                     {"memory_ratio", report.memory_ratio},
                     {"output_relative_error", report.output_relative_error},
                     {"attend_p50_seconds", report.attend_p50_seconds},
                     {"append_bytes_per_second", report.append_bytes_per_second}};
  return json;
}

// "-" where there is nothing to divide by.
std::string FormatRatio(double numerator, double denominator) {
  return denominator > 0 ? absl::StrFormat("%.2fx", numerator / denominator) : "-";
}

std::string FormatBits(double bits_per_value) {
  return bits_per_value > 0 ? absl::StrFormat("%.2f", bits_per_value) : "-";
}

}  // namespace

std::string ProfileName(v1::Profile profile) {
  return std::string(absl::StripPrefix(v1::Profile_Name(profile), "PROFILE_"));
}

void PrintReplayJson(std::ostream& out, const std::vector<ReplayReport>& reports) {
  OrderedJson json = OrderedJson::array();
  for (const ReplayReport& report : reports) json.push_back(ToJson(report));
  if (json.size() == 1) json = OrderedJson(json[0]);
  out << json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
}

void PrintReplayTable(std::ostream& out, const std::vector<ReplayReport>& reports) {
  Table table({"model", "layer", "profile", "tokens", "bits/value", "pages", "session",
               "output error", "LSE error", "attend p50"});
  for (const ReplayReport& report : reports) {
    const std::string profile = ProfileName(report.profile);
    for (const LayerReport& layer : report.layers) {
      table.AddRow({report.model, absl::StrCat(layer.layer), profile, absl::StrCat(layer.tokens),
                    FormatBits(layer.bits_per_value), FormatRatio(16, layer.bits_per_value),
                    FormatRatio(static_cast<double>(layer.logical_bytes),
                                static_cast<double>(layer.resident_bytes)),
                    absl::StrFormat("%.4f", layer.output_relative_error),
                    absl::StrFormat("%.4f", layer.lse_max_abs_error),
                    FormatSeconds(layer.attend_p50_seconds)});
    }
    table.AddRow({report.model, "all", profile, "", FormatBits(report.bits_per_value),
                  FormatRatio(16, report.bits_per_value),
                  FormatRatio(static_cast<double>(report.logical_bytes),
                              static_cast<double>(report.resident_bytes)),
                  absl::StrFormat("%.4f", report.output_relative_error), "",
                  FormatSeconds(report.attend_p50_seconds)});
  }
  table.Print(out);
  out << "\npages: 16 bits over those of a value in sealed pages; session: the same with sinks, "
         "window\n"
         "and query samples, which weigh less the longer a session is. Errors are relative to "
         "exact\n"
         "attention in float64 (output: Frobenius norm; all: root mean square of layers).\n";
}

}  // namespace oscarkv
