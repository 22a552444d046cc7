// The bytes themselves: the worked example of server/file/SESSION_FILE.md, and the files of this
// and earlier versions that tests/data keeps.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/api/page_layout.h"
#include "server/base/crc32c.h"
#include "tests/server/file/known_files.h"

namespace oscarkv {
namespace {

std::string Hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    absl::StrAppend(&text, text.empty() ? "" : " ",
                    absl::Hex(std::to_integer<unsigned>(byte), absl::kZeroPad2));
  }
  return text;
}

FileBytes Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Lines "offset: bytes | remark" of the document's block "```file", and "crc: digits".
TEST(SessionFileFormatTest, WorkedExample) {
  const FileBytes file = ExampleFile();
  std::ifstream document(OSCARKV_SOURCE_DIR "/server/file/SESSION_FILE.md");
  std::string line;
  std::string crc;
  bool inside = false;
  std::size_t lines = 0;
  while (std::getline(document, line)) {
    if (line.rfind("```", 0) == 0) {
      inside = line == "```file";
    } else if (inside && line.rfind("crc: ", 0) == 0) {
      crc = line.substr(5);
    } else if (inside) {
      std::istringstream words(line.substr(0, line.find('|')));
      std::size_t offset = 0;
      char colon = 0;
      words >> std::hex >> offset >> colon;
      ASSERT_EQ(colon, ':') << line;
      FileBytes bytes;
      for (unsigned byte = 0; words >> std::hex >> byte;) {
        bytes.push_back(static_cast<std::byte>(byte));
      }
      ASSERT_LE(offset + bytes.size(), file.size()) << line;
      EXPECT_EQ(Hex(std::span(file).subspan(offset, bytes.size())), Hex(bytes))
          << absl::StrCat("at ", absl::Hex(offset));
      ++lines;
    }
  }
  EXPECT_GT(lines, 20);
  EXPECT_EQ(crc, absl::StrCat(absl::Hex(Crc32c(file.data(), file.size()), absl::kZeroPad8)));
}

class GoldenTest : public ::testing::Test {
 protected:
  void SetUp() override { file_.bytes = Contents(OSCARKV_SOURCE_DIR "/tests/data/session-v1.okv"); }
  FileBytes Payload(const FilePiece& piece) const {
    FileBytes payload(piece.place.bytes);
    EXPECT_EQ(ReadPayload(file_, piece.place, payload), absl::OkStatus());
    return payload;
  }
  static std::size_t TokenBytes(const LayerSpec& spec, int tokens) {
    return static_cast<std::size_t>(TokenBlockLayout(spec, tokens).bytes);
  }
  MemoryFile file_;
};

// Every later version passes this.
TEST_F(GoldenTest, Version1IsRead) {
  const auto read = ReadPieces(file_.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->tail_bytes, 0);
  const SessionFileState& state = read->state;
  EXPECT_EQ(EncodeSession(state.fields()), EncodeSession(GoldenFields()));
  EXPECT_EQ(state.last_commit(), GoldenCommit());

  const FileLayer& sealing = state.layers()[0];
  const LayerSpec& spec = state.config().layers[0];
  EXPECT_EQ(Payload(*sealing.sinks()), GoldenPayload(1, TokenBytes(spec, 2)));
  ASSERT_EQ(sealing.pages().size(), 1);
  const FilePiece& page = sealing.pages()[0];
  EXPECT_EQ(page.begin, 2);
  EXPECT_EQ(page.tokens, 128);
  EXPECT_TRUE(page.blind);
  EXPECT_EQ(Payload(page), GoldenPayload(4, static_cast<std::size_t>(PageLayout(spec).bytes)));
  ASSERT_EQ(sealing.blocks().size(), 1);
  EXPECT_EQ(sealing.blocks()[0].begin, 130);
  EXPECT_EQ(sealing.blocks()[0].tokens, 8);
  EXPECT_EQ(Payload(sealing.blocks()[0]), GoldenPayload(5, TokenBytes(spec, 10)));
  ASSERT_EQ(sealing.queries().size(), 1);
  EXPECT_EQ(sealing.queries()[0].begin, 136);
  EXPECT_EQ(Payload(sealing.queries()[0]), GoldenPayload(6, 128));
  ASSERT_TRUE(sealing.directions());
  EXPECT_EQ(sealing.directions()->begin, 2);

  const FileLayer& given = state.layers()[1];
  EXPECT_EQ(given.released_to(), 64);
  EXPECT_FALSE(given.sinks());
  ASSERT_EQ(given.blocks().size(), 1);
  EXPECT_EQ(given.blocks()[0].begin, 64);
  EXPECT_EQ(Payload(given.blocks()[0]), GoldenPayload(7, TokenBytes(state.config().layers[1], 6)));
}

// While version 1 is what is written. OSCARKV_WRITE_GOLDEN=FOLDER: also writes both files there.
TEST_F(GoldenTest, Version1IsWritten) {
  static_assert(kSessionFileVersion == 1, "keep session-v1.okv, and make one of the new version");
  const FileBytes written = GoldenFile();
  EXPECT_TRUE(written == file_.bytes);
  const char* folder = std::getenv("OSCARKV_WRITE_GOLDEN");
  if (folder == nullptr) return;
  for (const auto& [name, bytes] :
       {std::pair("session-v1.okv", written), std::pair("example.okv", ExampleFile())}) {
    std::ofstream(absl::StrCat(folder, "/", name), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
}

}  // namespace
}  // namespace oscarkv
