#include "rankloom/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "collectives/call/complex.h"
#include "rankloom/collective_call.h"

namespace rankloom {

using namespace internal;

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string message(const absl::Status& status) { return std::string(status.message()); }

TEST(DTypeTest, NamesAndSizesAreTorchs) {
  EXPECT_EQ(dtype_name(DType::kFloat16), "float16");
  EXPECT_EQ(dtype_name(DType::kBFloat16), "bfloat16");
  EXPECT_EQ(dtype_name(DType::kFloat8E4M3FN), "float8_e4m3fn");
  EXPECT_EQ(dtype_name(DType::kFloat8E5M2), "float8_e5m2");
  EXPECT_EQ(dtype_size(DType::kBool), 1u);
  EXPECT_EQ(dtype_size(DType::kBFloat16), 2u);
  EXPECT_EQ(dtype_size(DType::kComplex128), 16u);
}

TEST(DTypeTest, KindsDoNotOverlap) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_LE(is_floating(dtype) + is_complex(dtype) + is_integral(dtype), 1) << dtype_name(dtype);
  }
  EXPECT_FALSE(is_integral(DType::kBool));
  EXPECT_FALSE(is_floating(DType::kFloat8E5M2));
}

TEST(TensorViewTest, AVectorIsOneDimension) {
  std::vector<float> values(3);
  const TensorView view(values);
  EXPECT_EQ(view.data(), values.data());
  EXPECT_EQ(view.dtype(), DType::kFloat32);
  EXPECT_THAT(view.sizes(), ElementsAre(3));
  EXPECT_THAT(view.strides(), IsEmpty());
  EXPECT_EQ(view.numel(), 3);
  EXPECT_EQ(view.bytes(), 12u);
  EXPECT_EQ(view.text(), "float32[3]");
}

TEST(TensorViewTest, SpansArraysAndScalarsAreViews) {
  std::array<bool, 4> flags = {};
  EXPECT_EQ(TensorView(flags).text(), "bool[4]");
  EXPECT_EQ(TensorView(std::span(flags).first(2)).text(), "bool[2]");
  long long number = 0;  // int64_t is long here, and both are int64
  EXPECT_EQ(TensorView::scalar(number).text(), "int64[1]");
  std::vector<Half> halves(2);
  EXPECT_EQ(TensorView(halves).text(), "float16[2]");
  std::vector<Complex64> complex(6);
  EXPECT_EQ(TensorView(complex.data(), {2, 3}).text(), "complex64[2, 3]");
}

TEST(TensorViewTest, NoSizesAreOneElement) {
  float value = 0;
  const TensorView view(&value, DType::kFloat32, {});
  EXPECT_EQ(view.numel(), 1);
  EXPECT_EQ(view.text(), "float32[]");
}

TEST(TensorViewTest, NothingIsEmpty) {
  const TensorView view;
  EXPECT_EQ(view.numel(), 0);
  EXPECT_EQ(view.bytes(), 0u);
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_EQ(view.text(), "float32[0]");
}

TEST(TensorViewTest, MetaHasShapeAndNoData) {
  const TensorView view = TensorView::meta({1 << 20, 1 << 20}, DType::kBFloat16);
  EXPECT_EQ(view.data(), nullptr);
  EXPECT_EQ(view.numel(), int64_t{1} << 40);
  EXPECT_EQ(view.text(), "bfloat16[1048576, 1048576] on meta");
  EXPECT_EQ(view.slice(10, 20).data(), nullptr);
  EXPECT_EQ(view.slice(10, 20).text(), "bfloat16[20] on meta");
}

TEST(TensorViewTest, ANegativeSizeIsKeptAndRefused) {
  float value = 0;
  const TensorView view(&value, {2, -3});
  EXPECT_THAT(view.sizes(), ElementsAre(2, -3));
  EXPECT_EQ(view.numel(), -1);
  EXPECT_EQ(view.bytes(), 0u);
  EXPECT_EQ(message(view.shape_status()), "shape [2, -3] has a negative size, -3");
}

TEST(TensorViewTest, ANegativeSizeIsRefusedBesideAZero) {
  EXPECT_EQ(TensorView::meta({0, -1}, DType::kInt8).numel(), -1);
}

