// Every public header compiles on its own, warns about nothing and pulls in no third party's header.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "multihead/core/threads/parallel.h"

namespace multihead {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = MULTIHEAD_SOURCE_DIR;

struct Result {
  int status;
  std::string output;
};

Result run(const std::string& command) {
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {-1, "cannot start " + command};
  std::string output;
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) output.append(buffer.data(), n);
  return {pclose(pipe), output};
}

std::string compiler(const std::string& flags, const std::string& header) {
  return "printf '#include \"" + header + "\"\\n' | " MULTIHEAD_CXX " -x c++ -std=c++20 " + flags + " -I '" +
         kRoot.string() + "' -";
}

// A source whose first line of includes is its header has compiled it alone (the presets without precompiled
// headers).
bool opens_its_source(const fs::path& header) {
  std::ifstream source(fs::path(header).replace_extension(".cc"));
  std::string line;
  while (std::getline(source, line) && line.rfind("#include", 0) != 0) continue;
  return line.find(fs::relative(header, kRoot).string()) != std::string::npos;
}

std::vector<std::string> public_headers() {
  std::vector<std::string> headers;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "multihead")) {
    const std::string path = fs::relative(entry.path(), kRoot).string();
    if (entry.path().extension() != ".h" || path.find("-inl.h") != std::string::npos) continue;
    if (path.find("/testing/") == std::string::npos && !opens_its_source(entry.path()))
      headers.push_back(path);
  }
  return headers;
}

TEST(HeadersTest, SlowEachCompilesAlone) {
  const std::vector<std::string> headers = public_headers();
  ASSERT_GT(headers.size(), 10u);
  std::vector<Result> results(headers.size());
  parallel_for(static_cast<int64_t>(headers.size()), [&](int64_t i, int) {
    const size_t at = static_cast<size_t>(i);
    results[at] = run(compiler("-fsyntax-only -Wall -Wextra -Werror", headers[at]));
  });
  for (size_t i = 0; i < headers.size(); ++i) {
    EXPECT_EQ(results[i].status, 0) << headers[i] << "\n" << results[i].output;
  }
}

TEST(HeadersTest, UmbrellaPullsNoThirdParty) {
  const Result made = run(compiler("-M", "multihead/multihead.h"));
  ASSERT_EQ(made.status, 0) << made.output;
  for (const char* other : {"/hwy/", "nlohmann", "utf8proc", "/fmt/", "gtest", "nanobind", "immintrin.h",
                            "/testing/", "-inl.h"}) {
    EXPECT_EQ(made.output.find(other), std::string::npos) << "multihead/multihead.h reaches " << other;
  }
  EXPECT_NE(made.output.find("multihead/core/tensor/tensor.h"), std::string::npos);
}

// About a second with GCC 12 at 3 GHz. The number of lines after the preprocessor does not depend on how busy
// the machine is: <functional>, <string> and <vector> together are 60,000.
TEST(HeadersTest, UmbrellaStaysSmall) {
  const Result made = run(compiler("-E -P", "multihead/multihead.h") + " | wc -l");
  ASSERT_EQ(made.status, 0) << made.output;
  EXPECT_LT(std::stol(made.output), 120000);
  EXPECT_GT(std::stol(made.output), 1000);
}

}  // namespace
}  // namespace multihead
