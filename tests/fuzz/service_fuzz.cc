// A server lives through any sequence of requests: none crashes it, none makes it INTERNAL, memory
// stays inside the budget, and ordinary numbers never make a NaN.
//
// Requests are built to be mostly right, so that they get past the checks; then some have a few
// bytes of their encoding changed.
#include <fuzzer/FuzzedDataProvider.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend_factory.h"
#include "oscarkv/v1/kv_cache.pb.h"
#include "server/rpc/handlers.h"
#include "server/rpc/session_exporter.h"
#include "server/rpc/session_importer.h"
#include "server/rpc/token_reader.h"

namespace oscarkv {
namespace {

constexpr std::int64_t kBudgetBytes = std::int64_t{8} << 20;
constexpr std::int64_t kMessageBytes = 1 << 16;
constexpr int kMaxRequests = 24;
constexpr int kMaxTokens = 300;
constexpr float kOrdinary = 1e4f;  // products of such numbers stay far from the end of fp32

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::abort();
}

class Fuzz {
 public:
  Fuzz(FuzzedDataProvider* input, Backend* backend)
      : in_(*input),
        store_(backend, {.memory_budget_bytes = kBudgetBytes, .settle_after = absl::Hours(1)}),
        handlers_(&store_, {.version = "fuzz", .max_message_bytes = kMessageBytes}) {}

  void Run() {
    for (int i = 0; i < kMaxRequests && in_.remaining_bytes() > 0; ++i) {
      Step();
      if (store_.Totals().resident_bytes > kBudgetBytes) Fail("more memory than the budget");
    }
    for (const char* id : {"a", "b"}) (void)store_.Delete(id, 0);
    if (store_.Totals().sessions == 0 && store_.Totals().resident_bytes != 0) {
      Fail("no sessions, but memory is in use");
    }
  }

 private:
  void Step() {
    switch (in_.ConsumeIntegralInRange(0, 9)) {
      case 0:
        return Call(&Handlers::CreateSession, CreateRequest());
      case 1:
        return Append();
      case 2:
      case 3:
        return Attend();
      case 4:
        return Truncate();
      case 5:
        return Read();
      case 6:
        return store_.Settle();
      case 7:
        return Fork();
      case 8:
        return Transfer();
      default:
        return Rest();
    }
  }

  // Calls a handler with a request, of which a few bytes may be changed first.
  template <typename Request, typename Response>
  void Call(absl::Status (Handlers::*handle)(const Request&, Response&), Request request) {
    Response response;
    CallFor(handle, std::move(request), response);
  }

  template <typename Request, typename Response>
  void CallFor(absl::Status (Handlers::*handle)(const Request&, Response&), Request request,
               Response& response) {
    if (in_.ConsumeIntegralInRange(0, 3) == 0) request = Changed(request);
    CheckStatus((handlers_.*handle)(request, response));
  }

  template <typename Request>
  Request Changed(const Request& request) {
    std::string bytes = request.SerializeAsString();
    for (int i = in_.ConsumeIntegralInRange(0, 4); i > 0 && !bytes.empty(); --i) {
      // Near the front: what follows are the elements of tensors.
      const std::size_t at = in_.ConsumeIntegralInRange<std::size_t>(0, 160) % bytes.size();
      bytes[at] = static_cast<char>(in_.ConsumeIntegral<std::uint8_t>());
    }
    extreme_ = true;
    Request changed;
    return changed.ParseFromString(bytes) ? changed : request;
  }

  static void CheckStatus(const absl::Status& status) {
    switch (status.code()) {
      case absl::StatusCode::kInternal:
      case absl::StatusCode::kUnknown:
      case absl::StatusCode::kDataLoss:
        Fail(status.ToString());
      default:
        return;
    }
  }

  template <typename Response>
  void CheckItems(const Response& response) {
    for (const v1::ItemResult& result : response.results()) {
      CheckStatus(absl::Status(static_cast<absl::StatusCode>(result.status().code()),
                               result.status().message()));
    }
  }

  std::string SessionId() { return in_.ConsumeBool() ? "a" : "b"; }