TEST(TensorViewTest, MoreBytesThanInt64IsRefused) {
  constexpr int64_t kHuge = int64_t{1} << 32;
  EXPECT_EQ(message(TensorView::meta({kHuge, kHuge}, DType::kInt8).shape_status()),
            "shape [4294967296, 4294967296] of int8 has more bytes than int64 counts");
  // The elements can be counted, their bytes cannot.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(TensorView::meta({kMost}, DType::kInt8).numel(), kMost);
  EXPECT_EQ(TensorView::meta({kMost / 8}, DType::kFloat64).numel(), kMost / 8);
  EXPECT_EQ(TensorView::meta({kMost / 8 + 1}, DType::kFloat64).numel(), -1);
}

TEST(TensorViewTest, AZeroMakesAnyOtherSizesHarmless) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  const TensorView view = TensorView::meta({kHuge, kHuge, 0, kHuge}, DType::kFloat64);
  EXPECT_EQ(view.numel(), 0);
  EXPECT_TRUE(view.shape_status().ok());
}

TEST(TensorViewTest, StridesOfARowMajorTensorAreContiguous) {
  std::vector<float> values(24);
  EXPECT_TRUE(TensorView(values.data(), DType::kFloat32, {2, 3, 4}, {12, 4, 1}).is_contiguous());
  EXPECT_TRUE(TensorView(values.data(), DType::kFloat32, {2, 1, 4}, {4, 77, 1}).is_contiguous())
      << "size 1 has no step";
  EXPECT_TRUE(TensorView(values.data(), DType::kFloat32, {1}, {5}).is_contiguous());
  EXPECT_TRUE(TensorView(values.data(), DType::kFloat32, {0, 3}, {1, 2}).is_contiguous()) << "no elements to step to";
}

TEST(TensorViewTest, OtherStridesAreKept) {
  std::vector<float> values(6);
  const TensorView transposed(values.data(), DType::kFloat32, {2, 3}, {1, 2});
  EXPECT_FALSE(transposed.is_contiguous());
  EXPECT_THAT(transposed.strides(), ElementsAre(1, 2));
  EXPECT_EQ(transposed.text(), "float32[2, 3] with strides [1, 2]");
  EXPECT_FALSE(TensorView(values.data(), DType::kFloat32, {3}, {2}).is_contiguous());
  EXPECT_FALSE(TensorView(values.data(), DType::kFloat32, {3}, {0}).is_contiguous());
}

TEST(TensorViewTest, StridesOfAnotherRankAreRefused) {
  std::vector<float> values(6);
  const TensorView view(values.data(), DType::kFloat32, {2, 3}, {1});
  EXPECT_EQ(message(view.shape_status()), "shape [2, 3] has 2 dimensions and strides [1] have 1");
}

TEST(TensorViewTest, ASliceIsAPartOfTheMemory) {
  std::vector<int16_t> values(10);
  const TensorView part = TensorView(values.data(), {2, 5}).slice(3, 4);
  EXPECT_EQ(part.data(), values.data() + 3);
  EXPECT_EQ(part.text(), "int16[4]");
}

TEST(TensorViewTest, CopiesOfManyDimensionsAreApart) {
  std::vector<float> values(1);
  TensorView view(values.data(), {1, 1, 1, 1, 1, 1, 1});
  const TensorView copy = view;
  view = TensorView(values);
  EXPECT_EQ(copy.sizes().size(), 7u);
  EXPECT_THAT(view.sizes(), ElementsAre(1));
}

TEST(ConstTensorViewTest, ReadOnlyMemoryIsAnInput) {
  const std::vector<double> values = {1, 2};
  const std::array<uint8_t, 3> bytes = {};
  const int32_t number = 5;
  const auto text_of = [](const ConstTensorView& input) { return input.view().text(); };
  EXPECT_EQ(text_of(values), "float64[2]");
  EXPECT_EQ(text_of(std::span<const double>(values)), "float64[2]");
  EXPECT_EQ(text_of(bytes), "uint8[3]");
  EXPECT_EQ(text_of({bytes.data(), {3, 1}}), "uint8[3, 1]");
  EXPECT_EQ(text_of(ConstTensorView::scalar(number)), "int32[1]");
  EXPECT_EQ(ConstTensorView(values).view().data(), values.data());
}

