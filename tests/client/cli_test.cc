#include "client/cli/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "client/cli/progress_bar.h"
#include "client/cli/table.h"
#include "client/client.h"
#include "client/replay/local_server.h"
#include "server/server.h"
#include "tests/client/recording_builder.h"
#include "tests/client/run_cli.h"

namespace oscarkv {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

std::set<std::string> KeysOf(const json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

std::string DataPath(const std::string& name) {
  return std::string(OSCARKV_TEST_DATA) + "/" + name + ".safetensors";
}

class CliTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = LocalServer::Start().value(); }
  static void TearDownTestSuite() { server_.reset(); }
  void SetUp() override { unsetenv("OSCARKV_ADDRESS"); }

  static std::string address() { return server_->address(); }
  static void CreateSession(const std::string& id, const std::string& tenant) {
    v1::CreateSessionRequest request;
    request.set_session(id);
    request.set_tenant(tenant);
    request.set_model("Test-1B");
    v1::LayerSpec& layer = *request.add_layers();
    layer.set_layer(5);
    layer.set_query_heads(4);
    layer.set_kv_heads(2);
    layer.set_key_dim(64);
    ASSERT_TRUE(Client::Connect(address()).value()->CreateSession(request).ok());
  }

  static inline std::unique_ptr<LocalServer> server_;
};

TEST_F(CliTest, WrongUsageIsTwo) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"frobnicate"},
                                             {"--frobnicate"},
                                             {"info", "extra"},
                                             {"info", "--frobnicate"},
                                             {"session"},
                                             {"session", "get"},
                                             {"session", "fork", "x"},
                                             {"session", "fork", "x", "y", "--length", "-1"},
                                             {"session", "delete", "x", "--generation", "-1"},
                                             {"session", "delete", "x", "--generation", "many"},
                                             {"session", "update", "x", "--pin", "--unpin"},
                                             {"session", "update", "x", "--ttl", "0s"},
                                             {"session", "update", "x", "--ttl", "soon"},
                                             {"session", "update", "x", "--priority", "high"},
                                             {"inspect"},
                                             {"replay"},
                                             {"replay", "x", "--positions", "0"},
                                             {"replay", "x", "--positions", "many"},
                                             {"replay", "x", "--profile", "sparse"}}) {
    const CliResult result = Oscarkv(arguments);
    EXPECT_EQ(result.code, 2) << testing::PrintToString(arguments);
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err, "");
  }
}

TEST_F(CliTest, HelpAndVersionAreZero) {
  EXPECT_THAT(Oscarkv({"--version"}).out, StartsWith("oscarkv " OSCARKV_VERSION));
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--version"},
                                             {"--help"},
                                             {"info", "--help"},
                                             {"session", "--help"},
                                             {"session", "list", "--help"},
                                             {"replay", "--help"},
                                             {"inspect", "--help"}}) {
    const CliResult result = Oscarkv(arguments);
    EXPECT_EQ(result.code, 0);
    EXPECT_NE(result.out, "");
    EXPECT_EQ(result.err, "");
  }
}

TEST_F(CliTest, FailuresAreOneAndSayWhy) {
  CliResult result = Oscarkv({"info", "--address", "unix:/nonexistent/socket"});
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("UNAVAILABLE: no answer from unix:/nonexistent/socket"));

  for (const char* command : {"get", "delete"}) {
    result = Oscarkv({"session", command, "none", "--address", address(), "--json"});
    EXPECT_EQ(result.code, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr("NOT_FOUND"));
    EXPECT_THAT(result.err, HasSubstr("reason: SESSION_NOT_FOUND"));
  }
  for (const char* command : {"evict", "restore", "checkpoint"}) {
    result = Oscarkv({"session", command, "none", "--address", address()});
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, HasSubstr("FAILED_PRECONDITION"));
    EXPECT_THAT(result.err, HasSubstr("reason: NO_DATA_DIR"));
  }
  for (const char* command : {"inspect", "replay"}) {
    result = Oscarkv({command, "/nonexistent/file"});
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, HasSubstr("/nonexistent/file"));
    const TemporaryFile bad("this is no recording");
    result = Oscarkv({command, bad.path()});
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.err, HasSubstr("DATA_LOSS"));
  }
}

