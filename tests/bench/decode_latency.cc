// How even the latency of Attend is under steady decode: one client appends and attends a token at
// a time, layer by layer, through the Decode stream, over several pages' worth of tokens. Sealing
// those pages must not show.
//
//   decode_latency [tokens [layers [context]]]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/bench/rpc_server.h"

namespace oscarkv::bench {
namespace {

double Quantile(const std::vector<double>& sorted, double q) {
  return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1))];
}

// Microseconds of each exchange, in their order.
std::vector<double> DecodeSteps(RpcServer& server, const testing::TestModel& model, int context,
                                int tokens) {
  const v1::Session session = server.Create("decoded", model, context);
  RawStream decode(server.channel(), "/oscarkv.v1.KvCacheService/Decode");
  std::vector<double> microseconds;
  for (int position = context; position < context + tokens; ++position) {
    // Outside of the time: a model would compute meanwhile.
    std::vector<std::string> requests;
    for (int layer = 0; layer < model.layers; ++layer) {
      v1::DecodeRequest request;
      *request.mutable_attend() = testing::AttendRequestOf(model, session, layer, position, 1, 1);
      requests.push_back(request.SerializeAsString());
    }
    for (const std::string& request : requests) {
      const auto begin = std::chrono::steady_clock::now();
      const grpc::ByteBuffer reply = decode.Exchange(request);
      const auto end = std::chrono::steady_clock::now();
      microseconds.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
      const auto response = FromBytes<v1::DecodeResponse>(reply);
      Require(response.attend().results_size() == 1 &&
                  response.attend().results(0).status().code() == 0,
              "a step");
    }
  }
  return microseconds;
}

void Run(int tokens, int layers, int context) {
  const testing::TestModel model = {.layers = layers, .query_heads = 32, .kv_heads = 8, .dim = 128};
  RpcServer server(0);
  std::vector<double> microseconds = DecodeSteps(server, model, context, tokens);
  std::sort(microseconds.begin(), microseconds.end());
  const double p50 = Quantile(microseconds, 0.5);
  const double p99 = Quantile(microseconds, 0.99);
  std::printf("%d tokens on %d layers, 8 kv heads, GQA 4, head_dim 128, context from %d:\n", tokens,
              layers, context);
  std::printf("p50 %.1f us, p90 %.1f us, p99 %.1f us (%.2f x p50), max %.1f us\n", p50,
              Quantile(microseconds, 0.9), p99, p99 / p50, microseconds.back());
}

}  // namespace
}  // namespace oscarkv::bench

int main(int argc, char** argv) {
  const int tokens = argc > 1 ? std::atoi(argv[1]) : 800;
  const int layers = argc > 2 ? std::atoi(argv[2]) : 4;
  const int context = argc > 3 ? std::atoi(argv[3]) : 4096;
  if (tokens < 1 || layers < 1 || context < 1) {
    std::fprintf(stderr, "usage: decode_latency [tokens [layers [context]]]\n");
    return 2;
  }
  oscarkv::bench::Run(tokens, layers, context);
  return 0;
}
