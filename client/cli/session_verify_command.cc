#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/session_file.h"
#include "client/cli/table.h"
#include "client/error_info.h"

namespace oscarkv {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson ToJson(const std::string& path, const SessionFile& file) {
  const SessionFileState& state = file.contents.state;
  OrderedJson json = {{"file", path},
                      {"ok", true},
                      {"id", state.config().id},
                      {"generation", state.last_commit()->generation},
                      {"committed_length", CommittedLength(state)},
                      {"commits", state.commits()},
                      {"bytes", file.bytes},
                      {"tail_bytes", file.contents.tail_bytes}};
  const auto damage = TailDamage(file.contents);
  json["tail_damage"] = damage ? OrderedJson(*damage) : OrderedJson(nullptr);
  return json;
}

OrderedJson ToJson(const std::string& path, const absl::Status& status) {
  const auto info = ErrorInfoOf(status);
  return {{"file", path},
          {"ok", false},
          {"code", absl::StatusCodeToString(status.code())},
          {"reason", info ? info->reason() : ""},
          {"message", std::string(status.message())}};
}

std::string ToText(const std::string& path, const SessionFile& file) {
  const SessionFileState& state = file.contents.state;
  const std::string tail = DescribeTail(file.contents);
  return absl::StrCat(
      path, ": ok: session ", state.config().id, ", ", CommittedLength(state), " tokens, ",
      state.commits(), state.commits() == 1 ? " commit, " : " commits, ",
      FormatBytes(static_cast<std::int64_t>(file.bytes)), tail.empty() ? "" : ", ", tail);
}

absl::Status RunVerify(const CommandContext& context, const std::vector<std::string>& paths) {
  OrderedJson json = OrderedJson::array();
  absl::Status first_error;
  std::size_t bad = 0;
  for (const std::string& path : paths) {
    const auto file = ReadWholeSessionFile(path);
    if (!file.ok()) {
      ++bad;
      first_error.Update(file.status());
    }
    if (context.json) {
      json.push_back(file.ok() ? ToJson(path, *file) : ToJson(path, file.status()));
    } else {
      context.out << (file.ok() ? ToText(path, *file) : std::string(file.status().message()))
                  << std::endl;  // a line as soon as it is known: large files take a while
    }
  }
  if (context.json) {
    context.out << json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
  }
  if (bad == 0) return absl::OkStatus();
  return absl::Status(first_error.code(),
                      absl::StrCat(bad, " of ", paths.size(), " files are not good"));
}

}  // namespace

void AddSessionVerifyCommand(CLI::App& group, CommandContext& context) {
  CLI::App& command = *group.add_subcommand("verify", "Read session files whole, with all checks");
  AddJsonFlag(command, context);
  auto paths = std::make_shared<std::vector<std::string>>();
  command.add_option("files", *paths, "Session files")->type_name("FILE")->required();
  command.callback([&context, paths] {
    context.run = [&context, paths] { return RunVerify(context, *paths); };
  });
}

}  // namespace oscarkv
