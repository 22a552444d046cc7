// The commands: each adds itself to the parser, and says what to run if it is the one chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"

namespace oscarkv {

inline constexpr char kDefaultAddress[] = "127.0.0.1:50051";

// What commands share. Outlives the parser.
struct CommandContext {
  std::ostream& out;
  std::ostream& err;
  bool json = false;
  std::function<absl::Status()> run = nullptr;  // set by the command chosen
};

void AddInfoCommand(CLI::App& app, CommandContext& context);
void AddInspectCommand(CLI::App& app, CommandContext& context);
void AddReplayCommand(CLI::App& app, CommandContext& context);
void AddSessionCommands(CLI::App& app, CommandContext& context);
// Those of AddSessionCommands that are about files.
void AddSessionExportCommand(CLI::App& group, CommandContext& context);
void AddSessionImportCommand(CLI::App& group, CommandContext& context);
void AddSessionVerifyCommand(CLI::App& group, CommandContext& context);
void AddSessionInspectCommand(CLI::App& group, CommandContext& context);

// --address, or OSCARKV_ADDRESS; `otherwise` says in the help what is done without.
const CLI::Option* AddAddressOption(CLI::App& command, const std::string& otherwise);
// What the option was given, or kDefaultAddress.
std::string AddressOf(const CLI::Option& option);
void AddJsonFlag(CLI::App& command, CommandContext& context);

// Gives up soon: a person is waiting.
absl::StatusOr<std::unique_ptr<Client>> ConnectForCommand(const std::string& address);

// Writes a message in the JSON mapping of protobuf, all fields, names as in the .proto file.
absl::Status PrintJson(std::ostream& out, const google::protobuf::Message& message);

}  // namespace oscarkv
