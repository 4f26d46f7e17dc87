#include "multihead/io/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "multihead/core/error.h"
#include "multihead/testing/files.h"

namespace multihead::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file's bytes, piece by piece.
struct Bytes {
  std::string text;

  template <class T>
  Bytes& number(T value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& string(const std::string& value) {
    number<uint64_t>(value.size()).text += value;
    return *this;
  }
  Bytes& key(const std::string& name, uint32_t type) { return string(name).number(type); }
  Bytes& tensor(const std::string& name, const std::vector<uint64_t>& sizes, uint32_t type, uint64_t offset) {
    string(name).number(static_cast<uint32_t>(sizes.size()));
    for (const uint64_t size : sizes) number(size);
    return number(type).number(offset);
  }
  Bytes& pad(size_t step) {
    text.resize((text.size() + step - 1) / step * step);
    return *this;
  }
};

Bytes header(uint64_t tensors, uint64_t values) {
  Bytes bytes;
  bytes.text = "GGUF";
  return bytes.number(uint32_t{3}).number(tensors).number(values);
}

// Two tensors, one value of most kinds.
std::string sample() {
  Bytes bytes = header(2, 6);
  bytes.key("general.architecture", 8).string("llama");
  bytes.key("size", 4).number(uint32_t{7});
  bytes.key("eps", 6).number(0.5f);
  bytes.key("flag", 7).number(uint8_t{1});
  bytes.key("tokens", 9).number(uint32_t{8}).number(uint64_t{3}).string("a").string("").string("bc");
  bytes.key("types", 9).number(uint32_t{5}).number(uint64_t{2}).number(int32_t{-1}).number(int32_t{4});
  bytes.tensor("plain", {3, 2}, 0, 0).tensor("eight", {32}, 8, 32).pad(32);
  for (int i = 0; i < 6; ++i) bytes.number(static_cast<float>(i));
  bytes.pad(32).number(uint16_t{0x3800});  // .5
  for (int i = 0; i < 32; ++i) bytes.number(static_cast<int8_t>(i - 16));
  return bytes.text;
}

class GgufTest : public ::testing::Test {
 protected:
  std::string write(const std::string& bytes) const {
    const std::string path = folder_ / "model.gguf";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string error_of(const std::string& bytes) const {
    try {
      GgufFile{write(bytes)};
    } catch (const FormatError& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(GgufTest, ReadsMetadataAndTensors) {
  const GgufFile file(write(sample()));
  EXPECT_EQ(file.string("general.architecture"), "llama");
  EXPECT_EQ(file.integer("size"), 7);
  EXPECT_EQ(file.number("size"), 7);
  EXPECT_EQ(file.number("eps"), 0.5);
  EXPECT_TRUE(file.boolean("flag"));
  EXPECT_THAT(file.strings("tokens"), ElementsAre("a", "", "bc"));
  EXPECT_THAT(file.integers("types"), ElementsAre(-1, 4));
  const Tensor plain = file.load("plain");
  EXPECT_EQ(plain.shape(), Shape({2, 3}));  // the file's order of sizes is the reverse
  EXPECT_THAT(plain.to_vector<float>(), ElementsAre(0, 1, 2, 3, 4, 5));
  const std::vector<float> eight = file.load("eight").to_vector<float>();
  for (size_t i = 0; i < eight.size(); ++i) EXPECT_EQ(eight[i], (static_cast<float>(i) - 16) / 2);
}

TEST_F(GgufTest, SaysWhatIsWrong) {
  EXPECT_THAT(error_of("no model, but a text of more than 24 bytes"), HasSubstr("not a GGUF file"));
  std::string bytes = sample();
  bytes[4] = 1;
  EXPECT_THAT(error_of(bytes), HasSubstr("version must be 2 or 3 (little endian), got 1"));
  EXPECT_THAT(error_of(sample().substr(0, sample().size() - 1)),
              HasSubstr("\"eight\" needs 34 bytes, but 33 are left"));
  EXPECT_THAT(error_of(header(0, 1).key("x", 9).number(uint32_t{9}).number(uint64_t{1}).text),
              HasSubstr("arrays of arrays"));
  EXPECT_THAT(error_of(header(0, 1).key("x", 9).number(uint32_t{0}).number(~uint64_t{0}).text),
              HasSubstr("left of the file"));
  EXPECT_THAT(error_of(header(1, 0).tensor("t", {31}, 8, 0).text),
              HasSubstr("not whole blocks of 32 (Q8_0)"));
  EXPECT_THAT(error_of(header(1, 0).tensor("t", {1}, 0, 8).text), HasSubstr("not aligned to 32"));
  EXPECT_THAT(error_of(header(1, 0).tensor("t", {uint64_t{1} << 62}, 0, 0).text), HasSubstr("too large"));
  Bytes twice = header(2, 0).tensor("a", {8}, 0, 0).tensor("b", {8}, 0, 0).pad(32);
  EXPECT_THAT(error_of(twice.text + std::string(32, '\0')), HasSubstr("overlap"));
  const GgufFile file(write(sample()));
  EXPECT_THROW(file.string("size"), FormatError);
  EXPECT_THROW(file.integer("tokens"), FormatError);
  EXPECT_THROW(file.integer("absent"), FormatError);
  EXPECT_THROW(file.load("absent"), ValueError);
}

TEST_F(GgufTest, NamesAnUnsupportedTypeWhenItIsLoaded) {
  const GgufFile file(write(header(1, 0).tensor("t", {256}, 16, 0).pad(32).text));
  EXPECT_THAT([&] { file.load("t"); }, ::testing::ThrowsMessage<FormatError>(HasSubstr("type 16")));
}

// Whatever the bytes, the file opens and loads or an error says why.
TEST_F(GgufTest, CutAndMutatedFiles) {
  const std::string good = sample();
  const auto survives = [&](const std::string& bytes) {
    try {
      const GgufFile file(write(bytes));
      for (const auto& [name, tensor] : file.tensors()) file.load(name);
      return true;
    } catch (const FormatError&) {
      return false;
    }
  };
  for (size_t size = 0; size < good.size(); ++size) EXPECT_FALSE(survives(good.substr(0, size))) << size;
  std::mt19937 random(1);
  int opened = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = good;
    for (int change = 0; change < 3; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    opened += survives(bytes);
  }
  EXPECT_GT(opened, 0);
  EXPECT_LT(opened, 3000);
}

// All block formats decode finite scales to finite numbers; values are compared with the package `gguf` in
// python/tests/test_gguf.py.
TEST(GgufTypesTest, EveryTypeFillsItsBlocks) {
  for (const BlockFormat& type : block_formats()) {
    std::vector<uint8_t> bytes(static_cast<size_t>(3 * type.bytes), 0x11);
    std::vector<float> numbers(static_cast<size_t>(3 * type.block), NAN);
    type.decode(bytes.data(), 3, numbers.data());
    for (const float x : numbers) EXPECT_TRUE(std::isfinite(x)) << type.name;
  }
}

TEST_F(GgufTest, IsKnownByItsBeginning) {
  EXPECT_TRUE(is_gguf_file("missing.gguf"));
  EXPECT_TRUE(is_gguf_file("missing.GGUF"));
  EXPECT_FALSE(is_gguf_file("missing"));
  const TemporaryFolder folder;
  std::ofstream(folder / "sha256-0a1b", std::ios::binary) << sample();
  std::ofstream(folder / "other", std::ios::binary) << "GGU";
  EXPECT_TRUE(is_gguf_file(folder / "sha256-0a1b"));
  EXPECT_FALSE(is_gguf_file(folder / "other"));
  EXPECT_FALSE(is_gguf_file(folder / "."));
}

TEST(GgufTypesTest, NumbersTooLargeForATypeAreRefused) {
  const std::string path = concat(::testing::TempDir(), "large_", ::getpid(), ".gguf");
  const auto write = [&](const char* type, float x) {
    write_gguf(path, {{}, {{"w", Tensor::full({2, 32}, x), &writable_gguf_type(type)}}});
  };
  for (const char* type : {"F16", "Q8_0", "Q4_0", "Q4_1"}) {
    EXPECT_THAT([&] { write(type, 1e8F); }, ThrowsMessage<ValueError>(HasSubstr("too large for"))) << type;
    EXPECT_FALSE(std::filesystem::exists(path)) << type;
    write(type, 6e4F);
    std::filesystem::remove(path);
  }
  write("BF16", 1e8F);
  std::filesystem::remove(path);
}

// Two parts with a tensor each.
class GgufPartsTest : public ::testing::Test {
 protected:
  std::string path(int number, int count = 2) const {
    return folder_ / concat("m-0000", number, "-of-0000", count, ".gguf");
  }
  void write(int number, int64_t no, int64_t count, const std::string& tensor) const {
    const Tensor x = Tensor::full({2}, static_cast<double>(number));
    write_gguf(path(number), {{{"split.no", no}, {"split.count", count}, {"split.tensors.count", 2}},
                              {{tensor, x, &writable_gguf_type("F32")}}});
  }
  std::string error_of(int number) const {
    try {
      GgufFile{path(number)};
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(GgufPartsTest, TheFirstStandsForAll) {
  write(1, 0, 2, "a"), write(2, 1, 2, "b");
  const GgufFile file(path(1));
  EXPECT_EQ(file.tensors().size(), 2U);
  EXPECT_THAT(file.load("a").to_vector<float>(), ElementsAre(1, 1));
  EXPECT_THAT(file.load("b").to_vector<float>(), ElementsAre(2, 2));
  EXPECT_THAT(error_of(2), HasSubstr("give the first"));
}

TEST_F(GgufPartsTest, PartsMustFit) {
  write(1, 0, 2, "a");
  EXPECT_THAT(error_of(1), HasSubstr("m-00002-of-00002.gguf"));
  write(2, 1, 2, "a");
  EXPECT_THAT(error_of(1), HasSubstr("in an earlier part too"));
  write(2, 0, 2, "b");
  EXPECT_THAT(error_of(1), HasSubstr("split.no must be 1"));
  write(2, 1, 3, "b");
  EXPECT_THAT(error_of(1), HasSubstr("split.count must be 2"));
  write(1, 0, 3, "a");
  EXPECT_THAT(error_of(1), HasSubstr("whose name must hold"));
}

}  // namespace
}  // namespace multihead::io
