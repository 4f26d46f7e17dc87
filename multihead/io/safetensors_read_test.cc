#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "multihead/core/error.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/io/safetensors.h"
#include "multihead/testing/files.h"

namespace multihead::io {
namespace {

// Distinct values that every floating type holds.
Tensor counted(const Shape& shape, Dtype dtype) {
  Tensor x = Tensor::empty(shape);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = static_cast<float>(i % 251 - 125);
  return x.to(dtype);
}

// Every dtype in the file, into every kind of target, on sizes around the ranges that threads take.
TEST(SafetensorsReadTest, TargetsGetWhatLoadGives) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.safetensors";
  TensorMap stored;
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16, Dtype::i32}) {
    std::vector<Shape> shapes = {{0, 3}, {1, 1}, {7, 13}, {13}, {2, 3, 5}};
    if (dtype == Dtype::f32 || dtype == Dtype::f16) shapes.insert(shapes.end(), {{1031, 1033}, {2, 300007}});
    for (const Shape& shape : shapes) stored.emplace(concat(dtype, shape), counted(shape, dtype));
  }
  stored.emplace("bool", Tensor::of<bool>({3}, {true, false, true}));
  save_safetensors(path, stored);
  const SafetensorsFile file(path);
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    for (const Dtype wanted : {Dtype::f32, Dtype::f64}) {
      std::vector<std::pair<std::string, Tensor>> targets;
      for (const auto& [name, tensor] : stored) {
        targets.emplace_back(name, Tensor::full(tensor.shape(), std::nan(""), wanted));
        if (tensor.rank() != 2) continue;
        const int64_t rows = tensor.size(0), columns = tensor.size(1);
        Tensor transposed = Tensor::full({columns, rows}, std::nan(""), wanted);
        targets.emplace_back(name, transposed.as_strided({rows, columns}, {1, rows}));
        Tensor wide = Tensor::full({rows, columns + 2}, std::nan(""), wanted);
        targets.emplace_back(name, wide.as_strided({rows, columns}, {columns + 2, 1}, 1));
      }
      file.read_into(targets);
      for (const auto& [name, target] : targets) {
        const Tensor expected = stored.at(name).to(wanted), got = target.contiguous();
        EXPECT_TRUE(got.numel() == 0 || std::memcmp(got.raw(), expected.raw(), got.bytes()) == 0)
            << name << " as " << wanted << " with strides " << target.strides();
      }
    }
  }
  set_num_threads(2);
}

TEST(SafetensorsReadTest, EveryHalfBecomesItsFloat) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.safetensors";
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    Tensor all = Tensor::empty({65536}, dtype);
    for (int i = 0; i < 65536; ++i) static_cast<uint16_t*>(all.raw())[i] = static_cast<uint16_t>(i);
    save_safetensors(path, {{"all", all}});
    const Tensor got = Tensor::empty({65536});
    SafetensorsFile(path).read_into({{"all", got}});
    const Tensor expected = all.to(Dtype::f32);
    for (int i = 0; i < 65536; ++i) {
      const float a = got.data<float>()[i], b = expected.data<float>()[i];
      EXPECT_TRUE(std::isnan(b) ? std::isnan(a) : std::memcmp(&a, &b, 4) == 0) << dtype << " " << i;
    }
  }
}

TEST(SafetensorsReadTest, RepeatedTensorsAreRecognised) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.safetensors";
  const Tensor a = counted({1031, 1033}, Dtype::f32);
  Tensor b = a.clone();
  b.data<float>()[1031 * 1033 - 1] += 1;
  save_safetensors(path, {{"a", a},
                          {"same", a},
                          {"other", b},
                          {"half", a.to(Dtype::f16)},
                          {"flat", a.as_strided({1031 * 1033}, {1})}});
  const SafetensorsFile file(path);
  EXPECT_TRUE(file.is_repeated("a", "same"));
  for (const char* name : {"other", "half", "flat"}) EXPECT_FALSE(file.is_repeated("a", name)) << name;
}

TEST(SafetensorsReadTest, WrongTargetsAreRefusedBeforeAnyIsFilled) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.safetensors";
  save_safetensors(path, {{"a", counted({2, 3}, Dtype::f32)}});
  const SafetensorsFile file(path);
  const Tensor good = Tensor::zeros({2, 3}), bad = Tensor::zeros({3, 2});
  EXPECT_THROW(file.read_into({{"a", good}, {"a", bad}}), ShapeError);
  EXPECT_THROW(file.read_into({{"a", good}, {"b", good}}), ValueError);
  EXPECT_EQ(good.to_vector<float>(), std::vector<float>(6, 0));
}

}  // namespace
}  // namespace multihead::io
