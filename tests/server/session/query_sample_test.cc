#include "server/session/query_sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/server/support/test_session.h"

namespace oscarkv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class QuerySampleTest : public ::testing::Test {
 protected:
  // Rows whose elements all are their position.
  QueryRows Rows(std::int64_t begin, std::int32_t count, std::int64_t stride = 1) {
    floats_.clear();
    for (std::int32_t i = 0; i < count; ++i) {
      floats_.insert(floats_.end(), kRow, static_cast<float>(begin + i * stride));
    }
    return {.dtype = DType::kFP32,
            .data = floats_.data(),
            .count = count,
            .begin = begin,
            .stride = stride};
  }
  void Add(const QueryRows& rows) {
    sample_.Add(sample_.Prepare(rows, sample_.Missing(rows, 0, 1000)));
  }
  std::vector<float> FirstElements(std::int64_t from, std::int64_t to) const {
    const QuerySample::Slice slice = sample_.Range(from, to);
    std::vector<float> first;
    for (std::int32_t i = 0; i < slice.count; ++i) {
      first.push_back(FromBits16(spec_.storage, slice.rows[static_cast<std::size_t>(i) * kRow]));
    }
    return first;
  }

  static constexpr std::size_t kRow = 4 * 64;
  const LayerSpec spec_ = SmallLayer(0);  // every 16th position
  QuerySample sample_{&spec_, 0};
  std::vector<float> floats_;
};

TEST_F(QuerySampleTest, TakesMultiplesOfTheStride) {
  EXPECT_THAT(sample_.Missing(Rows(5, 40), 0, 1000), ElementsAre(11, 27));
  EXPECT_THAT(sample_.Missing(Rows(5, 40), 17, 1000), ElementsAre(27));
  EXPECT_THAT(sample_.Missing(Rows(5, 40), 0, 32), ElementsAre(11));
  EXPECT_THAT(sample_.Missing(Rows(-40, 41), 0, 1000), ElementsAre(40));
  EXPECT_THAT(sample_.Missing(Rows(8, 4, 8), 0, 1000), ElementsAre(1, 3));
}

TEST_F(QuerySampleTest, CountsPositionsFromTheSessionsBase) {
  const QuerySample shard(&spec_, 100);
  EXPECT_THAT(shard.Missing(Rows(0, 40), 0, 1000), ElementsAre(12, 28));
}

TEST_F(QuerySampleTest, IsInTheOrderOfPositionsWhateverTheOrderOfArrival) {
  Add(Rows(64, 1));
  Add(Rows(16, 1));
  Add(Rows(32, 17));
  EXPECT_THAT(FirstElements(0, 1000), ElementsAre(16, 32, 48, 64));
  EXPECT_THAT(FirstElements(17, 64), ElementsAre(32, 48));
  EXPECT_EQ(sample_.bytes(), 4 * static_cast<std::int64_t>(kRow) * 2);
}

TEST_F(QuerySampleTest, KeepsTheFirstRowOfAPosition) {
  Add(Rows(16, 1));
  QueryRows other = Rows(160, 1);
  other.begin = 16;
  EXPECT_THAT(sample_.Missing(other, 0, 1000), IsEmpty());
  EXPECT_THAT(FirstElements(0, 1000), ElementsAre(16));
}

TEST_F(QuerySampleTest, DropsFromEitherEnd) {
  Add(Rows(0, 100));
  sample_.DropBefore(17);
  EXPECT_THAT(FirstElements(0, 1000), ElementsAre(32, 48, 64, 80, 96));
  sample_.DropFrom(80);
  EXPECT_THAT(FirstElements(0, 1000), ElementsAre(32, 48, 64));
  sample_.DropFrom(0);
  EXPECT_EQ(sample_.bytes(), 0);
}

TEST_F(QuerySampleTest, ClampsToTheStorageType) {
  for (const DType storage : {DType::kBF16, DType::kFP16}) {
    LayerSpec spec = SmallLayer(0);
    spec.storage = storage;
    QuerySample sample(&spec, 0);
    std::vector<float> row(kRow, std::numeric_limits<float>::max());
    row[1] = std::numeric_limits<float>::lowest();
    const QueryRows rows{.dtype = DType::kFP32, .data = row.data(), .count = 1};
    sample.Add(sample.Prepare(rows, sample.Missing(rows, 0, 1)));
    const QuerySample::Slice slice = sample.Range(0, 1);
    const float largest = FromBits16(storage, slice.rows[0]);
    EXPECT_TRUE(std::isfinite(largest));
    EXPECT_GE(largest, 65504.0F);
    EXPECT_EQ(FromBits16(storage, slice.rows[1]), -largest);
  }
}

}  // namespace
}  // namespace oscarkv
