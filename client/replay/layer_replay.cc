#include "client/replay/layer_replay.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/error_info.h"
#include "client/tensors.h"

namespace oscarkv {
namespace {

constexpr std::int64_t kContextTokensPerMessage = 128;

// The rows of the tokens [begin, end).
std::string_view TokenBytes(const RecordedTensor& tensor, std::int64_t begin, std::int64_t end) {
  const std::size_t row = tensor.row_bytes();
  return {reinterpret_cast<const char*>(tensor.bytes.data()) + begin * row, (end - begin) * row};
}

// The tensor in fp32, kept in `floats`.
RecordedTensor Widen(const RecordedTensor& tensor, std::vector<float>& floats) {
  floats.resize(static_cast<std::size_t>(tensor.tokens) * tensor.heads * tensor.dim);
  ToFloats(tensor.dtype, tensor.bytes.data(), floats.size(), floats.data());
  RecordedTensor wide = tensor;
  wide.dtype = DType::kFP32;
  wide.bytes = std::as_bytes(std::span(floats));
  return wide;
}

v1::Tensor TokenTensor(const RecordedTensor& tensor, std::int64_t token) {
  return MakeTensor(ToDataType(tensor.dtype), {1, tensor.heads, tensor.dim},
                    TokenBytes(tensor, token, token + 1));
}

}  // namespace

v1::DataType ToDataType(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return v1::DATA_TYPE_BF16;
    case DType::kFP16:
      return v1::DATA_TYPE_FP16;
    case DType::kFP32:
      return v1::DATA_TYPE_FP32;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

LayerReplay::LayerReplay(Client& client, const v1::Session& session, const RecordedLayer& layer,
                         std::span<const std::int64_t> positions)
    : client_(client),
      session_(session),
      writer_(&client, session),
      layer_(layer),
      key_(layer.key),
      value_(layer.value),
      positions_(positions.begin(), positions.end()),
      exact_(ExactAttention(layer, positions)) {
  const auto taken = [&session](const RecordedTensor& tensor) {
    return ToDataType(tensor.dtype) == session.storage_dtype();
  };
  if (!taken(layer.key) || !taken(layer.value)) {
    key_ = Widen(layer.key, key_floats_);
    value_ = Widen(layer.value, value_floats_);
  }
}

absl::Status LayerReplay::Run(absl::FunctionRef<absl::Status()> before_step) {
  if (absl::Status status = AppendContext(); !status.ok()) return status;
  for (std::size_t i = 0; i < positions_.size(); ++i) {
    if (absl::Status status = before_step(); !status.ok()) return status;
    if (absl::Status status = Step(i); !status.ok()) return status;
  }
  return AppendUpTo(layer_.tokens());
}

absl::Status LayerReplay::AppendContext() {
  const std::int64_t context = positions_.front();
  const absl::Time start = absl::Now();
  while (length_ < context) {
    absl::Status status = AppendUpTo(std::min(length_ + kContextTokensPerMessage, context));
    if (!status.ok()) return status;
  }
  context_time_ = absl::Now() - start;
  context_bytes_ = context * static_cast<std::int64_t>(key_.row_bytes() + value_.row_bytes());
  return absl::OkStatus();
}

absl::Status LayerReplay::AppendUpTo(std::int64_t length) {
  if (length <= length_) return absl::OkStatus();
  const LayerTokens tokens = {.tokens = length - length_,
                              .dtype = ToDataType(key_.dtype),
                              .key = TokenBytes(key_, length_, length),
                              .value = TokenBytes(value_, length_, length),
                              .query_dtype = ToDataType(layer_.query.dtype),
                              .query = TokenBytes(layer_.query, length_, length)};
  if (absl::Status status = writer_.Append(layer_.layer, tokens); !status.ok()) return status;
  length_ = length;
  return absl::OkStatus();
}

absl::Status LayerReplay::Step(std::size_t i) {
  const std::int64_t position = positions_[i];
  // The token at the position comes with its query, as in decoding: so the query sees sealed what
  // it would see if all tokens had come one at a time.
  if (absl::Status status = AppendUpTo(position); !status.ok()) return status;
  const absl::Time start = absl::Now();
  const auto response = Attend(position);
  attend_times_.push_back(absl::Now() - start);
  if (!response.ok()) return response.status();
  return Compare(*response, exact_[i]);
}

absl::StatusOr<v1::AttendResponse> LayerReplay::Attend(std::int64_t position) {
  v1::AttendRequest request;
  request.set_layer(layer_.layer);
  v1::Item& item = *request.add_items();
  item.set_session(session_.id());
  item.set_generation(session_.generation());
  item.set_num_tokens(1);
  item.set_expected_length(position);
  item.set_num_query_tokens(1);
  *request.mutable_key() = TokenTensor(key_, position);
  *request.mutable_value() = TokenTensor(value_, position);
  *request.mutable_query() = TokenTensor(layer_.query, position);
  request.set_output_dtype(v1::DATA_TYPE_FP32);
  auto response = client_.Attend(request);
  if (!response.ok()) return response.status();
  if (absl::Status status = FirstItemError(*response); !status.ok()) return status;
  writer_.CountAppended(layer_.layer, 1);
  length_ = position + 1;
  return response;
}

absl::Status LayerReplay::Compare(const v1::AttendResponse& response, const ExactOutput& exact) {
  const auto output = ViewFloats(response.output());
  if (!output.ok()) return output.status();
  const auto lse = ViewFloats(response.log_sum_exp());
  if (!lse.ok()) return lse.status();
  if (output->size() != exact.output.size() || lse->size() != exact.log_sum_exp.size()) {
    return absl::InternalError(absl::StrCat("the server answered with ", output->size(),
                                            " outputs; expected ", exact.output.size()));
  }
  for (std::size_t i = 0; i < exact.output.size(); ++i) {
    squared_error_ += std::pow((*output)[i] - exact.output[i], 2);
    squared_norm_ += std::pow(exact.output[i], 2);
  }
  for (std::size_t i = 0; i < exact.log_sum_exp.size(); ++i) {
    lse_max_abs_error_ = std::max(lse_max_abs_error_, std::abs((*lse)[i] - exact.log_sum_exp[i]));
  }
  return absl::OkStatus();
}

double LayerReplay::output_relative_error() const {
  return squared_norm_ > 0 ? std::sqrt(squared_error_ / squared_norm_) : 0;
}

}  // namespace oscarkv
