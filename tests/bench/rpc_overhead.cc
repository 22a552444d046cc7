// What the service adds to its kernels: an Attend of one layer over the loopback, beside an echo of
// messages of the same sizes and the backend's calls alone. All are called in turn, so that noise
// meets them alike; the medians are compared.
//
//   rpc_overhead [rounds]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/api/page_layout.h"
#include "tests/bench/filled_sessions.h"
#include "tests/bench/gaussian.h"
#include "tests/bench/number_argument.h"
#include "tests/bench/rpc_server.h"

namespace oscarkv::bench {
namespace {

constexpr int kContext = 4096;
constexpr testing::TestModel kModel = {.layers = 1, .query_heads = 32, .kv_heads = 8, .dim = 128};
constexpr const char* kAttend = "/oscarkv.v1.KvCacheService/Attend";
constexpr const char* kDecode = "/oscarkv.v1.KvCacheService/Decode";

// Requests of one-token steps that follow each other.
std::string AttendStep(const v1::Session& session, int position) {
  return testing::AttendRequestOf(kModel, session, 0, position, 1, 1).SerializeAsString();
}
std::string DecodeStep(const v1::Session& session, int position) {
  v1::DecodeRequest request;
  *request.mutable_attend() = testing::AttendRequestOf(kModel, session, 0, position, 1, 1);
  return request.SerializeAsString();
}
std::string QueryOnly(const v1::Session& session, int length) {
  v1::AttendRequest request = testing::AttendRequestOf(kModel, session, 0, length, 0, 1);
  request.mutable_items(0)->clear_expected_length();
  return request.SerializeAsString();
}

// The backend's part of such a step.
class Kernel {
 public:
  Kernel(Backend& backend, const LayerSpec& spec)
      : backend_(backend), sessions_(backend, spec, kContext, 1, 1), spec_(sessions_.spec()) {
    Require(sessions_.status().ok(), "fill a context");
    Require(backend.Allocate(TokenBlockLayout(spec_, kWindowBlockTokens).bytes, {&block_, 1}).ok(),
            "allocate a block");
    outputs_.resize(std::size_t{1} * spec_.query_heads * spec_.value_dim);
    log_sum_exps_.resize(static_cast<std::size_t>(spec_.query_heads));
  }
  ~Kernel() { backend_.Free({&block_, 1}); }

  void Append() {
    const AppendItem item = {
        .spec = &spec_, .block = block_, .tokens = 1, .keys = row_.data(), .values = row_.data()};
    Require(backend_.Append({&item, 1}).ok(), "append");
  }
  void Attend() {
    const AttendItem item = {.layer = sessions_.View(0),
                             .num_queries = 1,
                             .query_begin = kContext - 1,
                             .queries = row_.data(),
                             .outputs = outputs_.data(),
                             .log_sum_exps = log_sum_exps_.data()};
    Require(backend_.Attend({&item, 1}).ok(), "attend");
  }

 private:
  Backend& backend_;
  FilledSessions sessions_;
  const LayerSpec& spec_;
  BlockId block_ = kNoBlock;
  std::vector<std::uint16_t> row_ = GaussianNumbers(std::int64_t{32} * 128, 5);
  std::vector<float> outputs_;
  std::vector<float> log_sum_exps_;
};

class Timer {
 public:
  explicit Timer(const char* name) : name_(name) {}

  void Time(const std::function<void()>& call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    const auto end = std::chrono::steady_clock::now();
    microseconds_.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
  }

  double Quantile(double q) {
    std::sort(microseconds_.begin(), microseconds_.end());
    return microseconds_[static_cast<std::size_t>(q *
                                                  static_cast<double>(microseconds_.size() - 1))];
  }

  double Report() {
    std::printf("%-34s %8.1f us  (p10 %.1f, p90 %.1f)\n", name_, Quantile(0.5), Quantile(0.1),
                Quantile(0.9));
    return Quantile(0.5);
  }

