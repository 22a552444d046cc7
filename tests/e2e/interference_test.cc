// Clients that append, attend, decode, fork and drop at once on a server that has room for few of
// their sessions, while others move these: every answer is that of a server that no one disturbs,
// where forks are computed anew. OSCARKV_TEST_FULL: for ten minutes.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/e2e/server_process.h"
#include "tests/e2e/test_server.h"
#include "tests/server/support/scrape.h"

namespace oscarkv::testing {
namespace {

constexpr TestModel kModel = {.layers = 2};
constexpr int kClients = 4;
constexpr int kSessions = 5;            // of each client, at most
constexpr std::int64_t kLongest = 900;  // tokens of a session
constexpr int kWrites = 60;             // to a session, from its beginning or its source's

absl::Duration HowLong() {
  if (std::getenv("OSCARKV_TEST_FULL") != nullptr) return absl::Minutes(10);
  return absl::Seconds(OSCARKV_TEST_SECONDS);
}

// What was done to a session, in order.
struct Write {
  enum Kind : std::uint8_t { kAppend, kAttend, kTruncate };
  Kind kind = kAppend;
  std::int64_t begin = 0;  // of the tokens; kTruncate: the length that was left
  int tokens = 0;
  int queries = 0;
  std::uint64_t seed = 1;
};

// Both servers' sessions of one id.
struct Twins {
  v1::Session disturbed;
  v1::Session undisturbed;
  std::int64_t length = 0;
  std::uint64_t seed = 1;  // of what is appended next; another one after each truncate
  std::vector<Write> writes;
};

std::string IdOf(int client, int session) { return absl::StrCat("c", client, "-", session); }

// Whether it may be asked again: there was no room, or the session was moving.
bool Passes(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
}

class Client {
 public:
  Client(int number, const std::string& disturbed, const std::string& undisturbed)
      : number_(number),
        random_(static_cast<std::uint64_t>(number) + 1),
        disturbed_(v1::KvCacheService::NewStub(Connect(disturbed))),
        undisturbed_(v1::KvCacheService::NewStub(Connect(undisturbed))),
        twins_(kSessions) {}

  void RunUntil(absl::Time end) {
    while (absl::Now() < end && !::testing::Test::HasFailure()) {
      Step(Draw(0, kSessions - 1));
      ++operations_;
    }
  }
  std::int64_t operations() const { return operations_; }
  std::int64_t answers() const { return answers_; }
  std::int64_t refusals() const { return refusals_; }

 private:
  int Draw(int from, int to) {
    return from + static_cast<int>(random_() % static_cast<std::uint64_t>(to - from + 1));
  }

  void Step(int at) {
    std::unique_ptr<Twins>& twins = twins_[static_cast<std::size_t>(at)];
    if (!twins) return Create(at);
    if (twins->writes.size() >= kWrites) return Delete(at);
    switch (Draw(0, 15)) {
      case 0:
        return Fork(at);
      case 1:
        return Truncate(twins.get());
      case 2:
        return Move(&Stub::EvictSession, v1::EvictSessionRequest(), v1::EvictSessionResponse(), at);
      case 3:
        return Move(&Stub::RestoreSession, v1::RestoreSessionRequest(),
                    v1::RestoreSessionResponse(), at);
      case 4:
        return Move(&Stub::CheckpointSession, v1::CheckpointSessionRequest(),
                    v1::CheckpointSessionResponse(), at);
      case 5:
        return Draw(0, 5) == 0 ? Delete(at) : Attend(twins.get());
      case 6:
        return Attend(twins.get());
      case 7:
      case 8:
        return Grow(twins.get(), Write::kAppend, Draw(1, 200), 0);
      case 9:
      case 10: {
        const int tokens = Draw(1, 60);
        return Grow(twins.get(), Write::kAttend, tokens, Draw(1, tokens));
      }
      default:
        for (int i = Draw(1, 6); i > 0; --i) Grow(twins.get(), Write::kAttend, 1, 1);
    }
  }

