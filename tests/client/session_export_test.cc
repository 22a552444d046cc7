// `oscarkv session export --format safetensors`.
#include "client/cli/session_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "client/cli/new_file.h"
#include "client/error_info.h"
#include "client/recording/recording.h"
#include "client/replay/local_server.h"
#include "client/session_writer.h"
#include "tests/client/fake_service.h"
#include "tests/client/run_cli.h"

namespace oscarkv {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Numbers that differ by token and channel, as fp32.
std::string Numbers(std::int64_t tokens, int heads, int dim, int seed) {
  std::vector<float> numbers(static_cast<std::size_t>(tokens) * heads * dim);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = std::sin(static_cast<float>(i % 1009) * 0.37F + static_cast<float>(seed));
  }
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)};
}

// What the server reads back of a layer from `begin` on.
struct ReadBack {
  std::string key;
  std::string value;
};

class SessionExportTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = LocalServer::Start().value(); }
  static void TearDownTestSuite() { server_.reset(); }
  void SetUp() override {
    unsetenv("OSCARKV_ADDRESS");
    client_ = Client::Connect(server_->address()).value();
    std::string pattern = ::testing::TempDir() + "/oscarkv-export-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override {
    client_->DeleteSession("s").IgnoreError();  // not all tests have it still
    std::filesystem::remove_all(folder_);
  }

  std::string PathOf(const std::string& name) const { return folder_ + "/" + name; }
  std::size_t FilesInFolder() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  // Layers 3, of 192/64 with a soft cap, and 7, of 64/64 with sinks.
  static v1::CreateSessionRequest TwoLayers(v1::DataType storage) {
    v1::CreateSessionRequest request;
    request.set_session("s");
    request.set_model("Test-1B");
    request.set_storage_dtype(storage);
    v1::LayerSpec& first = *request.add_layers();
    first.set_layer(3);
    first.set_query_heads(4);
    first.set_kv_heads(2);
    first.set_key_dim(192);
    first.set_value_dim(64);
    first.set_softcap(30);
    v1::LayerSpec& second = *request.add_layers();
    second.set_layer(7);
    second.set_query_heads(3);
    second.set_kv_heads(1);
    second.set_key_dim(64);
    for (const float x : {0.5F, -1.5F, 2.0F}) second.add_sink_logits(x);
    return request;
  }

  v1::Session Create(const v1::CreateSessionRequest& request) {
    return client_->CreateSession(request).value();
  }
  // Appends tokens to the layer, as many in a message as it takes.
  void Append(SessionWriter& writer, const v1::LayerSpec& spec, std::int64_t tokens) {
    const std::string key = Numbers(tokens, spec.kv_heads(), spec.key_dim(), spec.layer());
    const std::string value = Numbers(tokens, spec.kv_heads(), spec.value_dim(), spec.layer() + 1);
    LayerTokens all;
    all.tokens = tokens;
    all.dtype = v1::DATA_TYPE_FP32;
    all.key = key;
    all.value = value;
    const absl::Status status = writer.Append(spec.layer(), all);
    ASSERT_TRUE(status.ok()) << status;
  }
  v1::Session CreateFilled(const v1::CreateSessionRequest& request, std::int64_t tokens) {
    const v1::Session session = Create(request);
    SessionWriter writer(client_.get(), session);
    for (const v1::LayerSpec& spec : session.layers()) {
      Append(writer, spec, tokens - 1);
      Append(writer, spec, 1);  // lets the tokens before be sealed
    }
    return client_->GetSession(session.id()).value();
  }

  ReadBack Read(const v1::Session& session, int layer, std::int64_t begin, std::int64_t end) {
    v1::ReadTokensRequest request;
    request.set_session(session.id());
    request.set_generation(session.generation());
    request.set_layer(layer);
    request.set_begin(begin);
    request.set_num_tokens(end - begin);
    ReadBack read;
    const absl::Status status =
        client_->ReadTokens(request, [&](const v1::ReadTokensResponse& run) {
          read.key += run.key().raw();
          read.value += run.value().raw();
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
    return read;
  }

  CliResult Export(const std::string& id, const std::string& path,
                   const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {
        "session", "export", id, path, "--format", "safetensors", "--address", server_->address()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Oscarkv(arguments);
  }

  static std::string_view Text(const RecordedTensor& tensor) {
    return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
  }
  // The recording holds the session's tokens [kept_from, length) as the server reads them.
  void ExpectExported(const v1::Session& session, const std::string& path, std::int64_t length) {
    const auto recording = Recording::Open(path);
    ASSERT_TRUE(recording.ok()) << recording.status();
    ASSERT_EQ(static_cast<int>(recording->layers().size()), session.layers_size());
    for (int i = 0; i < session.layers_size(); ++i) {
      const RecordedLayer& layer = recording->layers()[static_cast<std::size_t>(i)];
      const v1::LayerSpec& spec = session.layers(i);
      SCOPED_TRACE(spec.layer());
      EXPECT_EQ(layer.layer, spec.layer());
      EXPECT_EQ(layer.begin, session.layer_states(i).kept_from());
      EXPECT_EQ(layer.begin + layer.tokens(), length);
      EXPECT_EQ(static_cast<float>(layer.scale), spec.scale());
      EXPECT_EQ(static_cast<float>(layer.softcap.value_or(0)), spec.softcap());
      EXPECT_EQ(layer.sliding_window.value_or(0), spec.sliding_window());
      EXPECT_THAT(layer.sink_logits, ::testing::ElementsAreArray(spec.sink_logits()));
      EXPECT_FALSE(layer.has_queries());
      EXPECT_EQ(layer.query.heads, spec.query_heads());
      EXPECT_EQ(layer.key.heads, spec.kv_heads());
      EXPECT_EQ(layer.key.dim, spec.key_dim());
      EXPECT_EQ(layer.value.dim, spec.value_dim());
      const DType storage =
          session.storage_dtype() == v1::DATA_TYPE_FP16 ? DType::kFP16 : DType::kBF16;
      EXPECT_EQ(layer.key.dtype, storage);
      EXPECT_EQ(layer.value.dtype, storage);
      const ReadBack read = Read(session, layer.layer, layer.begin, length);
      EXPECT_TRUE(Text(layer.key) == read.key);
      EXPECT_TRUE(Text(layer.value) == read.value);
    }
  }

  static inline std::unique_ptr<LocalServer> server_;
  std::unique_ptr<Client> client_;
  std::string folder_;
};

TEST_F(SessionExportTest, HoldsWhatTheServerReads) {
  for (const v1::DataType storage : {v1::DATA_TYPE_BF16, v1::DATA_TYPE_FP16}) {
    const v1::Session session = CreateFilled(TwoLayers(storage), 300);
    ASSERT_GT(session.layer_states(0).sealed_tokens(), 0);
    const std::string path = PathOf(v1::DataType_Name(storage));
    const CliResult result = Export("s", path);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(path + ": 300 tokens of 2 layers, "));
    EXPECT_EQ(result.err, "");
    ExpectExported(session, path, 300);
    EXPECT_EQ(Recording::Open(path)->model(), "Test-1B");
    EXPECT_THAT(Recording::Open(path)->origin(), HasSubstr("session s, generation "));
    EXPECT_TRUE(client_->DeleteSession("s").ok());
  }
  EXPECT_EQ(FilesInFolder(), 2u);
}

// A message of the server has at most 4 MiB of tokens.
TEST_F(SessionExportTest, ComesInSeveralMessages) {
  v1::CreateSessionRequest request = TwoLayers(v1::DATA_TYPE_BF16);
  request.mutable_layers(0)->set_kv_heads(8);
  request.mutable_layers(0)->set_query_heads(8);
  request.mutable_layers(0)->set_key_dim(256);
  request.mutable_layers(0)->set_value_dim(256);
  const v1::Session session = CreateFilled(request, 1100);
  const std::string path = PathOf("large");
  int calls = 0;
  std::int64_t done = 0;
  {
    ExportRequest wanted;
    wanted.session = "s";
    wanted.on_progress = [&](std::int64_t now, std::int64_t total) {
      ++calls;
      EXPECT_GT(now, done);
      EXPECT_EQ(total, 2200);
      done = now;
    };
    auto file = NewFile::Create(path, false).value();
    const auto report = ExportRecording(*client_, wanted, *file);
    ASSERT_TRUE(report.ok()) << report.status();
    ASSERT_TRUE(file->Finish().ok());
    EXPECT_EQ(report->bytes, std::filesystem::file_size(path));
  }
  EXPECT_GE(calls, 4);
  EXPECT_EQ(done, 2200);
  ExpectExported(session, path, 1100);
}

TEST_F(SessionExportTest, WhatIsExportedCanBeInspectedAndNotReplayed) {
  CreateFilled(TwoLayers(v1::DATA_TYPE_BF16), 20);
  ASSERT_EQ(Export("s", PathOf("x")).code, 0);
  const CliResult shown = Oscarkv({"inspect", PathOf("x")});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("192/64"));
  const CliResult replayed = Oscarkv({"replay", PathOf("x")});
  EXPECT_EQ(replayed.code, 1);
  EXPECT_THAT(replayed.err, HasSubstr("layer 3 has no queries"));
}

