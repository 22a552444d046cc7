#include "server/base/error.h"

#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/base/string_view.h"

namespace oscarkv {
namespace {

// Details travel as a payload: strings, each as its length (8 bytes of this machine's order) and
// its bytes: reason, retry_after in nanoseconds as text, then keys and values in turn. It never
// leaves the process.
constexpr absl::string_view kTypeUrl = "oscarkv/ErrorDetails";

void PutString(std::string_view s, std::string* out) {
  const std::uint64_t size = s.size();
  out->append(reinterpret_cast<const char*>(&size), sizeof(size));
  out->append(s);
}

std::optional<std::string> TakeString(std::string_view* in) {
  std::uint64_t size = 0;
  if (in->size() < sizeof(size)) return std::nullopt;
  std::memcpy(&size, in->data(), sizeof(size));
  in->remove_prefix(sizeof(size));
  if (in->size() < size) return std::nullopt;
  std::string s(in->substr(0, size));
  in->remove_prefix(size);
  return s;
}

std::string Encode(const ErrorDetails& details) {
  std::string out;
  PutString(details.reason, &out);
  PutString(absl::StrCat(absl::ToInt64Nanoseconds(details.retry_after)), &out);
  for (const auto& [key, value] : details.metadata) {
    PutString(key, &out);
    PutString(value, &out);
  }
  return out;
}

absl::optional<ErrorDetails> Decode(std::string_view in) {
  ErrorDetails details;
  std::optional<std::string> reason = TakeString(&in);
  const std::optional<std::string> nanoseconds = TakeString(&in);
  std::int64_t retry_after = 0;
  if (!reason || !nanoseconds || !absl::SimpleAtoi(*nanoseconds, &retry_after)) {
    return absl::nullopt;
  }
  details.reason = *std::move(reason);
  details.retry_after = absl::Nanoseconds(retry_after);
  while (!in.empty()) {
    std::optional<std::string> key = TakeString(&in);
    std::optional<std::string> value = TakeString(&in);
    if (!key || !value) return absl::nullopt;
    details.metadata.emplace_back(*std::move(key), *std::move(value));
  }
  return details;
}

std::string FieldMessage(std::string_view field, std::string_view value,
                         std::string_view expected) {
  return absl::StrCat(ToAbsl(field), " is ", ToAbsl(value), "; expected ", ToAbsl(expected));
}

}  // namespace

absl::Status MakeError(absl::StatusCode code, std::string_view message,
                       const ErrorDetails& details) {
  absl::Status status(code, ToAbsl(message));
  status.SetPayload(kTypeUrl, absl::Cord(Encode(details)));
  return status;
}

absl::Status InvalidField(std::string_view field, std::string_view value,
                          std::string_view expected) {
  return MakeError(absl::StatusCode::kInvalidArgument, FieldMessage(field, value, expected),
                   {.reason = "INVALID_FIELD",
                    .metadata = {{"field", std::string(field)},
                                 {"value", std::string(value)},
                                 {"expected", std::string(expected)}}});
}

absl::optional<ErrorDetails> DetailsOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kTypeUrl);
  if (!payload) return absl::nullopt;
  return Decode(std::string(*payload));
}

absl::Status WithFieldPrefix(const absl::Status& status, std::string_view prefix) {
  absl::optional<ErrorDetails> details = DetailsOf(status);
  if (!details) return status;
  for (auto& [key, value] : details->metadata) {
    if (key != "field") continue;
    // A message that starts with the field's name, as InvalidField's does, names the whole path.
    std::string message(status.message());
    if (message.starts_with(value)) message.insert(0, prefix);
    value.insert(0, prefix);
    return MakeError(status.code(), message, *details);
  }
  return status;
}

}  // namespace oscarkv
