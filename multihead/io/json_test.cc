#include "multihead/io/json.h"

#include "multihead/testing/files.h"

namespace multihead::io {
namespace {

TEST(JsonFileTest, RoundTripAndErrorsNameTheFile) {
  const TemporaryFolder folder;
  const Json json = Json::object({{"hidden_size", 128}, {"names", Json::array()}, {"rate", 3e-4f}});
  save_json(folder / "config.json", json);
  EXPECT_EQ(load_json(folder / "config.json"), json);
  EXPECT_EQ(read_file(folder / "config.json"),
            "{\n  \"hidden_size\": 128,\n  \"names\": [],\n  \"rate\": 0.0003\n}\n");
  write_file_atomically(folder / "bad.json", "{\"a\": 1,}");
  EXPECT_THAT(message_of<FormatError>([&] { load_json(folder / "bad.json"); }),
              testing::HasSubstr("bad.json: column "));
}

}  // namespace
}  // namespace multihead::io
