#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress_bar.h"
#include "client/cli/session_file.h"

namespace oscarkv {
namespace {

// Sends the file that is at `path`.
absl::StatusOr<v1::Session> Import(Client& client, const v1::ImportSessionHeader& header,
                                   const std::string& path, ProgressBar& bar) {
  const auto file = OpenSessionFile(path);
  if (!file.ok()) return file.status();
  const absl::StatusOr<std::uint64_t> size = (*file)->Size();
  if (!size.ok()) return size.status();
  const auto total = static_cast<std::int64_t>(*size);
  return client.ImportSession(
      header, [&](std::int64_t offset, std::int64_t most) -> absl::StatusOr<std::string> {
        if (Interrupted()) return absl::CancelledError("interrupted");
        std::string bytes(static_cast<std::size_t>(std::min(most, total - offset)), '\0');
        absl::Status status = (*file)->ReadAt(static_cast<std::uint64_t>(offset),
                                              std::as_writable_bytes(std::span<char>(bytes)));
        if (!status.ok()) return status;
        bar.Show(offset, std::max<std::int64_t>(1, total));
        return bytes;
      });
}

absl::Status RunImport(const CommandContext& context, const std::string& address,
                       const std::string& path, const v1::ImportSessionHeader& header) {
  CatchInterrupts();
  const auto client = ConnectForCommand(address);
  if (!client.ok()) return client.status();
  absl::StatusOr<v1::Session> session;
  {
    ProgressBar bar(context.err, isatty(STDERR_FILENO) != 0, path);
    session = Import(**client, header, path, bar);
  }
  if (!session.ok()) return session.status();
  if (context.json) return PrintJson(context.out, *session);
  context.out << session->id() << ", generation " << session->generation() << ", "
              << session->committed_length() << " tokens\n";
  return absl::OkStatus();
}

}  // namespace

void AddSessionImportCommand(CLI::App& group, CommandContext& context) {
  CLI::App& command = *group.add_subcommand("import", "Make a session of a session file");
  const auto* address = AddAddressOption(command, kDefaultAddress);
  AddJsonFlag(command, context);
  const auto* file = command.add_option("file", "The file")->type_name("FILE")->required();
  const auto* session =
      command.add_option("--session", "Its id (default: the one that the file has)")
          ->type_name("ID");
  const auto* tenant =
      command.add_option("--tenant", "Its tenant (default: the one that the file has)")
          ->type_name("NAME");
  command.callback([&context, address, file, session, tenant] {
    context.run = [&context, address, file, session, tenant] {
      v1::ImportSessionHeader header;
      if (!session->empty()) header.set_session(session->as<std::string>());
      if (!tenant->empty()) header.set_tenant(tenant->as<std::string>());
      return RunImport(context, AddressOf(*address), file->as<std::string>(), header);
    };
  });
}

}  // namespace oscarkv
