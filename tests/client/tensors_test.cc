#include "client/tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace oscarkv {
namespace {

using testing::ElementsAre;

TEST(TensorsTest, FloatsRoundTrip) {
  const std::vector<float> values = {1, -2, 3.5, 0, 1e30f, -0.25};
  const v1::Tensor tensor = MakeTensor({2, 3}, values);
  EXPECT_EQ(tensor.dtype(), v1::DATA_TYPE_FP32);
  EXPECT_THAT(tensor.shape(), ElementsAre(2, 3));
  EXPECT_THAT(ViewFloats(tensor).value(), testing::ElementsAreArray(values));
  EXPECT_THAT(CopyFloats(tensor).value(), testing::ElementsAreArray(values));
}

TEST(TensorsTest, SixteenBitsAreConverted) {
  const std::vector<std::uint16_t> fp16 = {0x3c00, 0xc100};
  const std::vector<std::uint16_t> bf16 = {0x3f80, 0xc020};
  EXPECT_THAT(CopyFloats(MakeTensor(v1::DATA_TYPE_FP16, {2}, fp16)).value(), ElementsAre(1, -2.5));
  EXPECT_THAT(CopyFloats(MakeTensor(v1::DATA_TYPE_BF16, {2}, bf16)).value(), ElementsAre(1, -2.5));
  EXPECT_FALSE(ViewFloats(MakeTensor(v1::DATA_TYPE_FP16, {2}, fp16)).ok());
}

TEST(TensorsTest, AReceivedTensorIsChecked) {
  v1::Tensor tensor = MakeTensor({2, 3}, std::vector<float>(6));
  EXPECT_TRUE(CheckTensor(tensor).ok());
  tensor.set_shape(1, 4);
  EXPECT_FALSE(CheckTensor(tensor).ok());
  tensor.set_shape(1, -3);
  EXPECT_FALSE(CheckTensor(tensor).ok());
  tensor.set_shape(0, std::int64_t{1} << 62);  // the product wraps to 0
  tensor.set_shape(1, 16);
  tensor.clear_raw();
  EXPECT_FALSE(CheckTensor(tensor).ok());
  EXPECT_FALSE(CheckTensor(v1::Tensor()).ok());
  EXPECT_FALSE(ViewFloats(v1::Tensor()).ok());
  EXPECT_FALSE(CopyFloats(v1::Tensor()).ok());
}

}  // namespace
}  // namespace oscarkv