TEST_F(CliTest, InfoShowsTheServer) {
  const std::string shown = Oscarkv({"info", "--address", address()}).out;
  EXPECT_THAT(shown, HasSubstr("PROFILE_DENSE"));
  EXPECT_THAT(shown, HasSubstr("held for blocks:"));
  const CliResult result = Oscarkv({"info", "--json", "--address", address()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["version"], OSCARKV_VERSION);
}

TEST_F(CliTest, TheAddressMayComeFromTheEnvironment) {
  setenv("OSCARKV_ADDRESS", address().c_str(), 1);
  EXPECT_EQ(Oscarkv({"info"}).code, 0);
  EXPECT_EQ(Oscarkv({"info", "--address", "unix:/nonexistent/socket"}).code, 1);
  setenv("OSCARKV_ADDRESS", "unix:/nonexistent/socket", 1);
  EXPECT_EQ(Oscarkv({"info"}).code, 1);
  EXPECT_EQ(Oscarkv({"replay", DataPath("gemma3-270m")}).code, 1);
  EXPECT_EQ(Oscarkv({"info", "--address", address()}).code, 0);
}

TEST_F(CliTest, SessionsAreListedShownForkedAndDeleted) {
  CreateSession("s-1", "red");
  CreateSession("s-2", "");
  CliResult result = Oscarkv({"session", "list", "--address", address()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("s-1"));
  EXPECT_THAT(result.out, HasSubstr("s-2"));

  result = Oscarkv({"session", "list", "--address", address(), "--tenant", "red", "--json"});
  json listed = json::parse(result.out)["sessions"];
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0]["id"], "s-1");
  listed =
      json::parse(Oscarkv({"session", "list", "--address", address(), "--tenant", "", "--json"})
                      .out)["sessions"];
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0]["id"], "s-2");

  result = Oscarkv({"session", "get", "s-1", "--address", address()});
  EXPECT_THAT(result.out, HasSubstr("64/64"));
  result = Oscarkv({"session", "get", "s-1", "--address", address(), "--json"});
  const json session = json::parse(result.out);
  EXPECT_EQ(session["id"], "s-1");
  EXPECT_EQ(session["model"], "Test-1B");

  result = Oscarkv({"session", "fork", "s-1", "s-3", "--length", "0", "--address", address()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("s-3, generation "));
  EXPECT_THAT(result.out, HasSubstr(", 0 tokens"));
  EXPECT_EQ(Oscarkv({"session", "fork", "s-1", "s-3", "--address", address()}).code, 1);
  result =
      Oscarkv({"session", "fork", "s-1", "s-3", "--replace", "--address", address(), "--json"});
  EXPECT_EQ(json::parse(result.out)["id"], "s-3");
  result = Oscarkv({"session", "fork", "s-1", "s-4", "--length", "9", "--address", address()});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("forks[0].length"));

  const std::string other =
      std::to_string(std::stoull(session["generation"].get<std::string>()) + 1);
  EXPECT_EQ(
      Oscarkv({"session", "delete", "s-1", "--generation", other, "--address", address()}).code, 1);
  for (const char* id : {"s-1", "s-3"}) {
    EXPECT_EQ(Oscarkv({"session", "delete", id, "--address", address()}).code, 0);
  }
  result = Oscarkv({"session", "delete", "s-2", "--address", address(), "--json"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(json::parse(result.out), json::object());
  EXPECT_EQ(Oscarkv({"session", "get", "s-1", "--address", address()}).code, 1);
}

TEST_F(CliTest, SessionsMoveToTheirFilesAndBack) {
  std::string folder = testing::TempDir() + "cli_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  {
    Config config;
    config.address = "127.0.0.1:0";
    config.data_dir = folder;
    const auto server = Server::Start(config);
    ASSERT_TRUE(server.ok()) << server.status();
    const std::string address = (*server)->address();
    v1::CreateSessionRequest request;
    request.set_session("s");
    v1::LayerSpec& layer = *request.add_layers();
    layer.set_query_heads(1);
    layer.set_kv_heads(1);
    layer.set_key_dim(64);
    const auto session = Client::Connect(address).value()->CreateSession(request);
    ASSERT_TRUE(session.ok()) << session.status();
    const auto run = [&](const char* command) {
      return Oscarkv({"session", command, "s", "--address", address, "--generation",
                      std::to_string(session->generation())});
    };
    CliResult updated = Oscarkv({"session", "update", "s", "--address", address, "--priority", "-3",
                                 "--pin", "--ttl", "90s"});
    EXPECT_EQ(updated.out, "s, priority -3, pinned, expires after 1m30s\n") << updated.err;
    updated = Oscarkv({"session", "update", "s", "--address", address, "--unpin"});
    EXPECT_EQ(updated.out, "s, priority -3, expires after 1m30s\n");
    updated = Oscarkv({"session", "update", "s", "--address", address, "--ttl", "none", "--json"});
    EXPECT_FALSE(json::parse(updated.out)["retention"].contains("ttl"));
    EXPECT_EQ(json::parse(updated.out)["retention"]["priority"], -3);
    EXPECT_EQ(run("checkpoint").out, "s, 0 tokens, 0 durable, 0 B resident\n");
    EXPECT_EQ(run("evict").out, "s, 0 tokens, 0 durable, in its file alone\n");
    EXPECT_EQ(run("restore").out, "s, 0 tokens, 0 durable, 0 B resident\n");
    const CliResult result = Oscarkv({"session", "evict", "s", "--address", address, "--json"});
    EXPECT_EQ(json::parse(result.out)["evicted"], true);
  }
  std::filesystem::remove_all(folder);
}

