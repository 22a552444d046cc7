#include "tests/server/support/transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "server/session/session_export.h"
#include "server/session/session_import.h"

namespace oscarkv {

std::vector<std::byte> ExportAll(SessionStore* store, const std::string& session,
                                 std::size_t most) {
  std::vector<std::byte> file;
  const auto made = store->Export(session, 0);
  EXPECT_TRUE(made.ok()) << made.status();
  while (made.ok() && !(*made)->done()) {
    const auto bytes = (*made)->Next(most);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    if (!bytes.ok()) break;
    file.insert(file.end(), bytes->begin(), bytes->end());
  }
  return file;
}

absl::StatusOr<SessionInfo> ImportAll(SessionStore* store, const std::vector<std::byte>& file,
                                      ImportOptions options) {
  constexpr std::size_t kPiece = 777;
  const auto import = store->Import(std::move(options));
  for (std::size_t at = 0; at < file.size(); at += kPiece) {
    const std::size_t some = std::min(kPiece, file.size() - at);
    if (absl::Status s = import->Push(std::span(file).subspan(at, some)); !s.ok()) return s;
  }
  return import->Finish();
}

}  // namespace oscarkv