  std::uint64_t Generation(const std::string& session) {
    const auto info = store_.Get(session);
    const std::uint64_t right = info.ok() ? info->generation : 1;
    return in_.ConsumeIntegralInRange(0, 15) == 0 ? right + 1 : right;
  }

  v1::CreateSessionRequest CreateRequest() {
    v1::CreateSessionRequest request;
    request.set_session(SessionId());
    request.set_request_id("r");
    request.set_storage_dtype(in_.ConsumeBool() ? v1::DATA_TYPE_BF16 : v1::DATA_TYPE_FP16);
    request.set_position_base(in_.PickValueInArray<std::int64_t>({0, 0, 0, 5, 1 << 20}));
    SetCodec(*request.mutable_codec());
    for (int i = in_.ConsumeIntegralInRange(1, 2), id = 0; i > 0; --i, ++id) {
      v1::LayerSpec& layer = *request.add_layers();
      layer.set_layer(id);
      layer.set_kv_heads(in_.ConsumeIntegralInRange(1, 2));
      layer.set_query_heads(layer.kv_heads() * in_.ConsumeIntegralInRange(1, 3));
      layer.set_key_dim(in_.PickValueInArray({64, 64, 80, 96}));
      layer.set_value_dim(in_.PickValueInArray({0, 0, 64, 112}));
      layer.set_sliding_window(in_.PickValueInArray<std::int64_t>({0, 0, 3, 128, 200}));
      layer.set_softcap(in_.PickValueInArray({0.0f, 0.0f, 30.0f}));
      for (int h = in_.ConsumeBool() ? layer.query_heads() : 0; h > 0; --h) {
        layer.add_sink_logits(static_cast<float>(h) - 1);
      }
    }
    return request;
  }

  void SetCodec(v1::Codec& codec) {
    codec.set_profile(static_cast<v1::Profile>(in_.ConsumeIntegralInRange(0, 4)));
    codec.set_key_bits(in_.PickValueInArray({0, 0, 2, 4, 16}));
    codec.set_value_bits(in_.PickValueInArray({0, 0, 2, 4, 16}));
    codec.set_plan(static_cast<v1::PlanMode>(in_.ConsumeIntegralInRange(0, 2)));
    codec.set_scaling(static_cast<v1::Scaling>(in_.ConsumeIntegralInRange(0, 3)));
    codec.set_residual(static_cast<v1::Residual>(in_.ConsumeIntegralInRange(0, 2)));
    if (in_.ConsumeBool()) codec.set_window(in_.ConsumeIntegralInRange(1, 160));
    if (in_.ConsumeBool()) codec.set_sinks(in_.ConsumeIntegralInRange(0, 8));
  }

  // [rows, heads, dim] of numbers that look random, of a magnitude that the input picks.
  v1::Tensor Tensor(std::int64_t rows, int heads, int dim) {
    const float magnitude =
        in_.PickValueInArray({0.0f, 1.0f, 1.0f, 1.0f, 30.0f, 1e4f, 1e30f, 3e38f, 1e-38f});
    extreme_ = extreme_ || magnitude > kOrdinary;
    std::uint32_t state = in_.ConsumeIntegral<std::uint16_t>();
    std::vector<float> numbers(static_cast<std::size_t>(rows) * heads * dim);
    for (float& number : numbers) {
      state = state * 1664525u + 1013904223u;
      number = magnitude * (static_cast<float>(state >> 8) / (1 << 23) - 1);
    }
    v1::Tensor tensor;
    tensor.set_dtype(v1::DATA_TYPE_FP32);
    for (std::int64_t axis : {rows, std::int64_t{heads}, std::int64_t{dim}}) tensor.add_shape(axis);
    tensor.set_raw(numbers.data(), numbers.size() * sizeof(float));
    return tensor;
  }