TEST_F(CliTest, InspectShowsARecording) {
  EXPECT_THAT(Oscarkv({"inspect", DataPath("gemma3-270m")}).out, HasSubstr("256/256"));
  const json recording = json::parse(Oscarkv({"inspect", "--json", DataPath("gemma3-270m")}).out);
  EXPECT_EQ(recording["layers"][0]["softcap"], nullptr);
  EXPECT_EQ(recording["layers"][0]["key"]["shape"], json({1000, 1, 256}));
  EXPECT_EQ(recording["layers"][1]["sliding_window"], 512);
}

TEST_F(CliTest, RecordingsWithoutQueriesAreShownAndNotReplayed) {
  RecordingBuilder builder;
  builder.AddLayer(3, 20, 1, 2, 64, 64).AddLayerWithoutQueries(7, 20, 2, 6, 64, 80);
  builder.layers.back()["begin"] = 700;
  const TemporaryFile file(builder.Bytes());
  EXPECT_THAT(Oscarkv({"inspect", file.path()}).out, HasSubstr("6/2"));
  const json layers = json::parse(Oscarkv({"inspect", "--json", file.path()}).out)["layers"];
  EXPECT_EQ(layers[0]["query"]["shape"], json({20, 2, 64}));
  EXPECT_EQ(layers[0]["begin"], 0);
  EXPECT_EQ(layers[1]["query"], nullptr);
  EXPECT_EQ(layers[1]["query_heads"], 6);
  EXPECT_EQ(layers[1]["begin"], 700);

  // Before anything is sent, also of the recordings before.
  const CliResult result =
      Oscarkv({"replay", DataPath("gemma3-270m"), file.path(), "--address", "unix:/nonexistent"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err,
              HasSubstr("FAILED_PRECONDITION: " + file.path() + ": layer 7 has no queries"));
}

TEST_F(CliTest, RecordingsThatLackTheirFirstTokensAreNotReplayed) {
  RecordingBuilder builder;
  builder.AddLayer(3, 20, 1, 2, 64, 64).layers.back()["begin"] = 5;
  const TemporaryFile file(builder.Bytes());
  const CliResult result = Oscarkv({"replay", file.path()});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("layer 3 begins at token 5"));
}