 private:
  const char* name_;
  std::vector<double> microseconds_;
};

template <typename Response>
void CheckApplied(const grpc::ByteBuffer& bytes) {
  const auto response = FromBytes<Response>(bytes);
  const v1::AttendResponse* attend = nullptr;
  if constexpr (requires { response.attend(); }) {
    attend = &response.attend();
  } else {
    attend = &response;
  }
  Require(attend->results_size() == 1 && attend->results(0).status().code() == 0, "an item");
}

void Run(int rounds) {
  RpcServer server(0);
  EchoService echo;
  Listening echo_listening(&echo);

  const v1::Session queried = server.Create("queried", kModel, kContext);
  const v1::Session unary = server.Create("unary", kModel, kContext - rounds / 2);
  const v1::Session streamed = server.Create("streamed", kModel, kContext - rounds / 2);
  Kernel kernel(server.backend(), (*server.store().ConfigOf("queried"))->layers[0]);

  RawUnary attend(server.channel(), kAttend);
  RawUnary echo_unary(echo_listening.channel(), kAttend);
  RawStream decode(server.channel(), kDecode);
  RawStream echo_stream(echo_listening.channel(), kDecode);
  const std::string query_only = QueryOnly(queried, kContext);
  const grpc::ByteBuffer reply = attend.Call(query_only);
  CheckApplied<v1::AttendResponse>(reply);
  v1::DecodeResponse decoded_reply;
  *decoded_reply.mutable_attend() = FromBytes<v1::AttendResponse>(reply);
  decoded_reply.mutable_status();
  echo.set_replies(decoded_reply.attend().SerializeAsString(), decoded_reply.SerializeAsString());

  Timer echo_unary_time("echo, unary");
  Timer echo_stream_time("echo, stream");
  Timer attend_kernel("kernel: attend");
  Timer append_kernel("kernel: append");
  Timer query_time("Attend, unary, nothing appended");
  Timer attend_time("Attend, unary, a token appended");
  Timer decode_time("Decode, stream, a token appended");
  for (int i = 0; i < rounds; ++i) {
    const int position = kContext - rounds / 2 + i;
    const std::string attend_step = AttendStep(unary, position);
    const std::string decode_step = DecodeStep(streamed, position);
    grpc::ByteBuffer attended;
    grpc::ByteBuffer decoded;
    echo_unary_time.Time([&] { echo_unary.Call(attend_step); });
    query_time.Time([&] { attend.Call(query_only); });
    append_kernel.Time([&] { kernel.Append(); });
    attend_time.Time([&] { attended = attend.Call(attend_step); });
    attend_kernel.Time([&] { kernel.Attend(); });
    echo_stream_time.Time([&] { echo_stream.Exchange(decode_step); });
    decode_time.Time([&] { decoded = decode.Exchange(decode_step); });
    CheckApplied<v1::AttendResponse>(attended);
    CheckApplied<v1::DecodeResponse>(decoded);
  }

  std::printf("1 layer, 8 kv heads, GQA 4, head_dim 128, context %d, medians of %d:\n", kContext,
              rounds);
  const double echo_us = echo_unary_time.Report();
  const double stream_us = echo_stream_time.Report();
  const double kernel_us = attend_kernel.Report();
  const double append_us = append_kernel.Report();
  const double query_us = query_time.Report();
  const double attend_us = attend_time.Report();
  const double decode_us = decode_time.Report();
  const auto ratio = [](const char* name, double rpc, double echoed, double kernels) {
    std::printf("%-34s %.2f x (echo + kernel), %+.1f us\n", name, rpc / (echoed + kernels),
                rpc - echoed - kernels);
  };
  const KindStats stats = server.service().Stats().of(WorkKind::kAttend);
  std::printf("means in the server: %.1f us in the queue, %.1f us in the session and its kernels\n",
              static_cast<double>(stats.queue_microseconds.sum) / stats.queue_microseconds.count,
              static_cast<double>(stats.run_microseconds.sum) / stats.run_microseconds.count);
  ratio("Attend, nothing appended", query_us, echo_us, kernel_us);
  ratio("Attend, a token appended", attend_us, echo_us, kernel_us + append_us);
  ratio("Decode, a token appended", decode_us, stream_us, kernel_us + append_us);
}

}  // namespace
}  // namespace oscarkv::bench

int main(int argc, char** argv) {
  const std::optional<int> rounds =
      argc > 1 ? oscarkv::bench::NumberArgument(argv[1], 1, 4000) : 1000;
  if (!rounds || argc > 2) {
    std::fprintf(stderr,
                 "usage: rpc_overhead [rounds]\n"
                 "  rounds  of calls of each kind, 1 to 4000 (default 1000)\n");
    return 2;
  }
  oscarkv::bench::Run(*rounds);
  return 0;
}