  // Calls `call` until it is not refused for want of room.
  absl::Status Insist(const std::function<absl::Status()>& call) {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    absl::Status status = call();
    while (Passes(status) && absl::Now() < end) {
      ++refusals_;
      absl::SleepFor(absl::Milliseconds(Draw(1, 20)));
      status = call();
    }
    return status;
  }

  void Create(int at) {
    auto twins = std::make_unique<Twins>();
    twins->seed = NextSeed();
    v1::CreateSessionRequest request = CreateRequest(IdOf(number_, at), kModel);
    v1::CreateSessionResponse response;
    request.set_request_id(absl::StrCat("create ", twins->seed));
    const absl::Status status =
        Insist([&] { return Call(*disturbed_, &Stub::CreateSession, request, response); });
    ASSERT_TRUE(status.ok()) << status;
    twins->disturbed = response.session();
    ASSERT_TRUE(Call(*undisturbed_, &Stub::CreateSession, request, response).ok());
    twins->undisturbed = response.session();
    twins_[static_cast<std::size_t>(at)] = std::move(twins);
  }

  void Delete(int at) {
    v1::DeleteSessionRequest request;
    request.set_session(IdOf(number_, at));
    for (Stub* stub : {disturbed_.get(), undisturbed_.get()}) {
      v1::DeleteSessionResponse response;
      const absl::Status status = Call(*stub, &Stub::DeleteSession, request, response);
      ASSERT_TRUE(status.ok()) << status;
    }
    twins_[static_cast<std::size_t>(at)].reset();
  }

  // The undisturbed one goes through all that its source went through.
  void Fork(int at) {
    const Twins& source = *twins_[static_cast<std::size_t>(at)];
    const int to = Draw(0, kSessions - 1);
    if (to == at) return;
    if (twins_[static_cast<std::size_t>(to)]) {
      ASSERT_NO_FATAL_FAILURE(Delete(to));
    }
    auto twins = std::make_unique<Twins>();
    twins->seed = NextSeed();
    twins->length = Draw(0, 1) == 0 ? source.length : Draw(0, static_cast<int>(source.length));
    twins->writes = source.writes;
    twins->writes.push_back({.kind = Write::kTruncate, .begin = twins->length});
    v1::ForkSessionRequest request;
    v1::Fork& fork = *request.add_forks();
    fork.set_source(source.disturbed.id());
    fork.set_generation(source.disturbed.generation());
    fork.set_length(twins->length);
    fork.set_session(IdOf(number_, to));
    fork.set_request_id(absl::StrCat("fork ", twins->seed));
    v1::ForkSessionResponse response;
    const absl::Status status = Insist([&]() -> absl::Status {
      const absl::Status s = Call(*disturbed_, &Stub::ForkSession, request, response);
      return s.ok() ? DecodeStatus(response.results(0).status()) : s;
    });
    ASSERT_TRUE(status.ok()) << status;
    twins->disturbed = response.results(0).session();
    twins->undisturbed = testing::Create(*undisturbed_, IdOf(number_, to), kModel);
    for (const Write& write : twins->writes) Replay(write, twins.get());
    twins_[static_cast<std::size_t>(to)] = std::move(twins);
  }

  void Replay(const Write& write, Twins* twins) {
    if (write.kind == Write::kTruncate) {
      twins->undisturbed = testing::Truncate(*undisturbed_, twins->undisturbed, write.begin);
      return;
    }
    TestModel model = kModel;
    model.seed = write.seed;
    for (int layer = 0; layer < kModel.layers; ++layer) {
      if (write.kind == Write::kAppend) {
        Append(*undisturbed_,
               AppendRequestOf(model, twins->undisturbed, layer, write.begin, write.tokens));
      } else {
        testing::Attend(*undisturbed_, AttendRequestOf(model, twins->undisturbed, layer,
                                                       write.begin, write.tokens, write.queries));
      }
    }
  }

