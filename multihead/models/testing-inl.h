// Helpers of tests of models: their data, tokens and comparisons.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "multihead/core/tensor/rng.h"
#include "multihead/io/json.h"
#include "multihead/ops/shape.h"
#include "multihead/testing/files.h"
#include "multihead/testing/tensors.h"

namespace multihead::models {

inline const std::filesystem::path kData = std::filesystem::path(MULTIHEAD_SOURCE_DIR) / "tests" / "data";

inline Json config_of(const std::string& fixture) {
  return io::load_json((kData / fixture / "config.json").string());
}

// A copy of one of these folders.
class FolderCopy : public TemporaryFolder {
 public:
  explicit FolderCopy(const std::filesystem::path& from) {
    std::filesystem::copy(from, path(), std::filesystem::copy_options::recursive);
  }
  std::string weights() const { return *this / "model.safetensors"; }
};

inline Tensor tokens(int64_t batch, int64_t length, uint64_t seed = 1, uint32_t vocabulary = 23) {
  const Tensor x = Tensor::empty({batch, length}, Dtype::i64);
  const RandomStream stream{seed, 0};
  for (int64_t i = 0; i < x.numel(); ++i)
    x.data<int64_t>()[i] = stream.bits(static_cast<uint64_t>(i)) % vocabulary;
  return x;
}

// Row b of x [B, T, ...], positions [begin, end).
inline std::vector<float> row(const Tensor& x, int64_t b, int64_t begin, int64_t end) {
  return slice(slice(x, 0, b, b + 1), 1, begin, end).to_vector<float>();
}

inline void expect_near(const Tensor& got, const Tensor& want, double bound, const std::string& what = "") {
  SCOPED_TRACE(what);
  testing::expect_near(got, want, bound);
}

// Some error that says `text`.
inline void refused(const std::function<void()>& call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "no error that says " << text;
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

}  // namespace multihead::models
