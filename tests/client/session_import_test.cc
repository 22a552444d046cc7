// `oscarkv session export` of session files, and `oscarkv session import`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "client/cli/session_export.h"
#include "client/replay/local_server.h"
#include "client/session_writer.h"
#include "tests/client/run_cli.h"

namespace oscarkv {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class SessionImportTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = LocalServer::Start().value();
    other_ = LocalServer::Start().value();
  }
  static void TearDownTestSuite() {
    server_.reset();
    other_.reset();
  }
  void SetUp() override {
    unsetenv("OSCARKV_ADDRESS");
    client_ = Client::Connect(server_->address()).value();
    std::string pattern = ::testing::TempDir() + "/oscarkv-import-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    v1::CreateSessionRequest request;
    request.set_session("s");
    request.set_tenant("red");
    v1::LayerSpec& layer = *request.add_layers();
    layer.set_query_heads(2);
    layer.set_kv_heads(1);
    layer.set_key_dim(64);
    const v1::Session session = client_->CreateSession(request).value();
    SessionWriter writer(client_.get(), session);
    std::vector<float> numbers(std::size_t{kTokens} * 64);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = std::sin(static_cast<float>(i % 1009));
    }
    const std::string_view raw(reinterpret_cast<const char*>(numbers.data()),
                               numbers.size() * sizeof(float));
    LayerTokens tokens;
    tokens.tokens = kTokens;
    tokens.dtype = v1::DATA_TYPE_FP32;
    tokens.key = raw;
    tokens.value = raw;
    ASSERT_TRUE(writer.Append(0, tokens).ok());
  }
  void TearDown() override {
    client_->DeleteSession("s").IgnoreError();
    std::filesystem::remove_all(folder_);
  }

  std::string PathOf(const std::string& name) const { return folder_ + "/" + name; }
  static CliResult Run(std::vector<std::string> arguments, const LocalServer& server) {
    arguments.insert(arguments.begin(), "session");
    arguments.insert(arguments.end(), {"--address", server.address()});
    return Oscarkv(arguments);
  }

  static constexpr int kTokens = 400;
  static inline std::unique_ptr<LocalServer> server_;
  static inline std::unique_ptr<LocalServer> other_;
  std::unique_ptr<Client> client_;
  std::string folder_;
};

TEST_F(SessionImportTest, ASessionMovesToAnotherServer) {
  const std::string path = PathOf("s.okv");
  const CliResult exported = Run({"export", "s", path}, *server_);
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.out, HasSubstr("s.okv: 400 tokens of 1 layer, "));
  EXPECT_EQ(exported.err, "");
  EXPECT_EQ(Oscarkv({"session", "verify", path}).code, 0);
  const CliResult imported = Run({"import", path}, *other_);
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_THAT(imported.out, ::testing::MatchesRegex("s, generation [0-9]+, 400 tokens\n"));

  const CliResult named =
      Run({"import", path, "--session", "t", "--tenant", "blue", "--json"}, *other_);
  ASSERT_EQ(named.code, 0) << named.err;
  EXPECT_EQ(json::parse(named.out)["id"], "t");
  EXPECT_EQ(json::parse(named.out)["tenant"], "blue");
  EXPECT_EQ(json::parse(named.out)["committed_length"], "400");

  const CliResult there = Run({"import", path}, *other_);
  EXPECT_EQ(there.code, 1);
  EXPECT_THAT(there.err, HasSubstr("reason: SESSION_EXISTS"));
}

TEST_F(SessionImportTest, ExportTellsJsonAndKeepsFilesThatAreThere) {
  const std::string path = PathOf("s.okv");
  const CliResult first = Run({"export", "s", path, "--format", "okv", "--json"}, *server_);
  ASSERT_EQ(first.code, 0) << first.err;
  const json report = json::parse(first.out);
  EXPECT_EQ(report["format"], "okv");
  EXPECT_EQ(report["length"], kTokens);
  EXPECT_EQ(report["layers"], 1);
  EXPECT_EQ(report["bytes"], std::filesystem::file_size(path));
  EXPECT_EQ(report["generation"], client_->GetSession("s")->generation());
  EXPECT_EQ(Run({"export", "s", path}, *server_).code, 1);
  EXPECT_EQ(Run({"export", "s", path, "--force"}, *server_).code, 0);
  const CliResult missing = Run({"export", "nobody", PathOf("x")}, *server_);
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("reason: SESSION_NOT_FOUND"));
  EXPECT_FALSE(std::filesystem::exists(PathOf("x")));
}

TEST_F(SessionImportTest, FilesThatAreNoneAreRefused) {
  const std::string path = PathOf("s.okv");
  ASSERT_EQ(Run({"export", "s", path}, *server_).code, 0);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  const CliResult cut = Run({"import", path, "--session", "cut"}, *other_);
  EXPECT_EQ(cut.code, 1);
  EXPECT_THAT(cut.err, HasSubstr("reason: FILE_DAMAGED"));
  std::ofstream(PathOf("empty")).flush();
  EXPECT_THAT(Run({"import", PathOf("empty")}, *other_).err, HasSubstr("reason: FILE_DAMAGED"));
  EXPECT_THAT(Run({"import", PathOf("missing")}, *other_).err,
              ::testing::AllOf(HasSubstr("NOT_FOUND"), HasSubstr(PathOf("missing"))));
  EXPECT_THAT(Run({"import", folder_}, *other_).err, HasSubstr("is not a regular file"));
  EXPECT_THAT(Run({"import", path, "--session", "a b"}, *other_).err,
              HasSubstr("field: header.session"));
}

TEST_F(SessionImportTest, AnExportCanBeCancelled) {
  ExportRequest request;
  request.session = "s";
  request.cancelled = [] { return true; };
  EXPECT_TRUE(absl::IsCancelled(
      ExportSessionFile(*client_, request, *NewFile::Create(PathOf("x"), false).value()).status()));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

}  // namespace
}  // namespace oscarkv
