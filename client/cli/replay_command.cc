#include <unistd.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress_bar.h"
#include "client/cli/replay_output.h"
#include "client/recording/recording.h"
#include "client/replay/local_server.h"
#include "client/replay/replay.h"

namespace oscarkv {
namespace {

struct Arguments {
  std::vector<std::string> files;
  std::vector<std::string> profiles;
  int positions = 64;
  std::string address;  // "": a server of its own
};

std::vector<v1::Profile> ProfilesOf(const std::vector<std::string>& names) {
  if (names.empty()) return {v1::PROFILE_UNSPECIFIED};
  static const std::map<std::string, std::vector<v1::Profile>> kByName = {
      {"dense", {v1::PROFILE_DENSE}},
      {"precise", {v1::PROFILE_PRECISE}},
      {"paper", {v1::PROFILE_PAPER}},
      {"kivi", {v1::PROFILE_KIVI}},
      {"all", {v1::PROFILE_DENSE, v1::PROFILE_PRECISE, v1::PROFILE_PAPER, v1::PROFILE_KIVI}}};
  std::vector<v1::Profile> profiles;
  for (const std::string& name : names) {
    const std::vector<v1::Profile>& named = kByName.at(name);
    profiles.insert(profiles.end(), named.begin(), named.end());
  }
  return profiles;
}

absl::Status RunReplay(const CommandContext& context, const Arguments& arguments) {
  // Before anything is sent: a file that is bad should not cost the results of those before it.
  std::vector<Recording> recordings;
  for (const std::string& file : arguments.files) {
    auto recording = Recording::Open(file);
    if (!recording.ok()) return recording.status();
    if (absl::Status status = CheckReplayable(*recording); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(file, ": ", status.message()));
    }
    recordings.push_back(*std::move(recording));
  }
  CatchInterrupts();
  std::unique_ptr<LocalServer> local;
  std::string address = arguments.address;
  if (address.empty()) {
    auto server = LocalServer::Start();
    if (!server.ok()) return server.status();
    local = *std::move(server);
    address = local->address();
  }
  const auto client = ConnectForCommand(address);
  if (!client.ok()) return client.status();

  std::vector<ReplayReport> reports;
  for (const Recording& recording : recordings) {
    for (const v1::Profile profile : ProfilesOf(arguments.profiles)) {
      ProgressBar bar(context.err, isatty(STDERR_FILENO) != 0,
                      absl::StrCat(recording.model(), ", ", ProfileName(profile)));
      ReplayOptions options;
      options.profile = profile;
      options.positions = arguments.positions;
      options.cancelled = Interrupted;
      options.on_progress = [&bar](int done, int total) { bar.Show(done, total); };
      auto report = Replay(**client, recording, options);
      if (!report.ok()) return report.status();
      reports.push_back(*std::move(report));
    }
  }
  context.json ? PrintReplayJson(context.out, reports) : PrintReplayTable(context.out, reports);
  return absl::OkStatus();
}

}  // namespace

void AddReplayCommand(CLI::App& app, CommandContext& context) {
  CLI::App& command = *app.add_subcommand(
      "replay", "Play recordings through a server and compare with exact attention");
  const auto* address = AddAddressOption(command, "a server of its own, inside this process");
  AddJsonFlag(command, context);
  auto arguments = std::make_shared<Arguments>();
  command.add_option("files", arguments->files, "Recordings (.safetensors)")
      ->type_name("FILE")
      ->required();
  command
      .add_option("--profile", arguments->profiles,
                  "Codec profile; may be given several times (default: the server's)")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->transform(CLI::IsMember({"dense", "precise", "paper", "kivi", "all"}, CLI::ignore_case));
  command
      .add_option("--positions", arguments->positions,
                  "Positions to compare in each layer, over the second half of its tokens")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  command.callback([&context, arguments, address] {
    if (!address->empty()) arguments->address = address->as<std::string>();
    context.run = [&context, arguments] { return RunReplay(context, *arguments); };
  });
}

}  // namespace oscarkv