  // An item that fits its session, if there is one; returns the layer's shape or null.
  const LayerSpec* FillItem(v1::Item& item, int layer, SessionInfo& info) {
    item.set_session(SessionId());
    item.set_generation(Generation(item.session()));
    auto found = store_.Get(item.session());
    if (!found.ok()) return nullptr;
    info = *std::move(found);
    for (std::size_t i = 0; i < info.layers.size(); ++i) {
      if (info.layers[i].layer != layer) continue;
      const std::int64_t wrong = in_.ConsumeIntegralInRange(0, 15) == 0 ? 1 : 0;
      item.set_expected_length(info.layers[i].length + wrong);
      return &info.config->layers[i];
    }
    return nullptr;
  }

  template <typename Request>
  const LayerSpec* FillBatch(Request& request) {
    request.set_layer(in_.ConsumeIntegralInRange(0, 1));
    SessionInfo info;
    v1::Item& item = *request.add_items();
    const LayerSpec* spec = FillItem(item, request.layer(), info);
    if (spec == nullptr) return nullptr;
    config_ = info.config;  // keeps spec
    item.set_num_tokens(in_.ConsumeIntegralInRange(0, kMaxTokens));
    *request.mutable_key() = Tensor(item.num_tokens(), spec->kv_heads, spec->key_dim);
    *request.mutable_value() = Tensor(item.num_tokens(), spec->kv_heads, spec->value_dim);
    return spec;
  }

  void Append() {
    v1::AppendRequest request;
    const LayerSpec* spec = FillBatch(request);
    if (spec == nullptr) return;
    v1::Item& item = *request.mutable_items(0);
    item.set_query_stride(in_.PickValueInArray({0, 1, 8, spec->query_sample_stride()}));
    if (in_.ConsumeBool()) {
      item.set_num_query_tokens(in_.ConsumeIntegralInRange(0, 8));
      *request.mutable_query() = Tensor(item.num_query_tokens(), spec->query_heads, spec->key_dim);
    }
    v1::AppendResponse response;
    CallFor(&Handlers::Append, std::move(request), response);
    CheckItems(response);
  }

  void Attend() {
    v1::AttendRequest request;
    const LayerSpec* spec = FillBatch(request);
    if (spec == nullptr) return;
    v1::Item& item = *request.mutable_items(0);
    item.set_num_query_tokens(in_.ConsumeIntegralInRange(0, 6));
    if (in_.ConsumeIntegralInRange(0, 3) == 0) {
      item.set_query_start(in_.ConsumeIntegralInRange<std::int64_t>(-10, 1000));
    }
    *request.mutable_query() = Tensor(item.num_query_tokens(), spec->query_heads, spec->key_dim);
    request.set_mask(in_.ConsumeBool() ? v1::MASK_CAUSAL : v1::MASK_NONE);
    request.set_output_dtype(v1::DATA_TYPE_FP32);
    v1::AttendResponse response;
    CallFor(&Handlers::Attend, std::move(request), response);
    CheckItems(response);
    if (extreme_) return;
    CheckNumbers(response.output());
    CheckNumbers(response.log_sum_exp());
  }

  static void CheckNumbers(const v1::Tensor& tensor) {
    if (tensor.dtype() != v1::DATA_TYPE_FP32) return;
    for (std::size_t at = 0; at + sizeof(float) <= tensor.raw().size(); at += sizeof(float)) {
      float number;
      std::memcpy(&number, tensor.raw().data() + at, sizeof(number));
      if (std::isnan(number)) Fail("NaN in an answer");
    }
  }

  void Truncate() {
    v1::TruncateSessionRequest request;
    request.set_session(SessionId());
    request.set_generation(Generation(request.session()));
    request.set_length(in_.ConsumeIntegralInRange<std::int64_t>(-1, 1200));
    Call(&Handlers::TruncateSession, std::move(request));
  }

  void Fork() {
    v1::ForkSessionRequest request;
    for (int i = in_.ConsumeIntegralInRange(0, 3); i > 0; --i) {
      v1::Fork& fork = *request.add_forks();
      fork.set_source(SessionId());
      fork.set_generation(Generation(fork.source()));
      if (in_.ConsumeBool()) {
        fork.set_length(in_.ConsumeIntegralInRange<std::int64_t>(-1, 1200));
      }
      fork.set_session(SessionId());
      fork.set_request_id(in_.ConsumeBool() ? "same" : absl::StrCat(++forks_));
      fork.set_replace(in_.ConsumeBool());
    }
    Call(&Handlers::ForkSession, std::move(request));
  }

