#include "client/cli/cli.h"

#include <google/protobuf/util/json_util.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/error_info.h"

namespace oscarkv {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;
constexpr int kInterrupted = 130;  // 128 + SIGINT, as shells say
constexpr absl::Duration kConnectTimeout = absl::Seconds(2);

void PrintError(std::ostream& err, const absl::Status& status) {
  err << "oscarkv: " << absl::StatusCodeToString(status.code()) << ": " << status.message() << "\n";
  const auto info = ErrorInfoOf(status);
  if (!info.has_value()) return;
  err << "  reason: " << info->reason() << "\n";
  for (const auto& [key, value] :
       std::map<std::string, std::string>(info->metadata().begin(), info->metadata().end())) {
    err << "  " << key << ": " << value << "\n";
  }
}

}  // namespace

int RunCommandLine(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  CommandContext context{.out = out, .err = err};
  CLI::App app("Work with an oscarkv server: KV caches at two bits a value", "oscarkv");
  app.set_version_flag("--version", "oscarkv " OSCARKV_VERSION);
  app.require_subcommand(1);
  AddInfoCommand(app, context);
  AddSessionCommands(app, context);
  AddReplayCommand(app, context);
  AddInspectCommand(app, context);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error, out, err) == 0 ? 0 : kWrongUsage;
  }
  const absl::Status status = context.run();
  if (status.ok()) return 0;
  PrintError(err, status);
  return absl::IsCancelled(status) ? kInterrupted : kFailed;
}

const CLI::Option* AddAddressOption(CLI::App& command, const std::string& otherwise) {
  const std::string help =
      absl::StrCat("Server, host:port or unix:path (default: ", otherwise, ")");
  return command.add_option("--address", help)->type_name("ADDRESS")->envname("OSCARKV_ADDRESS");
}

std::string AddressOf(const CLI::Option& option) {
  return option.empty() ? kDefaultAddress : option.as<std::string>();
}

void AddJsonFlag(CLI::App& command, CommandContext& context) {
  command.add_flag("--json", context.json, "Write JSON");
}

absl::StatusOr<std::unique_ptr<Client>> ConnectForCommand(const std::string& address) {
  ClientOptions options;
  options.connect_timeout = kConnectTimeout;
  return Client::Connect(address, options);
}

absl::Status PrintJson(std::ostream& out, const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!status.ok()) return absl::InternalError(status.ToString());
  out << text;
  return absl::OkStatus();
}

}  // namespace oscarkv
