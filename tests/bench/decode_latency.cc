// How even the latency of Attend is under steady decode: clients append and attend a token at a
// time, layer by layer, through Decode streams, over several pages' worth of tokens. Sealing those
// pages must not show. Beside it, for what the machine itself adds: the same queries where nothing
// is appended. All are run in turns of a page's worth of tokens, so that noise meets them alike.
//
//   decode_latency [tokens [layers [context [streams]]]]
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/number_argument.h"
#include "tests/bench/rpc_server.h"

namespace oscarkv::bench {
namespace {

constexpr int kTurnTokens = 128;

double Quantile(const std::vector<double>& sorted, double q) {
  return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1))];
}

// With a calibrated choice for each head, residual directions included.
v1::CreateSessionRequest WithGivenPlans(v1::CreateSessionRequest request) {
  for (v1::LayerSpec& layer : *request.mutable_layers()) {
    layer.mutable_codec()->set_plan(v1::PLAN_MODE_GIVEN);
    for (int head = 0; head < layer.kv_heads(); ++head) {
      v1::KeyPlan& plan = *layer.add_key_plans();
      plan.set_rotation(v1::ROTATION_HADAMARD);
      plan.set_fit(v1::FIT_VARIANCE);
      for (int i = 0; i < layer.key_dim(); ++i) plan.add_direction(std::cos(0.7F * i + head));
    }
  }
  return request;
}

// Microseconds of exchanges.
struct Times {
  std::vector<double> all;
  std::vector<double> sealing;  // those after which a page is in place
};

// A session that is decoded, or only asked, through a stream of its own.
class Client {
 public:
  Client(RpcServer& server, const testing::TestModel& model,
         const v1::CreateSessionRequest& request, int context, bool appends)
      : server_(server),
        model_(model),
        session_(server.Create(request, model, context)),
        decode_(server.channel(), "/oscarkv.v1.KvCacheService/Decode"),
        length_(context),
        appends_(appends) {}

  // Outside of the time: a model would compute meanwhile.
  void MakeRequests(int tokens) {
    requests_.clear();
    for (int i = 0; i < tokens; ++i) {
      for (int layer = 0; layer < model_.layers; ++layer) {
        v1::DecodeRequest request;
        *request.mutable_attend() =
            testing::AttendRequestOf(model_, session_, layer, length_, appends_ ? 1 : 0, 1);
        requests_.push_back(request.SerializeAsString());
      }
      if (appends_) ++length_;
    }
  }

  void SendRequests() {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const int layer = static_cast<int>(i) % model_.layers;
      const std::int64_t sealed = SealedTokens(layer);
      const auto begin = std::chrono::steady_clock::now();
      const grpc::ByteBuffer reply = decode_.Exchange(requests_[i]);
      const auto end = std::chrono::steady_clock::now();
      const double time = std::chrono::duration<double, std::micro>(end - begin).count();
      times_.all.push_back(time);
      if (SealedTokens(layer) != sealed) times_.sealing.push_back(time);
      const auto response = FromBytes<v1::DecodeResponse>(reply);
      Require(response.attend().results_size() == 1 &&
                  response.attend().results(0).status().code() == 0,
              "a step");
    }
  }

  const Times& times() const { return times_; }

 private:
  std::int64_t SealedTokens(int layer) const {
    return server_.store().StatsOf(session_.id(), layer)->sealed_tokens;
  }

  RpcServer& server_;
  const testing::TestModel& model_;
  const v1::Session session_;
  RawStream decode_;
  int length_;
  const bool appends_;
  std::vector<std::string> requests_;
  Times times_;
};

// What is measured: clients that do the same at the same time.
struct Arm {
  const char* name;
  std::vector<std::unique_ptr<Client>> clients;
};

void RunTurn(Arm& arm, int tokens) {
  std::barrier ready(static_cast<std::ptrdiff_t>(arm.clients.size()));
  std::vector<std::thread> threads;
  for (const std::unique_ptr<Client>& client : arm.clients) {
    threads.emplace_back([&] {
      client->MakeRequests(tokens);
      ready.arrive_and_wait();
      client->SendRequests();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Report(const Arm& arm) {
  Times times;
  for (const std::unique_ptr<Client>& client : arm.clients) {
    const Times& more = client->times();
    times.all.insert(times.all.end(), more.all.begin(), more.all.end());
    times.sealing.insert(times.sealing.end(), more.sealing.begin(), more.sealing.end());
  }
  std::sort(times.all.begin(), times.all.end());
  std::sort(times.sealing.begin(), times.sealing.end());
  const double p50 = Quantile(times.all, 0.5);
  const double p99 = Quantile(times.all, 0.99);
  std::printf("%-18s p50 %7.1f us, p90 %7.1f us, p99 %7.1f us (%.2f x p50), max %8.1f us", arm.name,
              p50, Quantile(times.all, 0.9), p99, p99 / p50, times.all.back());
  if (!times.sealing.empty()) {
    std::printf("; %zu that seal: p50 %.1f us, max %.1f us", times.sealing.size(),
                Quantile(times.sealing, 0.5), times.sealing.back());
  }
  std::printf("\n");
}

void Run(int tokens, int layers, int context, int streams) {
  const testing::TestModel model = {.layers = layers, .query_heads = 32, .kv_heads = 8, .dim = 128};
  RpcServer server(0);
  const auto arm = [&](const char* name, const std::string& prefix, bool given, bool appends) {
    Arm made{.name = name, .clients = {}};
    for (int i = 0; i < streams; ++i) {
      v1::CreateSessionRequest request = testing::CreateRequest(prefix + std::to_string(i), model);
      if (given) request = WithGivenPlans(std::move(request));
      made.clients.push_back(std::make_unique<Client>(server, model, request, context, appends));
    }
    return made;
  };
  std::vector<Arm> arms;
  arms.push_back(arm("nothing appended", "asked", false, false));
  arms.push_back(arm("AUTO", "auto", false, true));
  arms.push_back(arm("GIVEN", "given", true, true));
  for (int done = 0; done < tokens; done += kTurnTokens) {
    for (Arm& each : arms) RunTurn(each, std::min(kTurnTokens, tokens - done));
  }
  std::printf(
      "%d tokens on %d layers of %d sessions, 8 kv heads, GQA 4, head_dim 128, context from %d:\n",
      tokens, layers, streams, context);
  for (const Arm& each : arms) Report(each);
}

}  // namespace
}  // namespace oscarkv::bench

int main(int argc, char** argv) {
  const auto number = [&](int index, int most, int otherwise) {
    return argc > index ? oscarkv::bench::NumberArgument(argv[index], 1, most) : otherwise;
  };
  const std::optional<int> tokens = number(1, 65536, 1024);
  const std::optional<int> layers = number(2, 128, 4);
  const std::optional<int> context = number(3, 262144, 4096);
  const std::optional<int> streams = number(4, 64, 1);
  if (!tokens || !layers || !context || !streams || argc > 5) {
    std::fprintf(stderr,
                 "usage: decode_latency [tokens [layers [context [streams]]]]\n"
                 "  tokens   that each stream decodes, 1 to 65536 (default 1024)\n"
                 "  layers   of a session, 1 to 128 (default 4)\n"
                 "  context  tokens before the first of them, 1 to 262144 (default 4096)\n"
                 "  streams  at the same time, 1 to 64 (default 1)\n"
                 "The caches of three sessions for each stream must fit in 2 GiB.\n");
    return 2;
  }
  oscarkv::bench::Run(*tokens, *layers, *context, *streams);
  return 0;
}