  void Read() {
    v1::ReadTokensRequest request;
    request.set_session(SessionId());
    request.set_generation(Generation(request.session()));
    request.set_layer(in_.ConsumeIntegralInRange(0, 1));
    request.set_begin(in_.ConsumeIntegralInRange<std::int64_t>(-1, 1200));
    if (in_.ConsumeBool()) request.set_num_tokens(in_.ConsumeIntegral<std::int16_t>());
    auto reader = TokenReader::Open(store_, request, kMessageBytes);
    CheckStatus(reader.status());
    while (reader.ok() && !reader->done()) {
      v1::ReadTokensResponse response;
      const absl::Status status = reader->Next(response);
      CheckStatus(status);
      if (!status.ok()) return;
      if (response.ByteSizeLong() > static_cast<std::size_t>(kMessageBytes)) {
        Fail("a run of tokens that does not fit a message");
      }
    }
  }

  // A session that leaves as a file and comes back, of which a few bytes may be changed on the way.
  void Transfer() {
    v1::ExportSessionRequest request;
    request.set_session(SessionId());
    request.set_generation(in_.ConsumeBool() ? 0 : Generation(request.session()));
    auto exporter = SessionExporter::Open(store_, request, kMessageBytes);
    CheckStatus(exporter.status());
    if (!exporter.ok()) return;
    SessionImporter importer(store_);
    v1::ImportSessionRequest piece;
    piece.mutable_header()->set_session(in_.ConsumeBool() ? "" : SessionId());
    piece.mutable_header()->set_request_id("import");
    absl::Status status = importer.Take(piece);
    CheckStatus(status);
    const bool damaged = in_.ConsumeBool();
    while (status.ok() && !exporter->done()) {
      v1::ExportSessionResponse response;
      CheckStatus(exporter->Next(response));
      if (response.ByteSizeLong() > static_cast<std::size_t>(kMessageBytes)) {
        Fail("a piece of a file that does not fit a message");
      }
      std::string bytes = response.data();
      for (int i = damaged ? in_.ConsumeIntegralInRange(0, 2) : 0; i > 0 && !bytes.empty(); --i) {
        const std::size_t at = in_.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1);
        bytes[at] = static_cast<char>(in_.ConsumeIntegral<std::uint8_t>());
      }
      piece.set_data(std::move(bytes));
      status = importer.Take(piece);
    }
    v1::ImportSessionResponse response;
    if (status.ok()) status = importer.Finish(response);
    // A file that was changed is found to be.
    if (!damaged || !absl::IsDataLoss(status)) CheckStatus(status);
  }

  void Rest() {
    v1::GetSessionRequest get;
    get.set_session(SessionId());
    Call(&Handlers::GetSession, std::move(get));
    v1::ListSessionsRequest list;
    list.set_page_size(in_.ConsumeIntegral<std::int8_t>());
    list.set_page_token(in_.ConsumeRandomLengthString(8));
    Call(&Handlers::ListSessions, std::move(list));
    Call(&Handlers::GetServerInfo, v1::GetServerInfoRequest());
    if (in_.ConsumeBool()) return;
    v1::DeleteSessionRequest remove;
    remove.set_session(SessionId());
    remove.set_generation(in_.ConsumeBool() ? 0 : Generation(remove.session()));
    Call(&Handlers::DeleteSession, std::move(remove));
  }

  FuzzedDataProvider& in_;
  int forks_ = 0;
  SessionStore store_;
  Handlers handlers_;
  std::shared_ptr<const SessionConfig> config_;
  bool extreme_ = false;  // some numbers are so large that logits may overflow
};

}  // namespace
}  // namespace oscarkv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const oscarkv::BackendResult made =
      oscarkv::MakeBackend({.kind = oscarkv::BackendKind::kCpu, .threads = 1});
  if (made.backend == nullptr) std::abort();
  FuzzedDataProvider input(data, size);
  oscarkv::Fuzz(&input, made.backend.get()).Run();
  return 0;
}
