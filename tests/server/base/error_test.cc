#include "server/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace oscarkv {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(ErrorTest, KeepsItsDetails) {
  const std::string odd("a\0b\xff", 4);
  const absl::Status status = MakeError(absl::StatusCode::kResourceExhausted, "no memory",
                                        {.reason = "OUT_OF_MEMORY",
                                         .metadata = {{"empty", ""}, {odd, odd}},
                                         .retry_after = absl::Milliseconds(1500)});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "no memory");
  const absl::optional<ErrorDetails> details = DetailsOf(status);
  ASSERT_TRUE(details.has_value());
  EXPECT_EQ(details->reason, "OUT_OF_MEMORY");
  EXPECT_EQ(details->retry_after, absl::Milliseconds(1500));
  EXPECT_THAT(details->metadata, ElementsAre(Pair("empty", ""), Pair(odd, odd)));
}

TEST(ErrorTest, OthersHaveNone) {
  EXPECT_FALSE(DetailsOf(absl::OkStatus()).has_value());
  EXPECT_FALSE(DetailsOf(absl::InternalError("from elsewhere")).has_value());
}

TEST(ErrorTest, InvalidFieldNamesAll) {
  const absl::Status status = InvalidField("layer", "7", "0 to 3");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "layer is 7; expected 0 to 3");
  const absl::optional<ErrorDetails> details = DetailsOf(status);
  ASSERT_TRUE(details.has_value());
  EXPECT_EQ(details->reason, "INVALID_FIELD");
  EXPECT_THAT(details->metadata,
              ElementsAre(Pair("field", "layer"), Pair("value", "7"), Pair("expected", "0 to 3")));
}

TEST(ErrorTest, PrefixGoesBeforeTheField) {
  const absl::Status status = WithFieldPrefix(InvalidField("key", "x", "y"), "items[2].");
  EXPECT_EQ(status.message(), "items[2].key is x; expected y");
  EXPECT_THAT(DetailsOf(status)->metadata, ::testing::Contains(Pair("field", "items[2].key")));
}

TEST(ErrorTest, PrefixLeavesErrorsWithoutFieldsAlone) {
  const absl::Status plain = absl::InternalError("plain");
  EXPECT_EQ(WithFieldPrefix(plain, "items[2]."), plain);
  const absl::Status no_field = MakeError(absl::StatusCode::kAborted, "m", {.reason = "R"});
  EXPECT_EQ(WithFieldPrefix(no_field, "items[2]."), no_field);
  EXPECT_TRUE(WithFieldPrefix(absl::OkStatus(), "items[2].").ok());
}

}  // namespace
}  // namespace oscarkv