TEST(ConstTensorViewTest, WhatIsAnOutputIsAnInput) {
  std::vector<float> values(2);
  const TensorView view(values);
  const auto text_of = [](const ConstTensorView& input) { return input.view().text(); };
  EXPECT_EQ(text_of(view), "float32[2]");
  EXPECT_EQ(text_of(values), "float32[2]");
  EXPECT_EQ(text_of(std::span(values)), "float32[2]");
}

// Outputs are memory that can be written, and a temporary's memory would be gone when the call runs.
static_assert(std::is_constructible_v<TensorView, std::vector<float>&>);
static_assert(!std::is_constructible_v<TensorView, const std::vector<float>&>);
static_assert(!std::is_constructible_v<TensorView, std::vector<float>>);
static_assert(!std::is_constructible_v<TensorView, std::span<const float>>);
static_assert(std::is_constructible_v<ConstTensorView, const std::vector<float>&>);
static_assert(!std::is_constructible_v<ConstTensorView, std::vector<float>>);
static_assert(!std::is_constructible_v<ConstTensorView, std::array<float, 2>>);
static_assert(!std::is_constructible_v<TensorView, std::vector<std::string>&>);

TEST(TensorListTest, OneViewAndManyReadAlike) {
  std::vector<float> a(1);
  std::vector<float> b(2);
  EXPECT_TRUE(TensorList().empty());
  for (const TensorList& one : {TensorList(TensorView(a)), TensorList(std::vector<TensorView>{a})}) {
    EXPECT_EQ(one.size(), 1);
    EXPECT_EQ(one[0].data(), a.data());
    EXPECT_EQ(one.begin()->data(), a.data());
    EXPECT_EQ(one.end() - one.begin(), 1);
  }
  const TensorList two(std::vector<TensorView>{a, b});
  EXPECT_EQ(two.size(), 2);
  EXPECT_EQ(two[1].data(), b.data());
  EXPECT_EQ(two.end() - two.begin(), 2);
}

class DLPackTest : public ::testing::Test {
 protected:
  dlpack::DLTensor tensor_{.data = memory_,
                           .device = {dlpack::kDLCPU, 0},
                           .ndim = 2,
                           .dtype = {dlpack::kDLFloat, 32, 1},
                           .shape = shape_,
                           .strides = nullptr,
                           .byte_offset = 0};
  std::string error() const { return message(dlpack::view(tensor_).status()); }

  float memory_[16] = {};
  int64_t shape_[2] = {2, 3};
  int64_t strides_[2] = {1, 2};
};

TEST_F(DLPackTest, AContiguousTensorIsAView) {
  tensor_.byte_offset = 8;
  const absl::StatusOr<TensorView> view = dlpack::view(tensor_);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->data(), memory_ + 2);
  EXPECT_EQ(view->text(), "float32[2, 3]");
}

TEST_F(DLPackTest, StridesAreTakenOver) {
  tensor_.strides = strides_;
  EXPECT_EQ(dlpack::view(tensor_)->text(), "float32[2, 3] with strides [1, 2]");
}

TEST_F(DLPackTest, NoDimensionsAreOneElement) {
  tensor_.ndim = 0;
  tensor_.shape = nullptr;
  EXPECT_EQ(dlpack::view(tensor_)->text(), "float32[]");
}