  void Truncate(Twins* twins) {
    const auto length = Draw(0, 3) == 0 ? Draw(0, static_cast<int>(twins->length))
                                        : std::max<std::int64_t>(twins->length - Draw(0, 5), 0);
    v1::TruncateSessionRequest request;
    request.set_session(twins->disturbed.id());
    request.set_generation(twins->disturbed.generation());
    request.set_length(length);
    request.set_request_id(absl::StrCat("truncate ", NextSeed()));
    v1::TruncateSessionResponse response;
    const absl::Status status =
        Insist([&] { return Call(*disturbed_, &Stub::TruncateSession, request, response); });
    ASSERT_TRUE(status.ok()) << status;
    twins->disturbed = response.session();
    twins->writes.push_back({.kind = Write::kTruncate, .begin = length});
    Replay(twins->writes.back(), twins);
    twins->length = length;
    twins->seed = NextSeed();
  }

  // Evicts, restores or writes it.
  template <typename Request, typename Response>
  void Move(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
            Request request, Response response, int at) {
    request.set_session(IdOf(number_, at));
    const absl::Status status =
        Insist([&] { return Call(*disturbed_, method, request, response); });
    ASSERT_TRUE(status.ok()) << status;
  }

  // Queries alone, at the last tokens.
  void Attend(Twins* twins) {
    if (twins->length == 0) return;
    Do({.kind = Write::kAttend,
        .begin = twins->length,
        .queries = Draw(1, static_cast<int>(std::min<std::int64_t>(twins->length, 8))),
        .seed = twins->seed},
       twins);
  }

  void Grow(Twins* twins, Write::Kind kind, int tokens, int queries) {
    if (twins->length + tokens > kLongest) return;
    Do({.kind = kind,
        .begin = twins->length,
        .tokens = tokens,
        .queries = queries,
        .seed = twins->seed},
       twins);
    twins->length += tokens;
  }

  // One layer after the other, on both servers.
  void Do(const Write& write, Twins* twins) {
    if (::testing::Test::HasFailure()) return;
    twins->writes.push_back(write);
    TestModel model = kModel;
    model.seed = write.seed;
    for (int layer = 0; layer < kModel.layers; ++layer) {
      if (write.kind == Write::kAppend) {
        const auto request =
            AppendRequestOf(model, twins->disturbed, layer, write.begin, write.tokens);
        v1::AppendResponse response;
        ASSERT_EQ(Apply(&Stub::Append, request, &response), absl::OkStatus()) << Trace(*twins);
        Append(*undisturbed_,
               AppendRequestOf(model, twins->undisturbed, layer, write.begin, write.tokens));
        continue;
      }
      const auto request =
          AttendRequestOf(model, twins->disturbed, layer, write.begin, write.tokens, write.queries);
      v1::AttendResponse response;
      ASSERT_EQ(Apply(&Stub::Attend, request, &response), absl::OkStatus()) << Trace(*twins);
      const auto expected =
          testing::Attend(*undisturbed_, AttendRequestOf(model, twins->undisturbed, layer,
                                                         write.begin, write.tokens, write.queries));
      ASSERT_TRUE(response.output().raw() == expected.output().raw() &&
                  response.log_sum_exp().raw() == expected.log_sum_exp().raw())
          << "another answer, layer " << layer << " of " << Trace(*twins);
      ++answers_;
    }
  }

  template <typename Request, typename Response>
  absl::Status Apply(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                     const Request& request, Response* response) {
    return Insist([&]() -> absl::Status {
      const absl::Status s = Call(*disturbed_, method, request, *response);
      return s.ok() ? DecodeStatus(response->results(0).status()) : s;
    });
  }

