#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/table.h"

namespace oscarkv {
namespace {

absl::Status RunInfo(const CommandContext& context, const std::string& address) {
  const auto client = ConnectForCommand(address);
  if (!client.ok()) return client.status();
  const v1::GetServerInfoResponse& info = (*client)->server_info();
  if (context.json) return PrintJson(context.out, info);

  PrintFields(context.out, {
                               {"version", info.version()},
                               {"backend", absl::StrCat(info.backend(), ", ", info.device())},
                               {"threads", absl::StrCat(info.threads())},
                               {"default profile", v1::Profile_Name(info.default_profile())},
                               {"head dims", absl::StrJoin(info.head_dims(), ", ")},
                               {"sessions", absl::StrCat(info.sessions())},
                               {"memory budget", FormatBytes(info.memory_budget_bytes())},
                               {"resident", FormatBytes(info.resident_bytes())},
                               {"logical", FormatBytes(info.logical_bytes())},
                               {"in blocks", FormatBytes(info.block_bytes())},
                               {"held for blocks", FormatBytes(info.held_bytes())},
                               {"receives at most", FormatBytes(info.max_receive_message_bytes())},
                               {"sends at most", FormatBytes(info.max_send_message_bytes())},
                           });
  return absl::OkStatus();
}

}  // namespace

void AddInfoCommand(CLI::App& app, CommandContext& context) {
  CLI::App& command = *app.add_subcommand("info", "Show what a server is, its limits and its load");
  const auto* address = AddAddressOption(command, kDefaultAddress);
  AddJsonFlag(command, context);
  command.callback([&context, address] {
    context.run = [&context, address] { return RunInfo(context, AddressOf(*address)); };
  });
}

}  // namespace oscarkv
