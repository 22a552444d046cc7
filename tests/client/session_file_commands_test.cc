// `oscarkv session verify` and `oscarkv session inspect`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "client/cli/table.h"
#include "tests/client/recording_builder.h"
#include "tests/client/run_cli.h"
#include "tests/server/file/known_files.h"

namespace oscarkv {
namespace {

using nlohmann::json;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kGoldenPath = std::string(OSCARKV_TEST_DATA) + "/session-v1.okv";

std::string Text(const FileBytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A file with the start of another version, right but for that.
FileBytes OfVersion(std::uint32_t version) {
  FileBytes bytes = GoldenFile();
  FileStart start;
  std::memcpy(&start, bytes.data(), sizeof(start));
  start.version = version;
  SetCrc(&start);
  std::memcpy(bytes.data(), &start, sizeof(start));
  return bytes;
}

// A byte of the payload of the first record of the type.
std::size_t PayloadOf(const FileBytes& bytes, RecordType type) {
  for (std::size_t at = sizeof(FileStart); at < bytes.size();) {
    const auto header =
        ParseRecordHeader(std::span(bytes).subspan(at).first<sizeof(RecordHeader)>());
    if (header->type == type) return at + sizeof(RecordHeader);
    at += sizeof(RecordHeader) + PaddedBytes(header->payload_bytes);
  }
  ADD_FAILURE() << "no record of the type";
  return 0;
}

FileBytes Flipped(FileBytes bytes, std::size_t at) {
  bytes[at] ^= std::byte{0x10};
  return bytes;
}

TEST(VerifyTest, GoodFilesAreToldInALineEach) {
  const TemporaryFile example(Text(ExampleFile()));
  const CliResult result = Oscarkv({"session", "verify", kGoldenPath, example.path()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, StartsWith(kGoldenPath + ": ok: session golden, 70 tokens, 2 commits, "));
  EXPECT_THAT(result.out,
              EndsWith("\n" + example.path() + ": ok: session s, 3 tokens, 1 commit, " +
                       FormatBytes(static_cast<std::int64_t>(ExampleFile().size())) + "\n"));
}

TEST(VerifyTest, AnIgnoredTailIsGoodAndTold) {
  const FileBytes whole = GoldenFile();
  FileBytes torn = whole;
  torn.insert(torn.end(), whole.begin(), whole.begin() + 100);
  FileBytes uncommitted = whole;
  uncommitted.resize(PayloadOf(whole, RecordType::kConfirm));  // the first commit and no more
  const FileBytes first = uncommitted;
  const std::size_t next = first.size();
  uncommitted.insert(
      uncommitted.end(), whole.begin() + static_cast<std::ptrdiff_t>(next),
      whole.begin() + static_cast<std::ptrdiff_t>(PayloadOf(whole, RecordType::kDirections) -
                                                  sizeof(RecordHeader)));
  const TemporaryFile torn_file(Text(torn)), uncommitted_file(Text(uncommitted));
  const CliResult result =
      Oscarkv({"session", "verify", torn_file.path(), uncommitted_file.path()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("70 tokens, 2 commits, "));
  EXPECT_THAT(result.out, HasSubstr("a tail of 100 bytes, which is ignored (at byte "));
  EXPECT_THAT(result.out, HasSubstr("4 tokens, 1 commit, "));
  EXPECT_THAT(result.out, HasSubstr("which is ignored (records that were not committed)"));

  const json files = json::parse(Oscarkv({"session", "verify", "--json", torn_file.path(),
                                          uncommitted_file.path(), kGoldenPath})
                                     .out);
  EXPECT_EQ(files[0]["tail_bytes"], 100);
  EXPECT_TRUE(files[0]["tail_damage"].is_string());
  EXPECT_EQ(files[1]["tail_bytes"], uncommitted.size() - first.size());
  EXPECT_EQ(files[1]["tail_damage"], nullptr);
  EXPECT_EQ(files[2]["tail_bytes"], 0);
  EXPECT_EQ(files[2]["tail_damage"], nullptr);
}

struct BadFile {
  const char* name;
  FileBytes bytes;
  const char* code;
  const char* message;
};

std::vector<BadFile> BadFiles() {
  const FileBytes golden = GoldenFile();
  const std::size_t page = PayloadOf(golden, RecordType::kPage);
  FileBytes cut = golden;
  cut.resize(PayloadOf(golden, RecordType::kCommit) - sizeof(RecordHeader));
  return {{"empty", {}, "DATA_LOSS", "not a session file"},
          {"other magic", Flipped(golden, 1), "DATA_LOSS", "not a session file"},
          {"text", FileBytes(1000, std::byte{'x'}), "DATA_LOSS", "not a session file"},
          {"another version", OfVersion(kSessionFileVersion + 1), "FAILED_PRECONDITION",
           "of another version: format version is "},
          {"damaged start", Flipped(golden, 20), "DATA_LOSS", "damaged: at byte 0: "},
          {"damaged page", Flipped(golden, page + 100), "DATA_LOSS", "damaged: at byte "},
          {"cut before a commit", cut, "DATA_LOSS", "damaged: at byte "}};
}

TEST(VerifyTest, BadFilesSayWhatIsWrong) {
  for (const BadFile& bad : BadFiles()) {
    SCOPED_TRACE(bad.name);
    const TemporaryFile file(Text(bad.bytes));
    CliResult result = Oscarkv({"session", "verify", file.path()});
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.out, StartsWith(file.path() + ": " + bad.message));
    EXPECT_THAT(result.err, HasSubstr(std::string(bad.code) + ": 1 of 1 files are not good"));
    result = Oscarkv({"session", "verify", "--json", file.path()});
    EXPECT_EQ(result.code, 1);
    const json told = json::parse(result.out).at(0);
    EXPECT_EQ(told["file"], file.path());
    EXPECT_EQ(told["ok"], false);
    EXPECT_EQ(told["code"], bad.code);
    EXPECT_THAT(told["message"].get<std::string>(), HasSubstr(bad.message));
  }
}

TEST(VerifyTest, EveryByteIsChecked) {
  const FileBytes example = ExampleFile();
  for (std::size_t at = 0; at < example.size(); at += 7) {
    const TemporaryFile file(Text(Flipped(example, at)));
    const CliResult result = Oscarkv({"session", "verify", file.path()});
    // A flip behind the commit, in its confirmation, is a tail.
    const bool confirmation = at >= example.size() - sizeof(RecordHeader);
    EXPECT_EQ(result.code, confirmation ? 0 : 1) << at;
    EXPECT_EQ(result.out.find("which is ignored") != std::string::npos, confirmation) << at;
  }
}

TEST(VerifyTest, OneBadFileAmongGoodOnesIsTold) {
  const TemporaryFile bad("this is no session file");
  const CliResult result = Oscarkv(
      {"session", "verify", kGoldenPath, "/nonexistent/file", bad.path(), "/", kGoldenPath});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("cannot open /nonexistent/file: No such file or directory\n"));
  EXPECT_THAT(result.out, HasSubstr(bad.path() + ": not a session file"));
  EXPECT_THAT(result.out, HasSubstr("/ is not a regular file\n"));
  EXPECT_THAT(result.err, HasSubstr("3 of 5 files are not good"));
}

// The running program cannot be opened for writing, whoever asks.
TEST(VerifyTest, FilesNeedOnlyBeReadable) {
  EXPECT_THAT(Oscarkv({"session", "verify", "/proc/self/exe"}).out,
              HasSubstr("/proc/self/exe: not a session file"));
}

TEST(SessionInspectTest, ShowsTheSession) {
  const SessionConfig config = GoldenFields().config;
  const SessionCommit commit = GoldenCommit();
  const CliResult result = Oscarkv({"session", "inspect", kGoldenPath, "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json session = json::parse(result.out);
  EXPECT_EQ(session["id"], config.id);
  EXPECT_EQ(session["tenant"], config.tenant);
  EXPECT_EQ(session["group"], config.group);
  EXPECT_EQ(session["model"], config.model);
  EXPECT_EQ(session["model_revision"], config.model_revision);
  EXPECT_EQ(session["rope_digest"], config.rope_digest);
  EXPECT_EQ(session["storage_dtype"], NameOf(config.storage));
  EXPECT_EQ(session["position_base"], config.position_base);
  EXPECT_EQ(session["rollback_tokens"], config.rollback_tokens);
  std::vector<std::int64_t> prefixes;
  for (const PrefixKey& prefix : config.prefix_keys) {
    if (prefix.length <= commit.prefix_limit) prefixes.push_back(prefix.length);
  }
  EXPECT_EQ(session["prefix_lengths"], prefixes);
  EXPECT_EQ(session["priority"], commit.retention.priority);
  EXPECT_EQ(session["pinned"], commit.retention.pinned);
  EXPECT_EQ(session["ttl_seconds"], absl::ToDoubleSeconds(commit.retention.ttl));
  EXPECT_EQ(session["create_time"], "2027-01-15T08:00:00.123456789Z");
  EXPECT_EQ(session["generation"], commit.generation);
  EXPECT_EQ(session["commit_time"], "2027-01-15T09:00:00Z");
  EXPECT_EQ(session["committed_length"], 70);
  EXPECT_EQ(session["commits"], 2);
  EXPECT_EQ(session["bytes"], GoldenFile().size());
  EXPECT_EQ(session["tail_bytes"], 0);
  EXPECT_EQ(session["tail_damage"], nullptr);
  ASSERT_EQ(session["layers"].size(), config.layers.size());
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const json& layer = session["layers"][i];
    const LayerSpec& spec = config.layers[i];
    EXPECT_EQ(layer["layer"], spec.layer);
    EXPECT_EQ(layer["query_heads"], spec.query_heads);
    EXPECT_EQ(layer["kv_heads"], spec.kv_heads);
    EXPECT_EQ(layer["key_dim"], spec.key_dim);
    EXPECT_EQ(layer["value_dim"], spec.value_dim);
    EXPECT_EQ(layer["scale"], spec.scale);
    EXPECT_EQ(layer["softcap"], spec.softcap);
    EXPECT_EQ(layer["sliding_window"], spec.sliding_window);
    EXPECT_EQ(layer["sink_logits"], spec.sink_logits);
    EXPECT_EQ(layer["length"], commit.layers[i].length);
    EXPECT_EQ(layer["codec"]["profile"], nullptr);
    EXPECT_EQ(layer["codec"]["key_bits"], spec.codec.key_bits);
    EXPECT_EQ(layer["codec"]["value_bits"], spec.codec.value_bits);
    EXPECT_EQ(layer["codec"]["window"], spec.codec.window);
    EXPECT_EQ(layer["codec"]["sinks"], spec.codec.sinks);
  }
  EXPECT_EQ(session["layers"][1]["codec"]["plan"], "given");
  EXPECT_EQ(session["layers"][1]["codec"]["scaling"], "per_head");
  EXPECT_EQ(session["layers"][1]["codec"]["value_rotation"], "folded");
}

TEST(SessionInspectTest, ShowsWhatLayersHaveAndTake) {
  const json layers =
      json::parse(Oscarkv({"session", "inspect", kGoldenPath, "--json"}).out)["layers"];
  EXPECT_EQ(layers[0]["sink_tokens"], 2);
  EXPECT_EQ(layers[0]["sealed_tokens"], 128);
  EXPECT_EQ(layers[0]["pages"], 1);
  EXPECT_EQ(layers[0]["pages_sealed_without_queries"], 1);
  EXPECT_EQ(layers[0]["window_blocks"], 1);
  EXPECT_EQ(layers[0]["window_tokens"], 8);
  EXPECT_EQ(layers[0]["queries"], 1);
  EXPECT_EQ(layers[0]["kept_from"], 0);
  EXPECT_NEAR(layers[0]["bits_per_value"], 2.59, 0.01);
  EXPECT_EQ(layers[1]["kept_from"], 64);
  EXPECT_EQ(layers[1]["window_tokens"], 6);
  EXPECT_EQ(layers[1]["bits_per_value"], 0.0);
  // Each record takes 64 bytes and its payload. Layer 0 has dropped a block of 3 tokens and has a
  // truncate, layer 1 a block of 4 tokens and a release.
  EXPECT_EQ(layers[0]["dead_bytes"], 64 + 3 * 256 + 64);
  EXPECT_EQ(layers[1]["dead_bytes"], 64 + 4 * 288 + 64);
  EXPECT_EQ(layers[1]["live_bytes"], 64 + 6 * 288);
}

TEST(SessionInspectTest, ShowsAnotherSession) {
  SessionFields fields;
  fields.create_time = absl::UnixEpoch();
  fields.config.id = "plain";
  fields.config.request_id = "r";
  fields.config.layers = GoldenFields().config.layers;
  fields.config.layers.resize(1);
  fields.config.storage = fields.config.layers[0].storage;
  fields.config.layers[0].codec = CodecSpec();
  fields.config.value_folded = {false};
  fields.config.prefix_keys = {{.length = 5, .key = "prefix 5"}, {.length = 6, .key = "prefix 6"}};
  fields.config.model = "a\x1b[31m model";
  MemoryFile memory;
  auto writer = *SessionFileWriter::Create(fields, 3, &memory);
  SessionCommit commit;
  commit.generation = 1;
  commit.prefix_limit = 5;
  commit.layers = {{}};
  ASSERT_TRUE(writer->Commit(commit, Durability::kWritten).ok());
  const TemporaryFile file(Text(memory.bytes));
  const CliResult result = Oscarkv({"session", "inspect", file.path()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("DENSE"));
  EXPECT_THAT(result.out, HasSubstr("a\\x1b[31m model"));  // no way to a terminal's controls
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b")));
  const json session = json::parse(Oscarkv({"session", "inspect", file.path(), "--json"}).out);
  EXPECT_EQ(session["committed_length"], 0);
  EXPECT_EQ(session["prefix_lengths"], json({5}));  // the other key is void
  EXPECT_EQ(session["ttl_seconds"], nullptr);
  EXPECT_EQ(session["layers"][0]["codec"]["profile"], "DENSE");
  EXPECT_EQ(session["layers"][0]["codec"]["value_group"], 64);
}

TEST(SessionInspectTest, PrintsATableAndTheTail) {
  FileBytes torn = GoldenFile();
  torn.resize(torn.size() + 10);
  const TemporaryFile file(Text(torn));
  const CliResult result = Oscarkv({"session", "inspect", file.path()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("golden"));
  EXPECT_THAT(result.out, HasSubstr("4/16 bits"));
  EXPECT_THAT(result.out, HasSubstr("a tail of 10 bytes, which is ignored"));
}

TEST(SessionInspectTest, BadFilesSayWhatIsWrong) {
  for (const BadFile& bad : BadFiles()) {
    SCOPED_TRACE(bad.name);
    // Of payloads, an index sees only those of the session itself.
    if (std::string(bad.name) == "damaged page") continue;
    const TemporaryFile file(Text(bad.bytes));
    const CliResult result = Oscarkv({"session", "inspect", file.path()});
    EXPECT_EQ(result.code, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, StartsWith(std::string("oscarkv: ") + bad.code + ": " + file.path() +
                                       ": " + bad.message));
    EXPECT_THAT(result.err, HasSubstr("  reason: FILE_"));
  }
  const CliResult result = Oscarkv({"session", "inspect", "/nonexistent/file"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, StartsWith("oscarkv: NOT_FOUND: cannot open /nonexistent/file"));
}

TEST(SessionFileCommandsTest, WrongUsageIsTwo) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"session", "verify"},
                                             {"session", "inspect"},
                                             {"session", "inspect", "a", "b"},
                                             {"session", "verify", "a", "--frobnicate"}}) {
    EXPECT_EQ(Oscarkv(arguments).code, 2) << ::testing::PrintToString(arguments);
  }
}

}  // namespace
}  // namespace oscarkv
