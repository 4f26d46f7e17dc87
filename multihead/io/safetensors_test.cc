#include "multihead/io/safetensors.h"

#include <sys/stat.h>

#include <cstring>
#include <fstream>

#include "multihead/core/memory/memory.h"
#include "multihead/core/text/json.h"
#include "multihead/io/json.h"
#include "multihead/testing/files.h"
#include "multihead/testing/sanitizers.h"

namespace multihead::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

// Written by tools/goldens/safetensors_files.py with the reference implementation.
const std::string kGoldens = std::string(MULTIHEAD_SOURCE_DIR) + "/tests/data/safetensors/";

TensorMap all_dtypes() {
  const Tensor floats = Tensor::of<double>({2, 3}, {0.0, -0.0, 1.0, -2.5, 3.140625, 65504.0});
  Tensor thirds = floats.clone();
  for (double& value : thirds.span<double>()) value /= 3;
  return {
      {"f32", floats.to(Dtype::f32)},
      {"f64", thirds},
      {"f16", floats.to(Dtype::f16)},
      {"bf16", floats.to(Dtype::bf16)},
      {"i64", Tensor::of<int64_t>({4, 1}, {INT64_MIN, INT64_MAX, 0, 7})},
      {"i32", Tensor::of<int32_t>({3}, {INT32_MIN, INT32_MAX, 5})},
      {"bool", Tensor::of<bool>({5}, {true, false, true, true, false})},
      {"scalar", Tensor::of<float>({}, {1.5f})},
      {"empty", Tensor::empty({3, 0, 2})},
      {"layer.0.größe", Tensor::arange(7, Dtype::f32)},
  };
}

void expect_same_bits(const Tensor& a, const Tensor& b, const std::string& name) {
  ASSERT_EQ(a.dtype(), b.dtype()) << name;
  ASSERT_EQ(a.shape(), b.shape()) << name;
  EXPECT_TRUE(a.numel() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0) << name;
}

void expect_same_bits(const TensorMap& a, const TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    expect_same_bits(tensor, b.at(name), name);
  }
}

TEST(SafetensorsTest, ReadsTheReferenceFile) {
  expect_same_bits(load_safetensors(kGoldens + "all_dtypes.safetensors"), all_dtypes());
  EXPECT_THAT(load_safetensors(kGoldens + "empty.safetensors"), IsEmpty());
}

TEST(SafetensorsTest, MoreThanMemoryHasLeft) {
  constexpr int64_t kRows = 250'000'000;  // two tensors of 4 TB each, all holes
  const std::string half = concat("\"shape\":[", kRows, ",4096],\"data_offsets\":[");
  const std::string header =
      concat("{\"a\":{\"dtype\":\"F32\",", half, "0,", kRows * 16384, "]},\"b\":{\"dtype\":\"F32\",", half,
             kRows * 16384, ",", kRows * 32768, "]}}");
  const uint64_t size = header.size();
  const fs::path path = fs::path(::testing::TempDir()) / "sparse.safetensors";
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(&size), 8) << header;
  std::error_code error;
  fs::resize_file(path, 8 + size + kRows * 32768, error);
  if (!error) {
    EXPECT_THAT([&] { load_safetensors(path.string()); },
                ::testing::ThrowsMessage<MemoryError>(HasSubstr("loading its tensors needs 8.2 TB")));
  }
  fs::remove(path);
  if (error) GTEST_SKIP() << "no file of 8 TB here: " << error.message();
}

TEST(SafetensorsTest, WritesTheBytesOfTheReference) {
  const TemporaryFolder folder;
  save_safetensors(folder / "x.safetensors", all_dtypes());
  EXPECT_EQ(read_file(folder / "x.safetensors"), read_file(kGoldens + "all_dtypes.safetensors"));
}

