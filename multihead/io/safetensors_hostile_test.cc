// Every way a safetensors file can be wrong, its type of error and its words; and the oddities that are
// right.
#include <cstring>
#include <fstream>

#include "multihead/core/text/json.h"
#include "multihead/io/safetensors.h"
#include "multihead/testing/files.h"
#include "multihead/testing/processor_time.h"

namespace multihead::io {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string with_length(uint64_t length, std::string_view rest) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes.append(rest);
}

class HostileTest : public ::testing::Test {
 protected:
  std::string path() const { return folder_ / "x.safetensors"; }
  void put(std::string_view bytes) const {
    std::ofstream(path(), std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  void put(std::string_view header, size_t data_bytes) const {
    put(with_length(header.size(), std::string(header) + std::string(data_bytes, '\0')));
  }
  std::string error() const {
    return message_of<FormatError>([&] { load_safetensors(path()); });
  }
  std::string error(std::string_view header, size_t data_bytes = 0) const {
    put(header, data_bytes);
    return error();
  }
  // The error of a file with one tensor "t" of this description.
  std::string entry_error(std::string_view entry, size_t data_bytes = 0) const {
    return error(concat("{\"t\":", entry, "}"), data_bytes);
  }
  size_t accepted(std::string_view header, size_t data_bytes) const {
    put(header, data_bytes);
    return load_safetensors(path()).size();
  }

  TemporaryFolder folder_;
};

TEST_F(HostileTest, LengthField) {
  for (size_t bytes = 0; bytes < 8; ++bytes) {
    put(std::string(bytes, '\0'));
    EXPECT_THAT(error(), HasSubstr(concat(bytes, " bytes are too few")));
  }
  put(with_length(0, ""));
  EXPECT_THAT(error(), HasSubstr("header"));
  put(with_length(3, "{}"));
  EXPECT_THAT(error(), HasSubstr("header of 3 bytes, the file has 2"));
  for (const uint64_t length : {uint64_t{100'000'001}, uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 7}) {
    put(with_length(length, "{}"));
    EXPECT_THAT(error(), HasSubstr(concat("header of ", length, " bytes, the limit is 100000000")));
  }
  put(with_length(100'000'000, "{}"));
  EXPECT_THAT(error(), HasSubstr("header of 100000000 bytes, the file has 2"));
}

TEST_F(HostileTest, TheHeaderLimitCanBeLowered) {
  put("{          }", 0);
  EXPECT_THAT(message_of<FormatError>([&] { SafetensorsFile(path(), {.header_bytes = 11}); }),
              HasSubstr("header of 12 bytes, the limit is 11"));
  EXPECT_NO_THROW(SafetensorsFile(path(), {.header_bytes = 12}));
}

TEST_F(HostileTest, HeaderIsNotJson) {
  EXPECT_THAT(error("{\"\xff\":1}"), HasSubstr("header: column 3 (byte 2)"));
  EXPECT_THAT(error("{\"t\":"), HasSubstr("(byte 5)"));
  EXPECT_THAT(error("not json"), HasSubstr("header: column "));
  EXPECT_THAT(error("{}x"), HasSubstr("header"));
  EXPECT_THAT(error(std::string("{}\0", 3)), HasSubstr("NUL byte"));
  EXPECT_THAT(error("\xef\xbb\xbf{}"), HasSubstr("byte order mark"));
  EXPECT_THAT(error("[]"), HasSubstr("header must be an object, got an array"));
  EXPECT_THAT(error("null"), HasSubstr("header must be an object"));
}

TEST_F(HostileTest, Offsets) {
  const auto two = [&](const char* a, const char* b, size_t bytes) {
    return error(concat("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":", a,
                        "},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":", b, "}}"),
                 bytes);
  };
  EXPECT_THAT(two("[0,4]", "[5,9]", 9),
              HasSubstr("tensor \"b\" begins at byte 5, the one before it ends at 4 (gap)"));
  EXPECT_THAT(two("[0,4]", "[3,7]", 7),
              HasSubstr("tensor \"b\" begins at byte 3, the one before it ends at 4 (overlap)"));
  EXPECT_THAT(two("[0,4]", "[0,4]", 4), HasSubstr("(overlap)"));
  EXPECT_THAT(two("[4,8]", "[8,12]", 12),
              HasSubstr("tensor \"a\" begins at byte 4, the one before it ends at 0 (gap)"));
  EXPECT_THAT(two("[0,4]", "[4,8]", 9), HasSubstr("the tensors fill 8 bytes, the file has 9"));
  EXPECT_THAT(two("[0,4]", "[4,8]", 7), HasSubstr("the tensors fill 8 bytes, the file has 7"));
  const auto one = [&](const char* offsets) {
    return entry_error(concat("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":", offsets, "}"), 4);
  };
  EXPECT_THAT(one("[4,0]"), HasSubstr("tensor \"t\": data_offsets [4, 0] end before they begin"));
  for (const char* bad : {"[-4,0]", "[0,4.0]", "[0.5,4]", "[-0,4]", "[0,1e0]", "[\"0\",4]", "[null,4]",
                          "[0,18446744073709551616]", "[0,9223372036854775808]", "[true,4]"})
    EXPECT_THAT(one(bad), HasSubstr("tensor \"t\": data_offsets must hold integers >= 0")) << bad;
  EXPECT_THAT(one("[0,1e400]"), HasSubstr("number is too large"));
  EXPECT_THAT(one("[0]"), HasSubstr("must hold 2 integers, got 1"));
  EXPECT_THAT(one("[0,4,4]"), HasSubstr("must hold 2 integers, got 3"));
  EXPECT_THAT(one("4"), HasSubstr("expected an array, got an integer"));
  EXPECT_THAT(one("[0,9223372036854775807]"), HasSubstr("hold 9223372036854775807 bytes"));
}

TEST_F(HostileTest, ShapesAndSizes) {
  const auto shape = [&](const char* sizes) {
    return entry_error(concat("{\"dtype\":\"F32\",\"shape\":", sizes, ",\"data_offsets\":[0,0]}"));
  };
  EXPECT_THAT(shape("[2,3]"),
              HasSubstr("tensor \"t\": data_offsets [0, 0] hold 0 bytes, shape [2, 3] of F32 needs 24"));
  EXPECT_THAT(shape("[4294967296,4294967296]"), HasSubstr("overflows"));
  EXPECT_THAT(shape("[4611686018427387904,1]"), HasSubstr("overflows"));
  EXPECT_THAT(shape("[0,4294967296,4294967296]"), HasSubstr("overflows")) << "its strides would";
  EXPECT_THAT(shape("[9223372036854775807]"), HasSubstr("overflows"));
  for (const char* bad : {"[-1]", "[1.5]", "[1e0]", "[null]", "[[1]]", "[\"1\"]", "[9223372036854775808]"})
    EXPECT_THAT(shape(bad), HasSubstr("shape must hold integers >= 0")) << bad;
  EXPECT_THAT(shape("3"), HasSubstr("expected an array"));
  EXPECT_THAT(entry_error("{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}", 2),
              HasSubstr("do not fill whole bytes"));
  EXPECT_THAT(entry_error("{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}", 4),
              HasSubstr("has 9 axes, at most 8 are supported"));
}

TEST_F(HostileTest, Dtypes) {
  const auto dtype = [&](const char* name) {
    return entry_error(concat("{\"dtype\":", name, ",\"shape\":[1],\"data_offsets\":[0,4]}"), 4);
  };
  EXPECT_THAT(dtype("\"Q7\\n\""), HasSubstr("has dtype \"Q7\\n\", which is not supported"));
  EXPECT_THAT(dtype("\"f32\""), HasSubstr("\"f32\", which is not supported"));
  EXPECT_THAT(dtype("\"U32\""), HasSubstr("\"U32\", which is not supported"));
  EXPECT_THAT(dtype("7"), HasSubstr("expected a string, got an integer"));
  // The others stay within reach.
  put("{\"a\":{\"dtype\":\"Q7\",\"shape\":[1],\"data_offsets\":[0,3]},"
      "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[3,7]}}",
      7);
  const SafetensorsFile file(path());
  EXPECT_THAT(file.names(), ElementsAre("a", "b"));
  EXPECT_EQ(file.load("b").item(), 0);
}

TEST_F(HostileTest, Entries) {
  EXPECT_THAT(entry_error("7"), HasSubstr("tensor \"t\": expected an object, got an integer"));
  EXPECT_THAT(entry_error("{}"), HasSubstr("no member \"dtype\""));
  EXPECT_THAT(entry_error("{\"dtype\":\"F32\"}"), HasSubstr("no member \"shape\""));
  EXPECT_THAT(entry_error("{\"dtype\":\"F32\",\"shape\":[]}"), HasSubstr("no member \"data_offsets\""));
  EXPECT_THAT(entry_error("{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":1}"),
              HasSubstr("unknown key \"x\""));
  EXPECT_THAT(entry_error("{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}"),
              HasSubstr("duplicate key \"dtype\""));
  const std::string entry = "{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}";
  EXPECT_THAT(error("{\"t\":" + entry + ",\"t\":" + entry + "}"), HasSubstr("duplicate key \"t\""));
  EXPECT_THAT(error("{\"t\":" + entry + ",\"\\u0074\":" + entry + "}"), HasSubstr("duplicate key \"t\""));
}

TEST_F(HostileTest, ControlCharacters) {
  const std::string entry = "{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}";
  for (const char* name : {"a\\u0000b", "a\\nb", "\\u001b[31m", "\\u007f", "\\u009b"}) {
    const std::string message = error(concat("{\"", name, "\":", entry, "}"));
    EXPECT_THAT(message, HasSubstr("the name holds control characters")) << name;
    for (const char byte : message) EXPECT_TRUE(static_cast<unsigned char>(byte) >= 0x20) << name;
  }
}

TEST_F(HostileTest, MetadataEntry) {
  EXPECT_THAT(error("{\"__metadata__\":[]}"),
              HasSubstr("\"__metadata__\": expected an object, got an array"));
  EXPECT_THAT(error("{\"__metadata__\":{\"a\":1}}"), HasSubstr("\"a\" must be a string, got an integer"));
  EXPECT_THAT(error("{\"__metadata__\":{\"a\":null}}"), HasSubstr("must be a string, got null"));
  EXPECT_THAT(error("{\"__metadata__\":{\"a\":\"\\u0000\"}}"), HasSubstr("value of \"a\" holds control"));
  EXPECT_THAT(error("{\"__metadata__\":{\"a\\n\":\"\"}}"), HasSubstr("key \"a\\n\" holds control"));
  EXPECT_THAT(error("{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}"), HasSubstr("duplicate key \"a\""));
  EXPECT_THAT(error("{\"__metadata__\":{},\"__metadata__\":{}}"), HasSubstr("duplicate key"));
}

TEST_F(HostileTest, ABoolIsZeroOrOne) {
  const std::string header = "{\"t\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]}}";
  put(with_length(header.size(), header + std::string("\1\0\2", 3)));
  EXPECT_THAT(error(), HasSubstr("tensor \"t\" is BOOL, its element 2 is 2"));
}

TEST_F(HostileTest, AFileCutAnywhereIsRefused) {
  const std::string header = "{\"t\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}   ";
  const std::string good = with_length(header.size(), header + std::string(12, 'x'));
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    put(good.substr(0, bytes));
    EXPECT_THROW(SafetensorsFile file(path()), FormatError) << bytes;
  }
  put(good);
  EXPECT_EQ(load_safetensors(path()).size(), 1u);
  put(good + "x");
  EXPECT_THROW(SafetensorsFile file(path()), FormatError);
}

TEST_F(HostileTest, AFileThatShrinksAfterTheHeaderIsAnIoError) {
  put("{\"t\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", 12);
  const SafetensorsFile file(path());
  fs::resize_file(path(), fs::file_size(path()) - 5);
  EXPECT_THAT(message_of<IoError>([&] { file.load("t"); }), HasSubstr("it ends at byte"));
}

TEST_F(HostileTest, OdditiesThatAreRight) {
  EXPECT_EQ(accepted("{}", 0), 0u);
  EXPECT_EQ(accepted(" \n\t{ } \r", 0), 0u);
  EXPECT_EQ(accepted("{\"t\":{\"data_offsets\":[0,4],\"dtype\":\"F32\",\"shape\":[]}}", 4), 1u);
  EXPECT_EQ(accepted("{\"t\":{\"shape\":[3,0,5],\"dtype\":\"I64\",\"data_offsets\":[0,0]}}", 0), 1u);
  EXPECT_EQ(accepted("{\"\":{\"shape\":[1],\"dtype\":\"I64\",\"data_offsets\":[0,8]}}", 8), 1u);
  // Out of offset order, empty tensors between, f64 that does not lie on a multiple of eight.
  put("{\"b\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[3,11]},"
      "\"z\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[3,3]},"
      "\"a\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]}}",
      11);
  EXPECT_EQ(load_safetensors(path()).at("b").item(), 0);
}

// Ten megabytes of header in the worst shapes; the promise is a second on an idle machine.
TEST_F(HostileTest, TimeIsLinearAndMemoryBounded) {
  std::string same_range = "{";
  for (int i = 0; same_range.size() < 10'000'000; ++i)
    same_range +=
        concat(i > 0 ? "," : "", "\"", i, "\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}");
  same_range += "}";
  const double seconds = testing::processor_seconds([&] {
    put(same_range, 0);
    EXPECT_GT(SafetensorsFile(path()).names().size(), 150'000u);
    EXPECT_THAT(error("{\"t\":" + std::string(10'000'000, '[')), HasSubstr("nested deeper than 64"));
    EXPECT_EQ(accepted("{}" + std::string(10'000'000, ' '), 0), 0u);
    EXPECT_THAT(error("{\"" + std::string(10'000'000, 'n') + "\":0}"), HasSubstr("expected an object"));
    EXPECT_LT(error("{\"" + std::string(10'000'000, 'n') + "\":0}").size(), 500u);
  });
  EXPECT_LT(seconds, 20 * testing::kSlowdown);
}

}  // namespace
}  // namespace multihead::io