  std::string Trace(const Twins& twins) const {
    std::string text = twins.disturbed.id();
    for (const Write& w : twins.writes) {
      absl::StrAppend(&text, "\n", std::string(1, "AQT"[w.kind]), " ", w.begin, " ", w.tokens, " ",
                      w.queries, " ", w.seed);
    }
    return text;
  }
  std::uint64_t NextSeed() { return (++seeds_ << 8) + static_cast<std::uint64_t>(number_); }

  const int number_;
  std::mt19937_64 random_;
  const std::unique_ptr<Stub> disturbed_;
  const std::unique_ptr<Stub> undisturbed_;
  std::vector<std::unique_ptr<Twins>> twins_;  // null: not there
  std::uint64_t seeds_ = 0;
  std::int64_t operations_ = 0;
  std::int64_t answers_ = 0;
  std::int64_t refusals_ = 0;
};

class InterferenceTest : public ::testing::Test {
 protected:
  InterferenceTest() { EXPECT_NE(mkdtemp(folder_.data()), nullptr); }
  ~InterferenceTest() override { std::filesystem::remove_all(folder_); }

  // Moves sessions of all clients, whatever these do; they may be gone.
  void Disturb(const std::string& address, const std::atomic<bool>& stopped) {
    const auto stub = v1::KvCacheService::NewStub(Connect(address));
    std::mt19937_64 random(99);
    while (!stopped) {
      const std::string id =
          IdOf(static_cast<int>(random() % kClients), static_cast<int>(random() % kSessions));
      if (random() % 2 == 0) {
        v1::EvictSessionRequest request;
        v1::EvictSessionResponse response;
        request.set_session(id);
        (void)Call(*stub, &Stub::EvictSession, request, response);
      } else {
        v1::CheckpointSessionRequest request;
        v1::CheckpointSessionResponse response;
        request.set_session(id);
        (void)Call(*stub, &Stub::CheckpointSession, request, response);
      }
      absl::SleepFor(absl::Milliseconds(static_cast<double>(random() % 10)));
    }
  }

  std::string folder_ = ::testing::TempDir() + "interference_XXXXXX";
};

TEST_F(InterferenceTest, EveryAnswerIsThatOfAServerNobodyDisturbs) {
  ServerProcess disturbed({absl::StrCat("--data-dir=", folder_, "/data"), "--memory-budget=2MiB",
                           "--checkpoint-interval=20ms", "--fsync=never", "--settle-after=24h"});
  ServerProcess undisturbed({"--memory-budget=1GiB", "--settle-after=24h"});
  ASSERT_FALSE(HasFailure());
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<Client>(i, disturbed.address(), undisturbed.address()));
  }
  std::atomic<bool> stopped = false;
  std::thread disturber([&] { Disturb(disturbed.address(), stopped); });
  const absl::Duration time = HowLong();
  const absl::Time end = absl::Now() + time;
  std::vector<std::thread> threads;
  for (const auto& client : clients) {
    threads.emplace_back([&client, end] { client->RunUntil(end); });
  }
  for (std::thread& thread : threads) thread.join();
  stopped = true;
  disturber.join();

  std::int64_t operations = 0;
  std::int64_t answers = 0;
  std::int64_t refusals = 0;
  for (const auto& client : clients) {
    operations += client->operations();
    answers += client->answers();
    refusals += client->refusals();
    EXPECT_GT(client->answers(), absl::ToInt64Seconds(time));
  }
  const Scraped metrics = ParseMetrics(Scrape(disturbed.metrics_address()));
  std::cout << operations << " operations, " << answers << " answers, " << refusals << " refusals, "
            << metrics.at("oscarkv_evictions_total") << " evictions, "
            << metrics.at("oscarkv_restores_total") << " restores\n";
  // Fewer would show nothing.
  EXPECT_GT(metrics.at("oscarkv_evictions_total"), 5 * absl::ToDoubleSeconds(time));
  EXPECT_GT(metrics.at("oscarkv_restores_total"), 5 * absl::ToDoubleSeconds(time));
}

}  // namespace
}  // namespace oscarkv::testing