TEST(SafetensorsTest, TheReferenceReadsWhatIsWritten) {
  const char* python = std::getenv("MULTIHEAD_PYTHON");
  const std::string interpreter = python == nullptr ? "python3" : python;
  if (std::system((interpreter + " -c 'import safetensors, torch' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "no Python with safetensors and torch; MULTIHEAD_PYTHON may name one";
  const TemporaryFolder folder;
  save_safetensors(folder / "x.safetensors", all_dtypes());
  const std::string script = std::string(MULTIHEAD_SOURCE_DIR) + "/tools/goldens/safetensors_files.py";
  EXPECT_EQ(std::system((interpreter + " " + script + " check " + (folder / "x.safetensors")).c_str()), 0);
}

TEST(SafetensorsTest, ListsWithoutLoadingAndLoadsByName) {
  const SafetensorsFile file(kGoldens + "all_dtypes.safetensors");
  EXPECT_EQ(file.names().size(), 10u);
  EXPECT_TRUE(file.contains("bf16"));
  EXPECT_FALSE(file.contains("bf17"));
  EXPECT_EQ(file.info("bf16").dtype, Dtype::bf16);
  EXPECT_THAT(file.info("bf16").shape, ElementsAre(2, 3));
  EXPECT_EQ(file.info("empty").numel(), 0);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.load("i32").to_vector<int32_t>()[1], INT32_MAX);
  EXPECT_THAT(message_of<ValueError>([&] { file.load("x\n"); }), HasSubstr("no tensor \"x\\n\""));
}

TEST(SafetensorsTest, ForeignDtypesAreListedAndNotLoaded) {
  const SafetensorsFile file(kGoldens + "foreign_dtypes.safetensors");
  EXPECT_THAT(file.names(), ElementsAre("f8", "i16", "ours", "u8"));
  EXPECT_EQ(file.info("u8").dtype, std::nullopt);
  EXPECT_EQ(file.info("u8").dtype_name, "U8");
  EXPECT_EQ(file.load("ours").at({1}), 1);
  EXPECT_THAT(message_of<FormatError>([&] { file.load("f8"); }),
              HasSubstr("tensor \"f8\" has dtype \"F8_E4M3\", which is not supported"));
}

TEST(SafetensorsTest, StridedTensorsAreWrittenRowMajor) {
  const TemporaryFolder folder;
  const Tensor rows = Tensor::of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  save_safetensors(folder / "x", {{"t", rows.as_strided({3, 2}, {1, 3})}});
  EXPECT_EQ(load_safetensors(folder / "x").at("t").to_vector<float>(),
            (std::vector<float>{1, 4, 2, 5, 3, 6}));
}

TEST(SafetensorsTest, TheSameTensorsGiveTheSameBytesAlignedToTheirElements) {
  const TemporaryFolder folder;
  TensorMap tensors;
  for (int i = 0; i < 7; ++i) {
    tensors["b" + std::to_string(i)] = Tensor::ones({2 * i + 1}, Dtype::boolean);
    tensors["a" + std::to_string(i)] = Tensor::ones({i}, Dtype::f64);
    tensors["c" + std::to_string(i)] = Tensor::ones({i, 3}, Dtype::f16);
  }
  const Metadata metadata = {{"step", "7"}, {"format", "pt"}, {"a", "ü\n"}};
  save_safetensors(folder / "x", tensors, metadata);
  save_safetensors(folder / "y", tensors, metadata);
  EXPECT_EQ(read_file(folder / "x"), read_file(folder / "y"));
  const SafetensorsFile file(folder / "x");
  EXPECT_EQ(file.metadata(), metadata);
  for (const std::string& name : file.names())
    EXPECT_EQ(file.info(name).begin % size_of(*file.info(name).dtype), 0u) << name;
  EXPECT_EQ((fs::file_size(folder / "x") - file.data_bytes()) % 8, 0u);
  expect_same_bits(file.load_all(), tensors);
}

TEST(SafetensorsTest, SavingOverTheFileItWasLoadedFromWorks) {
  const TemporaryFolder folder;
  save_safetensors(folder / "x", {{"t", Tensor::full({1009}, 1)}});
  const SafetensorsFile file(folder / "x");
  TensorMap tensors = file.load_all();
  tensors["t"].fill(2);
  save_safetensors(folder / "x", tensors);
  EXPECT_EQ(file.load("t").at({1008}), 1) << "the open file keeps its bytes";
  EXPECT_EQ(load_safetensors(folder / "x").at("t").at({1008}), 2);
}

TEST(SafetensorsTest, WhatCannotBeWrittenIsRefusedAndNothingIsLeft) {
  const TemporaryFolder folder;
  const Tensor one = Tensor::ones({1});
  for (const char* name : {"__metadata__", "a\nb", "\x7f", "\xff", "\xc2\x85"})
    EXPECT_THROW(save_safetensors(folder / "x", {{name, one}}), ValueError) << name;
  EXPECT_THROW(save_safetensors(folder / "x", {{std::string("a\0b", 3), one}}), ValueError);
  EXPECT_THROW(save_safetensors(folder / "x", {{"t", Tensor()}}), ValueError);
  EXPECT_THROW(save_safetensors(folder / "x", {{"t", one}}, {{"k", "\x1b"}}), ValueError);
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

TEST(SafetensorsTest, AHeaderReadersWouldRefuseIsNotWritten) {
  if (testing::kSanitized) GTEST_SKIP() << "the header has 100 MB";
  const TemporaryFolder folder;
  const Metadata metadata = {{"notes", std::string(100'000'000, 'x')}};
  EXPECT_THAT(message_of<ValueError>([&] { save_safetensors(folder / "x", {}, metadata); }),
              HasSubstr("readers refuse more than 100000000"));
}

class ShardsTest : public ::testing::Test {
 protected:
  ShardsTest() { fs::copy(kGoldens + "sharded", folder_.path(), fs::copy_options::recursive); }

  std::string index() const { return folder_ / "model.safetensors.index.json"; }
  void change_index(const std::function<void(Json&)>& change) {
    Json json = load_json(index());
    change(json);
    save_json(index(), json);
  }
  std::string error() const {
    return message_of<FormatError>([&] { load_safetensors(folder_.path()); });
  }

  TemporaryFolder folder_;
  const std::string first_ = "model-00001-of-00002.safetensors", second_ = "model-00002-of-00002.safetensors";
};

TEST_F(ShardsTest, AreOneFileToTheReader) {
  for (const std::string& path : {folder_.path(), index()}) {
    const SafetensorsFile file(path);
    EXPECT_THAT(file.names(), ElementsAre("a", "b", "c"));
    EXPECT_EQ(file.load("a").at({1, 2}), 5);
    EXPECT_EQ(file.load("b").at({4}), 1);
    EXPECT_EQ(file.load("c").at({2}), 2);
    EXPECT_EQ(file.data_bytes(), 24u + 24 + 20);
  }
}

TEST_F(ShardsTest, ASingleFileComesFirst) {
  save_safetensors(folder_ / "model.safetensors", {{"whole", Tensor::ones({1})}});
  EXPECT_THAT(SafetensorsFile(folder_.path()).names(), ElementsAre("whole"));
}

TEST_F(ShardsTest, NamesThatLeaveTheFolderAreRefused) {
  save_safetensors(folder_ / "../multihead-outside.safetensors", {{"b", Tensor::ones({5})}});
  for (const std::string& name :
       {std::string("../multihead-outside.safetensors"), folder_ / second_, "./" + second_, std::string(".."),
        std::string(""), std::string("a\0b", 3), std::string("sub\\x")}) {
    change_index([&](Json& json) { json["weight_map"]["b"] = name; });
    EXPECT_THAT(error(), HasSubstr("is not a plain file name")) << name;
  }
  fs::remove(folder_ / "../multihead-outside.safetensors");
}

TEST_F(ShardsTest, LinksOutOfTheFolderAreRefused) {
  const TemporaryFolder outside;
  fs::rename(folder_ / second_, outside / second_);
  fs::create_symlink(outside / second_, folder_ / second_);
  EXPECT_THAT(error(), HasSubstr("a link to a file outside its folder"));
  fs::remove(folder_ / second_);
  fs::rename(outside / second_, folder_ / "inside");
  fs::create_symlink("inside", folder_ / second_);
  EXPECT_EQ(load_safetensors(folder_.path()).size(), 3u);
}

TEST_F(ShardsTest, SnapshotsOfTheCacheMayLinkToItsBlobs) {
  const TemporaryFolder cache;
  const std::string snapshot = cache / "models--o--n/snapshots/0123abcd",
                    blobs = cache / "models--o--n/blobs";
  fs::create_directories(snapshot);
  fs::create_directories(blobs);
  int number = 0;
  for (const std::string& name : names_in(folder_.path())) {
    const std::string blob = "blob" + std::to_string(number++);
    fs::copy(folder_ / name, blobs + "/" + blob);
    fs::create_symlink("../../blobs/" + blob, snapshot + "/" + name);
  }
  EXPECT_EQ(load_safetensors(snapshot).size(), 3u);
}

TEST_F(ShardsTest, PipesFoldersAndMissingShardsAreIoErrors) {
  fs::remove(folder_ / second_);
  EXPECT_THAT(message_of<IoError>([&] { load_safetensors(folder_.path()); }),
              HasSubstr("shard \"" + second_ + "\": No such file"));
  ASSERT_EQ(::mkfifo((folder_ / second_).c_str(), 0600), 0);
  EXPECT_THAT(message_of<IoError>([&] { load_safetensors(folder_.path()); }),
              HasSubstr("not a regular file"));
  fs::remove(folder_ / second_);
  fs::create_directory(folder_ / second_);
  EXPECT_THAT(message_of<IoError>([&] { load_safetensors(folder_.path()); }), HasSubstr("a folder"));
  EXPECT_THAT(message_of<IoError>([&] { load_safetensors(folder_ / "none"); }), HasSubstr("No such file"));
}

TEST_F(ShardsTest, IndexAndShardsMustAgree) {
  const std::string good = read_file(index());
  const auto broken = [&](const std::function<void(Json&)>& change) {
    change_index(change);
    const std::string message = error();
    write_file_atomically(index(), good);
    return message;
  };
  EXPECT_THAT(broken([&](Json& json) { json["weight_map"]["b"] = first_; }),
              HasSubstr("tensor \"b\" is not in shard \"" + first_ + "\""));
  EXPECT_THAT(broken([&](Json& json) { json["weight_map"]["d"] = first_; }),
              HasSubstr("tensor \"d\" is not in shard"));
  EXPECT_THAT(broken([&](Json& json) { json["weight_map"].erase("c"); }),
              HasSubstr("tensor \"c\" of shard \"" + (folder_ / first_) + "\" is not listed"));
  EXPECT_THAT(broken([&](Json& json) { json["metadata"]["total_size"] = 69; }),
              HasSubstr("total_size is 69, the shards hold 68 bytes"));
  EXPECT_THAT(broken([&](Json& json) { json["metadata"]["total_size"] = "68"; }),
              HasSubstr("must be a number"));
  EXPECT_THAT(broken([&](Json& json) { json["weight_map"]["b"] = 1; }),
              HasSubstr("shard of \"b\" must be a string, got an integer"));
  EXPECT_THAT(broken([&](Json& json) { json.erase("weight_map"); }), HasSubstr("no object \"weight_map\""));
  EXPECT_THAT(broken([&](Json& json) { json = Json::array(); }), HasSubstr("no object \"weight_map\""));
  save_safetensors(folder_ / second_, {{"a", Tensor::ones({1})}, {"b", Tensor::ones({5})}});
  EXPECT_THAT(error(), HasSubstr("tensor \"a\" is in another shard too"));
}

}  // namespace
}  // namespace multihead::io