TEST_F(SessionExportTest, LengthCutsAndJsonTells) {
  const v1::Session session = CreateFilled(TwoLayers(v1::DATA_TYPE_BF16), 200);
  const CliResult result = Export("s", PathOf("x"), {"--length", "150", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json report = json::parse(result.out);
  EXPECT_EQ(report, json({{"file", PathOf("x")},
                          {"format", "safetensors"},
                          {"id", "s"},
                          {"generation", session.generation()},
                          {"length", 150},
                          {"layers", 2},
                          {"bytes", std::filesystem::file_size(PathOf("x"))}}));
  ExpectExported(session, PathOf("x"), 150);
  const CliResult more = Export("s", PathOf("y"), {"--length", "201"});
  EXPECT_EQ(more.code, 1);
  EXPECT_THAT(more.err, HasSubstr("OUT_OF_RANGE: session s has 200 tokens of every layer; asked "));
  EXPECT_EQ(FilesInFolder(), 1u);
}

// A step that only some layers have yet is not a part of the session.
TEST_F(SessionExportTest, EndsWhereTheShortestLayerDoes) {
  const v1::Session session = Create(TwoLayers(v1::DATA_TYPE_BF16));
  SessionWriter writer(client_.get(), session);
  Append(writer, session.layers(0), 40);
  EXPECT_THAT(Export("s", PathOf("x")).err, HasSubstr("session s has no tokens of every layer"));
  Append(writer, session.layers(1), 39);
  ASSERT_EQ(Export("s", PathOf("x")).code, 0);
  ExpectExported(*client_->GetSession("s"), PathOf("x"), 39);
}

TEST_F(SessionExportTest, LayersBeginWhereTheyKeepTokens) {
  v1::CreateSessionRequest request = TwoLayers(v1::DATA_TYPE_BF16);
  request.mutable_layers(0)->set_sliding_window(64);
  request.set_rollback_tokens(0);
  const v1::Session created = Create(request);
  SessionWriter writer(client_.get(), created);
  for (int i = 0; i < 5; ++i) {
    for (const v1::LayerSpec& spec : created.layers()) Append(writer, spec, 100);
  }
  const v1::Session session = *client_->GetSession("s");
  const std::int64_t kept_from = session.layer_states(0).kept_from();
  ASSERT_GT(kept_from, 0);
  ASSERT_EQ(Export("s", PathOf("x")).code, 0);
  ExpectExported(session, PathOf("x"), 500);
  const CliResult freed = Export("s", PathOf("y"), {"--length", std::to_string(kept_from)});
  EXPECT_EQ(freed.code, 1);
  EXPECT_THAT(freed.err, HasSubstr("has no tokens of layer 3 before "));
}

TEST_F(SessionExportTest, AnotherFileIsReplacedByForceAlone) {
  const v1::Session session = CreateFilled(TwoLayers(v1::DATA_TYPE_BF16), 20);
  const std::string path = PathOf("x");
  std::ofstream(path) << "precious";
  const CliResult refused = Export("s", path);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("ALREADY_EXISTS: " + path + " exists"));
  EXPECT_EQ(std::filesystem::file_size(path), 8u);
  // An export that fails leaves what is there.
  EXPECT_EQ(Export("none", path, {"--force"}).code, 1);
  EXPECT_EQ(std::filesystem::file_size(path), 8u);
  EXPECT_EQ(Export("s", path, {"--force"}).code, 0);
  ExpectExported(session, path, 20);
  EXPECT_EQ(FilesInFolder(), 1u);
}

TEST_F(SessionExportTest, WhatIsNoFileIsNeverReplaced) {
  CreateFilled(TwoLayers(v1::DATA_TYPE_BF16), 20);
  EXPECT_THAT(Export("s", folder_, {"--force"}).err, HasSubstr("is not a regular file"));
  std::filesystem::create_symlink("/dev/null", PathOf("link"));
  EXPECT_THAT(Export("s", PathOf("link"), {"--force"}).err, HasSubstr("is not a regular file"));
  EXPECT_THAT(Export("s", PathOf("none/x")).err, HasSubstr("NOT_FOUND: cannot create "));
  EXPECT_TRUE(std::filesystem::is_symlink(PathOf("link")));
}

TEST_F(SessionExportTest, ASessionThatChangesMeanwhileIsAnError) {
  const std::pair<const char*, std::function<absl::Status(const v1::Session&)>> changes[] = {
      {"GENERATION_MISMATCH",
       [this](const v1::Session& session) {
         return client_->TruncateSession("s", session.generation(), 10).status();
       }},
      {"SESSION_NOT_FOUND", [this](const v1::Session&) { return client_->DeleteSession("s"); }}};
  for (const auto& [reason, change] : changes) {
    const v1::Session session = CreateFilled(TwoLayers(v1::DATA_TYPE_BF16), 20);
    bool changed = false;
    ExportRequest request;
    request.session = "s";
    request.on_progress = [&, &apply = change](std::int64_t, std::int64_t) {
      if (std::exchange(changed, true)) return;
      EXPECT_TRUE(apply(session).ok());
    };
    const auto report =
        ExportRecording(*client_, request, *NewFile::Create(PathOf("x"), false).value());
    ASSERT_FALSE(report.ok());
    EXPECT_THAT(std::string(report.status().message()),
                HasSubstr("session s has changed while it was exported: "));
    EXPECT_EQ(ErrorInfoOf(report.status())->reason(), reason);
    client_->DeleteSession("s").IgnoreError();
  }
  EXPECT_EQ(FilesInFolder(), 0u);
}

TEST_F(SessionExportTest, CanBeCancelled) {
  CreateFilled(TwoLayers(v1::DATA_TYPE_BF16), 20);
  int asked = 0;
  ExportRequest request;
  request.session = "s";
  request.cancelled = [&] { return ++asked == 2; };
  EXPECT_TRUE(absl::IsCancelled(
      ExportRecording(*client_, request, *NewFile::Create(PathOf("x"), false).value()).status()));
  EXPECT_EQ(FilesInFolder(), 0u);
}

TEST_F(SessionExportTest, FailuresSayWhy) {
  const CliResult missing = Export("none", PathOf("x"));
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("reason: SESSION_NOT_FOUND"));
  EXPECT_EQ(FilesInFolder(), 0u);
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"session", "export"},
           {"session", "export", "s"},
           {"session", "export", "s", "x", "--length", "5"},
           {"session", "import"},
           {"session", "export", "s", "x", "--format", "zip"},
           {"session", "export", "s", "x", "--format", "safetensors", "--length", "0"},
           {"session", "export", "s", "x", "--format", "safetensors", "--length", "all"}}) {
    EXPECT_EQ(Oscarkv(arguments).code, 2) << ::testing::PrintToString(arguments);
  }
}

TEST_F(SessionExportTest, AServerThatTellsNonsenseIsAnError) {
  FakeService fake;  // its sessions have no layers
  const CliResult result = Oscarkv({"session", "export", "s", PathOf("x"), "--format",
                                    "safetensors", "--address", fake.address()});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("INTERNAL"));
  EXPECT_EQ(FilesInFolder(), 0u);
}

TEST_F(SessionExportTest, AFileThatComesMeanwhileIsKept) {
  auto file = NewFile::Create(PathOf("x"), false).value();
  ASSERT_TRUE(file->WriteAt(2, "new").ok());
  std::ofstream(PathOf("x")) << "theirs";
  EXPECT_TRUE(absl::IsAlreadyExists(file->Finish()));
  file.reset();
  EXPECT_EQ(std::filesystem::file_size(PathOf("x")), 6u);
  EXPECT_EQ(FilesInFolder(), 1u);
}

}  // namespace
}  // namespace oscarkv