void CheckReplayObject(const json& report) {
  EXPECT_EQ(KeysOf(report), (std::set<std::string>{"model", "profile", "layers", "summary"}));
  for (const json& layer : report["layers"]) {
    EXPECT_EQ(KeysOf(layer), (std::set<std::string>{"layer", "tokens", "bits_per_value",
                                                    "logical_bytes", "resident_bytes",
                                                    "output_relative_error", "lse_max_abs_error"}));
    for (const auto& [key, value] : layer.items()) EXPECT_TRUE(value.is_number()) << key;
  }
  EXPECT_EQ(KeysOf(report["summary"]),
            (std::set<std::string>{"bits_per_value", "logical_bytes", "resident_bytes",
                                   "memory_ratio", "output_relative_error", "attend_p50_seconds",
                                   "append_bytes_per_second"}));
  for (const auto& [key, value] : report["summary"].items()) EXPECT_TRUE(value.is_number()) << key;
}

TEST_F(CliTest, ReplayStartsAServerOfItsOwn) {
  const CliResult result =
      Oscarkv({"replay", DataPath("gemma3-270m"), "--positions", "2", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json report = json::parse(result.out);
  CheckReplayObject(report);
  EXPECT_EQ(report["model"], "Gemma-3-270M");
  EXPECT_EQ(report["profile"], "DENSE");
  EXPECT_EQ(report["layers"].size(), 2u);
}

TEST_F(CliTest, ReplayOfSeveralIsAList) {
  const CliResult result =
      Oscarkv({"replay", "--profile", "paper", "--profile", "Dense", DataPath("gemma3-270m"),
               DataPath("smollm2-135m"), "--positions", "2", "--json", "--address", address()});
  ASSERT_EQ(result.code, 0) << result.err;
  const json reports = json::parse(result.out);
  ASSERT_TRUE(reports.is_array());
  ASSERT_EQ(reports.size(), 4u);
  for (const json& report : reports) CheckReplayObject(report);
  EXPECT_EQ(reports[0]["profile"], "PAPER");
  EXPECT_EQ(reports[1]["profile"], "DENSE");
  EXPECT_EQ(reports[2]["model"], "SmolLM2-135M-Instruct");
  EXPECT_TRUE(Client::Connect(address()).value()->ListSessions()->empty());
}

TEST_F(CliTest, ReplayPrintsATable) {
  const CliResult result = Oscarkv({"replay", DataPath("gemma3-270m"), "--positions", "2",
                                    "--profile", "all", "--address", address()});
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* profile : {"DENSE", "PRECISE", "PAPER", "KIVI"}) {
    EXPECT_THAT(result.out, HasSubstr(profile));
  }
}

TEST(TableTest, AlignsNumbersToTheRight) {
  Table table({"name", "count"});
  table.AddRow({"a", "1"});
  table.AddRow({"longer", "-12345678"});
  std::ostringstream out;
  table.Print(out);
  EXPECT_EQ(out.str(), "name        count\na               1\nlonger  -12345678\n");
}

TEST(TableTest, FormatsAsPeopleRead) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(std::int64_t{1} << 31), "2.0 GiB");
  EXPECT_EQ(FormatSeconds(850e-9), "850 ns");
  EXPECT_EQ(FormatSeconds(12.3e-6), "12.3 us");
  EXPECT_EQ(FormatSeconds(4.56e-3), "4.56 ms");
  EXPECT_EQ(FormatSeconds(1.2), "1.2 s");
}

TEST(ProgressBarTest, IsShownOnATerminalOnlyAndRemoved) {
  std::ostringstream hidden, shown;
  { ProgressBar(hidden, false, "x").Show(1, 2); }
  EXPECT_EQ(hidden.str(), "");
  {
    ProgressBar bar(shown, true, "x");
    bar.Show(1, 2);
    bar.Show(1, 2);
  }
  EXPECT_EQ(shown.str(),
            "\r\x1b[Kx [" + std::string(15, '=') + std::string(15, ' ') + "]  50%\r\x1b[K");
}

}  // namespace
}  // namespace oscarkv
