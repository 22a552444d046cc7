#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/new_file.h"
#include "client/cli/progress_bar.h"
#include "client/cli/session_export.h"
#include "client/cli/table.h"

namespace oscarkv {
namespace {

using Exporter = absl::StatusOr<ExportReport> (*)(Client&, const ExportRequest&, NewFile&);

constexpr char kSessionFile[] = "okv";

const std::map<std::string, Exporter>& Exporters() {
  static const std::map<std::string, Exporter> kExporters = {{kSessionFile, ExportSessionFile},
                                                             {"safetensors", ExportRecording}};
  return kExporters;
}

struct Arguments {
  std::string session;
  std::string file;
  std::string format = kSessionFile;
  bool force = false;
};

void Print(const CommandContext& context, const Arguments& arguments, const ExportReport& report) {
  if (context.json) {
    const nlohmann::ordered_json json = {
        {"file", arguments.file},  {"format", arguments.format},
        {"id", arguments.session}, {"generation", report.generation},
        {"length", report.length}, {"layers", report.layers},
        {"bytes", report.bytes}};
    context.out << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                << "\n";
    return;
  }
  context.out << arguments.file << ": " << report.length << " tokens of " << report.layers
              << (report.layers == 1 ? " layer, " : " layers, ")
              << FormatBytes(static_cast<std::int64_t>(report.bytes)) << "\n";
}

absl::Status RunExport(const CommandContext& context, const std::string& address,
                       const Arguments& arguments, const std::optional<std::int64_t>& length) {
  CatchInterrupts();
  const auto file = NewFile::Create(arguments.file, arguments.force);
  if (!file.ok()) return file.status();
  const auto client = ConnectForCommand(address);
  if (!client.ok()) return client.status();
  absl::StatusOr<ExportReport> report;
  {
    ProgressBar bar(context.err, isatty(STDERR_FILENO) != 0, arguments.session);
    ExportRequest request;
    request.session = arguments.session;
    request.length = length;
    request.cancelled = Interrupted;
    request.on_progress = [&bar](std::int64_t done, std::int64_t total) { bar.Show(done, total); };
    report = Exporters().at(arguments.format)(**client, request, **file);
  }
  if (!report.ok()) return report.status();
  if (absl::Status status = (*file)->Finish(); !status.ok()) return status;
  Print(context, arguments, *report);
  return absl::OkStatus();
}

}  // namespace

void AddSessionExportCommand(CLI::App& group, CommandContext& context) {
  CLI::App& command = *group.add_subcommand("export", "Write a session of a server to a file");
  const auto* address = AddAddressOption(command, kDefaultAddress);
  AddJsonFlag(command, context);
  auto arguments = std::make_shared<Arguments>();
  command.add_option("session", arguments->session, "Its id")->type_name("ID")->required();
  command.add_option("file", arguments->file, "File to write")->type_name("FILE")->required();
  command
      .add_option(
          "--format", arguments->format,
          "okv (default): a session file, as it is; safetensors: a recording, decoded to 16 "
          "bits, without queries")
      ->type_name("NAME")
      ->transform(CLI::IsMember(Exporters()));
  const auto* length =
      command.add_option("--length", "Its first tokens alone, that many; not of okv")
          ->check(CLI::PositiveNumber)
          ->type_name("TOKENS");
  command.add_flag("--force", arguments->force, "Take the place of a file that exists");
  command.callback([&context, arguments, address, length] {
    if (!length->empty() && arguments->format == kSessionFile) {
      throw CLI::ValidationError("--length", "a session file has all tokens");
    }
    context.run = [&context, arguments, address, length] {
      std::optional<std::int64_t> only;
      if (!length->empty()) only = length->as<std::int64_t>();
      return RunExport(context, AddressOf(*address), *arguments, only);
    };
  });
}

}  // namespace oscarkv
