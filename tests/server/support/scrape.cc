#include "tests/server/support/scrape.h"

#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <regex>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace oscarkv::testing {
namespace {

int ConnectTo(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints,
                  &found) != 0) {
    return -1;
  }
  const int socket = ::socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
  const bool connected = socket >= 0 && ::connect(socket, found->ai_addr, found->ai_addrlen) == 0;
  freeaddrinfo(found);
  if (connected) return socket;
  if (socket >= 0) ::close(socket);
  return -1;
}

// As Go's strconv, which Prometheus reads with.
bool ParseNumber(const std::string& text, double* value) {
  if (text == "Nan" || text == "NaN") {
    *value = std::nan("");
    return true;
  }
  if (text == "+Inf") {
    *value = std::numeric_limits<double>::infinity();
    return true;
  }
  static const std::regex number(R"(-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?)");
  return std::regex_match(text, number) && absl::SimpleAtod(text, value);
}

// One reader of one text.
class Reader {
 public:
  void Read(const std::string& line) {
    static const std::regex help("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)");
    static const std::regex type(
        "# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram|summary)");
    static const std::regex sample(R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? (\S+))re");
    std::smatch parts;
    if (std::regex_match(line, parts, help)) {
      family_ = parts[1];
      EXPECT_TRUE(out_.helps.emplace(family_, parts[2]).second) << line;
    } else if (std::regex_match(line, parts, type)) {
      EXPECT_EQ(parts[1], family_) << "TYPE without its HELP: " << line;
      EXPECT_TRUE(out_.types.emplace(family_, parts[2]).second) << line;
    } else if (std::regex_match(line, parts, sample)) {
      Sample(parts[1], parts[2], parts[3], line);
    } else {
      ADD_FAILURE() << "not of the format: " << line;
    }
  }
  const Scraped& out() const { return out_; }

 private:
  void Sample(const std::string& name, const std::string& labels, const std::string& number,
              const std::string& line) {
    ASSERT_TRUE(out_.types.contains(family_)) << line;
    const std::string suffix =
        name.substr(0, family_.size()) == family_ ? name.substr(family_.size()) : "another family";
    const std::string& type = out_.types.at(family_);
    if (type == "histogram") {
      EXPECT_TRUE(suffix == "_bucket" || suffix == "_sum" || suffix == "_count") << line;
    } else if (type == "summary") {
      EXPECT_TRUE(suffix.empty() || suffix == "_sum" || suffix == "_count") << line;
    } else {
      EXPECT_EQ(suffix, "") << line;
    }
    static const std::regex all(R"re(\{([a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\["\\n])*",?)*\})re");
    if (!labels.empty()) {
      EXPECT_TRUE(std::regex_match(labels, all)) << line;
    }
    double value = 0;
    EXPECT_TRUE(ParseNumber(number, &value)) << line;
    EXPECT_TRUE(out_.series.emplace(name + labels, value).second) << "twice: " << line;
    if (suffix == "_bucket") {
      EXPECT_GE(value, last_bucket_) << line;
      last_bucket_ = labels.find("le=\"+Inf\"") == std::string::npos ? value : 0;
      if (last_bucket_ == 0) infinite_ = value;
    } else if (suffix == "_count" && type == "histogram") {
      count_ = value;
    }
    if (type == "histogram" && suffix == "_bucket" &&
        labels.find("le=\"+Inf\"") != std::string::npos) {
      EXPECT_EQ(infinite_, count_) << line;  // prometheus-cpp writes count and sum first
    }
  }

  Scraped out_;
  std::string family_;
  double last_bucket_ = 0;
  double infinite_ = 0;
  double count_ = 0;
};

}  // namespace

std::string Scrape(const std::string& address) {
  const int socket = ConnectTo(address);
  if (socket < 0) {
    ADD_FAILURE() << "nobody listens on " << address;
    return "";
  }
  const std::string request =
      absl::StrCat("GET /metrics HTTP/1.1\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(::send(socket, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t got = 1; (got = ::recv(socket, buffer, sizeof buffer, 0)) > 0;) {
    answer.append(buffer, static_cast<std::size_t>(got));
  }
  ::close(socket);
  const std::size_t end = answer.find("\r\n\r\n");
  const std::string head = answer.substr(0, end);
  EXPECT_EQ(head.substr(0, head.find('\r')), "HTTP/1.1 200 OK");
  if (end == std::string::npos) return "";
  std::string body = answer.substr(end + 4);
  EXPECT_NE(head.find(absl::StrCat("Content-Length: ", body.size())), std::string::npos) << head;
  EXPECT_NE(head.find("Content-Type: text/plain"), std::string::npos) << head;
  return body;
}

double Scraped::at(const std::string& name) const {
  const auto found = series.find(name);
  if (found != series.end()) return found->second;
  ADD_FAILURE() << "no series " << name;
  return std::nan("");
}

Scraped ParseMetrics(const std::string& text) {
  Reader reader;
  EXPECT_TRUE(text.ends_with('\n'));
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    reader.Read(std::string(line));
  }
  return reader.out();
}

}  // namespace oscarkv::testing
