#include <cstdint>
#include <limits>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/cli/commands.h"
#include "client/cli/table.h"
#include "client/error_info.h"

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

absl::Status RunFork(const CommandContext& context, const std::string& address, v1::Fork fork) {
  const auto client = ConnectForCommand(address);
  if (!client.ok()) return client.status();
  const auto source = (*client)->GetSession(fork.source());
  if (!source.ok()) return source.status();
  fork.set_generation(source->generation());
  v1::ForkSessionRequest request;
  *request.add_forks() = std::move(fork);
  const auto response = (*client)->ForkSession(request);
  if (!response.ok()) return response.status();
  const v1::ForkResult& result = response->results(0);
  if (absl::Status status = StatusOf(result); !status.ok()) return status;
  if (context.json) return PrintJson(context.out, result.session());
  context.out << result.session().id() << ", generation " << result.session().generation() << ", "
              << result.session().committed_length() << " tokens\n";
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

using MoveCall = absl::StatusOr<v1::Session> (Client::*)(const std::string& session,
                                                         std::uint64_t generation,
                                                         const CallOptions& options);

absl::Status RunMove(const CommandContext& context, const std::string& address, MoveCall call,
                     const std::string& id, std::uint64_t generation) {
  const auto client = ConnectForCommand(address);
  if (!client.ok()) return client.status();
  // A large session takes its time to be written or read.
  const auto session = ((**client).*call)(id, generation, {.timeout = absl::Hours(1)});
  if (!session.ok()) return session.status();
  if (context.json) return PrintJson(context.out, *session);
  context.out << session->id() << ", " << session->committed_length() << " tokens, "
              << session->durable_length() << " durable, "
              << (session->evicted() ? "in its file alone"
                                     : FormatBytes(session->resident_bytes()) + " resident")
              << "\n";
  return absl::OkStatus();
}

// What a command changes of how long a session is kept.
struct RetentionChange {
  std::optional<std::int32_t> priority;
  std::optional<bool> pinned;
  std::optional<absl::Duration> ttl;  // infinite: none
};

std::string FormatTtl(const v1::Retention& retention) {
  if (!retention.has_ttl()) return "never expires";
  return absl::StrCat("expires after ",
                      absl::FormatDuration(absl::Seconds(retention.ttl().seconds()) +
                                           absl::Nanoseconds(retention.ttl().nanos())));
}

absl::Status RunUpdate(const CommandContext& context, const std::string& address,
                       const std::string& id, std::uint64_t generation,
                       const RetentionChange& change) {
  const auto client = ConnectForCommand(address);
  if (!client.ok()) return client.status();
  const auto before = (*client)->GetSession(id);
  if (!before.ok()) return before.status();
  v1::Retention retention = before->retention();
  if (change.priority) retention.set_priority(*change.priority);
  if (change.pinned) retention.set_pinned(*change.pinned);
  if (change.ttl == absl::InfiniteDuration()) {
    retention.clear_ttl();
  } else if (change.ttl) {
    absl::Duration rest;
    retention.mutable_ttl()->set_seconds(absl::IDivDuration(*change.ttl, absl::Seconds(1), &rest));
    retention.mutable_ttl()->set_nanos(static_cast<int>(absl::ToInt64Nanoseconds(rest)));
  }
  const auto session = (*client)->UpdateSession(id, retention, generation);
  if (!session.ok()) return session.status();
  if (context.json) return PrintJson(context.out, *session);
  context.out << session->id() << ", priority " << session->retention().priority() << ", "
              << (session->retention().pinned() ? "pinned, " : "")
              << FormatTtl(session->retention()) << "\n";
  return absl::OkStatus();
}

// "none" or a positive duration.
std::optional<absl::Duration> ParseTtl(const std::string& text) {
  absl::Duration ttl = absl::InfiniteDuration();
  if (text == "none") return ttl;
  if (!absl::ParseDuration(text, &ttl) || ttl <= absl::ZeroDuration() ||
      ttl == absl::InfiniteDuration()) {
    return std::nullopt;
  }
  return ttl;
}

// "" or what is wrong, as the parser wants it.
std::string CheckTtl(const std::string& text) {
  return ParseTtl(text) ? "" : "neither none nor a duration, as 90s, 30m, 2h: " + text;
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

void AddForkCommand(CLI::App& group, CommandContext& context) {
  const Command fork =
      AddCommand(group, context, "fork", "Make a session that begins as another one is");
  const auto* source =
      fork.app.add_option("source", "Id of the other one")->type_name("SOURCE")->required();
  const auto* id = fork.app.add_option("session", "Its id")->type_name("ID")->required();
  const auto* length = fork.app.add_option("--length", "Its first tokens alone, that many")
                           ->check(CLI::NonNegativeNumber)
                           ->type_name("TOKENS");
  const auto* replace =
      fork.app.add_flag("--replace")
          ->description("Take the place of a session of that id, which is deleted");
  fork.app.callback([&context, fork, source, id, length, replace] {
    context.run = [&context, fork, source, id, length, replace] {
      v1::Fork asked;
      asked.set_source(source->as<std::string>());
      asked.set_session(id->as<std::string>());
      if (!length->empty()) asked.set_length(length->as<std::int64_t>());
      asked.set_replace(!replace->empty());
      return RunFork(context, AddressOf(fork.address), std::move(asked));
    };
  });
}

// Of a command that is for a session, maybe only of one generation.
struct SessionCommand {
  Command command;
  const CLI::Option& id;
  const CLI::Option& generation;

  std::uint64_t OnlyGeneration() const {
    return generation.empty() ? 0 : generation.as<std::uint64_t>();
  }
};

SessionCommand AddSessionCommand(CLI::App& group, CommandContext& context, const std::string& name,
                                 const std::string& help) {
  const Command command = AddCommand(group, context, name, help);
  const CLI::Option& id = *command.app.add_option("session", "Its id")->type_name("ID")->required();
  const CLI::Option& generation =
      *command.app.add_option("--generation", "Only if it is of this generation")
           ->check(CheckGeneration, "NUMBER");
  return {command, id, generation};
}

void AddDeleteCommand(CLI::App& group, CommandContext& context) {
  const SessionCommand remove = AddSessionCommand(group, context, "delete", "Delete a session");
  remove.command.app.callback([&context, remove] {
    context.run = [&context, remove] {
      return RunDelete(context, AddressOf(remove.command.address), remove.id.as<std::string>(),
                       remove.OnlyGeneration());
    };
  });
}

void AddUpdateCommand(CLI::App& group, CommandContext& context) {
  const SessionCommand update =
      AddSessionCommand(group, context, "update", "Change how long a session is kept");
  CLI::App& app = update.command.app;
  CLI::Option* priority = app.add_option("--priority", "Sessions of a lower one are evicted first")
                              ->check(CLI::Range(std::numeric_limits<std::int32_t>::min(),
                                                 std::numeric_limits<std::int32_t>::max()))
                              ->type_name("NUMBER");
  CLI::Option* pin = app.add_flag("--pin")->description("Never evict it, nor let it expire");
  CLI::Option* unpin = app.add_flag("--unpin")->description("The opposite")->excludes(pin);
  CLI::Option* ttl =
      app.add_option("--ttl", "Delete it once it has not been used for so long; none: never")
          ->check(CheckTtl, "DURATION");
  app.require_option(1, 0);
  app.callback([&context, update, priority, pin, unpin, ttl] {
    context.run = [&context, update, priority, pin, unpin, ttl] {
      RetentionChange change;
      if (!priority->empty()) change.priority = priority->as<std::int32_t>();
      if (!pin->empty() || !unpin->empty()) change.pinned = !pin->empty();
      if (!ttl->empty()) change.ttl = ParseTtl(ttl->as<std::string>());
      return RunUpdate(context, AddressOf(update.command.address), update.id.as<std::string>(),
                       update.OnlyGeneration(), change);
    };
  });
}

void AddMoveCommand(CLI::App& group, CommandContext& context, const std::string& name,
                    const std::string& help, MoveCall call) {
  const SessionCommand move = AddSessionCommand(group, context, name, help);
  move.command.app.callback([&context, move, call] {
    context.run = [&context, move, call] {
      return RunMove(context, AddressOf(move.command.address), call, move.id.as<std::string>(),
                     move.OnlyGeneration());
    };
  });
}

}  // namespace

void AddSessionCommands(CLI::App& app, CommandContext& context) {
  CLI::App& group = *app.add_subcommand("session", "Work with sessions and session files");
  group.require_subcommand(1);
  AddListCommand(group, context);
  AddGetCommand(group, context);
  AddForkCommand(group, context);
  AddDeleteCommand(group, context);
  AddUpdateCommand(group, context);
  AddMoveCommand(group, context, "evict", "Move a session to its file, and free its memory",
                 &Client::EvictSession);
  AddMoveCommand(group, context, "restore", "Bring a session back to memory from its file",
                 &Client::RestoreSession);
  AddMoveCommand(group, context, "checkpoint", "Write what a session has to its file",
                 &Client::CheckpointSession);
  AddSessionExportCommand(group, context);
  AddSessionImportCommand(group, context);
  AddSessionVerifyCommand(group, context);
  AddSessionInspectCommand(group, context);
}

}  // namespace oscarkv