TEST_F(DLPackTest, EveryDTypeIsKnown) {
  const auto dtype_of = [this](uint8_t code, uint8_t bits) {
    tensor_.dtype = {code, bits, 1};
    return std::string(dtype_name(dlpack::view(tensor_)->dtype()));
  };
  EXPECT_EQ(dtype_of(dlpack::kDLFloat, 16), "float16");
  EXPECT_EQ(dtype_of(dlpack::kDLBfloat, 16), "bfloat16");
  EXPECT_EQ(dtype_of(dlpack::kDLFloat, 64), "float64");
  EXPECT_EQ(dtype_of(dlpack::kDLInt, 8), "int8");
  EXPECT_EQ(dtype_of(dlpack::kDLUInt, 8), "uint8");
  EXPECT_EQ(dtype_of(dlpack::kDLInt, 16), "int16");
  EXPECT_EQ(dtype_of(dlpack::kDLInt, 32), "int32");
  EXPECT_EQ(dtype_of(dlpack::kDLInt, 64), "int64");
  EXPECT_EQ(dtype_of(dlpack::kDLBool, 8), "bool");
  EXPECT_EQ(dtype_of(dlpack::kDLComplex, 64), "complex64");
  EXPECT_EQ(dtype_of(dlpack::kDLComplex, 128), "complex128");
  EXPECT_EQ(dtype_of(dlpack::kDLFloat8_e4m3fn, 8), "float8_e4m3fn");
  EXPECT_EQ(dtype_of(dlpack::kDLFloat8_e5m2, 8), "float8_e5m2");
}

TEST_F(DLPackTest, DevicesAreHostAndCuda) {
  const auto device_of = [this](int32_t type, int32_t id) {
    tensor_.device = {type, id};
    return dlpack::view(tensor_)->device().name();
  };
  EXPECT_EQ(device_of(dlpack::kDLCPU, 0), "cpu");
  EXPECT_EQ(device_of(dlpack::kDLCUDAHost, 0), "cpu");
  EXPECT_EQ(device_of(dlpack::kDLCUDA, 3), "cuda:3");
  EXPECT_EQ(device_of(dlpack::kDLCUDAManaged, 0), "cuda:0");
}

TEST_F(DLPackTest, UnknownElementsAreNamed) {
  tensor_.dtype = {dlpack::kDLUInt, 16, 1};
  EXPECT_EQ(error(), "DLPack tensor: elements are uint16, which is no DType");
  tensor_.dtype = {17, 4, 1};
  EXPECT_EQ(error(), "DLPack tensor: elements are type code 17 of 4 bits, which is no DType");
  tensor_.dtype = {dlpack::kDLFloat, 32, 4};
  EXPECT_EQ(error(), "DLPack tensor: elements are vectors of 4 lanes, want 1");
}

TEST_F(DLPackTest, OtherDevicesAreNamed) {
  tensor_.device = {10, 0};
  EXPECT_EQ(error(), "DLPack tensor: device type 10, want CPU (1, 3) or CUDA (2, 13)");
  tensor_.device = {dlpack::kDLCUDA, 128};
  EXPECT_EQ(error(), "DLPack tensor: CUDA device 128, want 0 to 127");
}

TEST_F(DLPackTest, BrokenShapesAreNamed) {
  shape_[1] = -3;
  EXPECT_EQ(error(), "DLPack tensor: shape [2, -3] has a negative size, -3");
  tensor_.ndim = -1;
  EXPECT_EQ(error(), "DLPack tensor: ndim is -1");
  tensor_.ndim = 2;
  tensor_.shape = nullptr;
  EXPECT_EQ(error(), "DLPack tensor: shape is null with ndim 2");
}

TEST_F(DLPackTest, NullIsDataOfAnEmptyTensorOnly) {
  tensor_.data = nullptr;
  EXPECT_EQ(error(), "DLPack tensor: data is null with shape [2, 3]");
  shape_[0] = 0;
  EXPECT_EQ(dlpack::view(tensor_)->text(), "float32[0, 3]");
}

// As DLPack's own header declares it.
struct ForeignDevice {
  enum Type { kCpu = 1 } device_type;
  int32_t device_id;
};
struct ForeignTensor {
  void* data;
  ForeignDevice device;
  int32_t ndim;
  dlpack::DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

TEST_F(DLPackTest, TheOriginalHeadersStructIsTaken) {
  const ForeignTensor foreign{memory_, {ForeignDevice::kCpu, 0}, 2, {dlpack::kDLFloat, 32, 1}, shape_, nullptr, 0};
  const absl::StatusOr<TensorView> view = dlpack::view(foreign);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->text(), "float32[2, 3]");
}

}  // namespace
}  // namespace rankloom
