#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/table.h"

namespace oscarkv {
namespace {

std::string CreateTime(const v1::Session& session) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ",
                          absl::FromUnixSeconds(session.create_time().seconds()),
                          absl::UTCTimeZone());
}

absl::Status RunList(const CommandContext& context, const std::string& address,
                     const std::optional<std::string>& tenant) {
  const auto client = ConnectForCommand(address);
  if (!client.ok()) return client.status();
  const auto sessions = (*client)->ListSessions(tenant);
  if (!sessions.ok()) return sessions.status();
  if (context.json) {
    v1::ListSessionsResponse all;
    all.mutable_sessions()->Add(sessions->begin(), sessions->end());
    return PrintJson(context.out, all);
  }
  Table table({"session", "model", "tenant", "tokens", "logical", "resident", "created"});
  for (const v1::Session& session : *sessions) {
    table.AddRow({session.id(), session.model(), session.tenant(),
                  absl::StrCat(session.committed_length()), FormatBytes(session.logical_bytes()),
                  FormatBytes(session.resident_bytes()), CreateTime(session)});
  }
  table.Print(context.out);
  return absl::OkStatus();
}

absl::Status RunGet(const CommandContext& context, const std::string& address,
                    const std::string& id) {
  const auto client = ConnectForCommand(address);
  if (!client.ok()) return client.status();
  const auto session = (*client)->GetSession(id);
  if (!session.ok()) return session.status();
  if (context.json) return PrintJson(context.out, *session);
  context.out << "session " << session->id() << ", generation " << session->generation()
              << ", created " << CreateTime(*session) << "\n"
              << session->committed_length() << " tokens, " << FormatBytes(session->logical_bytes())
              << " in 16 bits, " << FormatBytes(session->resident_bytes()) << " resident\n\n";
  Table table({"layer", "heads", "dims", "profile", "tokens", "sealed", "bits/value", "logical",
               "resident"});
  for (int i = 0; i < session->layers_size() && i < session->layer_states_size(); ++i) {
    const v1::LayerSpec& spec = session->layers(i);
    const v1::LayerState& state = session->layer_states(i);
    table.AddRow(
        {absl::StrCat(spec.layer()), absl::StrCat(spec.query_heads(), "/", spec.kv_heads()),
         absl::StrCat(spec.key_dim(), "/", spec.value_dim()),
         v1::Profile_Name(spec.codec().profile()), absl::StrCat(state.length()),
         absl::StrCat(state.sealed_tokens()), absl::StrFormat("%.2f", state.bits_per_value()),
         FormatBytes(state.logical_bytes()), FormatBytes(state.resident_bytes())});
  }
  table.Print(context.out);
  return absl::OkStatus();
}

absl::Status RunDelete(const CommandContext& context, const std::string& address,
                       const std::string& id, std::uint64_t generation) {
  const auto client = ConnectForCommand(address);
  if (!client.ok()) return client.status();
  if (absl::Status status = (*client)->DeleteSession(id, generation); !status.ok()) return status;
  if (context.json) return PrintJson(context.out, v1::DeleteSessionResponse());
  context.out << "deleted " << id << "\n";
  return absl::OkStatus();
}

// "" or what is wrong, as the parser wants it.
std::string CheckGeneration(const std::string& text) {
  std::uint64_t generation = 0;
  return absl::SimpleAtoi(text, &generation) ? "" : "not a generation: " + text;
}

struct Command {
  CLI::App& app;
  const CLI::Option& address;
};

Command AddCommand(CLI::App& group, CommandContext& context, const std::string& name,
                   const std::string& help) {
  CLI::App& app = *group.add_subcommand(name, help);
  const CLI::Option& address = *AddAddressOption(app, kDefaultAddress);
  AddJsonFlag(app, context);
  return {app, address};
}

void AddListCommand(CLI::App& group, CommandContext& context) {
  const Command list =
      AddCommand(group, context, "list", "List sessions in the order of their ids");
  const auto* tenant =
      list.app.add_option("--tenant", "Only sessions of this tenant")->type_name("NAME");
  list.app.callback([&context, list, tenant] {
    context.run = [&context, list, tenant] {
      std::optional<std::string> only;
      if (!tenant->empty()) only = tenant->as<std::string>();
      return RunList(context, AddressOf(list.address), only);
    };
  });
}

void AddGetCommand(CLI::App& group, CommandContext& context) {
  const Command get = AddCommand(group, context, "get", "Show a session and its layers");
  const auto* id = get.app.add_option("session", "Its id")->type_name("ID")->required();
  get.app.callback([&context, get, id] {
    context.run = [&context, get, id] {
      return RunGet(context, AddressOf(get.address), id->as<std::string>());
    };
  });
}

void AddDeleteCommand(CLI::App& group, CommandContext& context) {
  const Command remove = AddCommand(group, context, "delete", "Delete a session");
  const auto* id = remove.app.add_option("session", "Its id")->type_name("ID")->required();
  const auto* generation =
      remove.app.add_option("--generation", "Only if it is of this generation")
          ->check(CheckGeneration, "NUMBER");
  remove.app.callback([&context, remove, id, generation] {
    context.run = [&context, remove, id, generation] {
      const std::uint64_t only = generation->empty() ? 0 : generation->as<std::uint64_t>();
      return RunDelete(context, AddressOf(remove.address), id->as<std::string>(), only);
    };
  });
}

}  // namespace

void AddSessionCommands(CLI::App& app, CommandContext& context) {
  CLI::App& group = *app.add_subcommand("session", "List, show and delete sessions");
  group.require_subcommand(1);
  AddListCommand(group, context);
  AddGetCommand(group, context);
  AddDeleteCommand(group, context);
}

}  // namespace oscarkv
