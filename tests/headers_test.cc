// Every public header compiles on its own, warns about nothing and pulls in no third party's header.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "multihead/core/threads/parallel.h"
#include "tests/testing-inl.h"

namespace multihead {
namespace {

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

// A source whose first line of includes is its header compiles it alone (SlowEachSourceCompilesAlone).
bool opens_its_source(const std::string& header) {
  std::ifstream source((kRoot / header).replace_extension(".cc"));
  std::string line;
  while (std::getline(source, line) && line.rfind("#include", 0) != 0) continue;
  return line.find(header) != std::string::npos;
}

// Files under multihead/ and cli/ that `wanted` holds for, relative to the root.
template <class F>
std::vector<std::string> files(F wanted) {
  std::vector<std::string> paths;
  for (const char* top : {"multihead", "cli"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top)) {
      const std::string path = fs::relative(entry.path(), kRoot).string();
      if (path.find("/testing/") == std::string::npos && wanted(path)) paths.push_back(path);
    }
  }
  return paths;
}

// The last two are what the build tells core/version.cc and core/modules.cc.
constexpr char kFlags[] =
    "-fsyntax-only -Wall -Wextra -Wno-missing-field-initializers -Werror "
    "-DMULTIHEAD_GIT_HASH='\"\"' -DMULTIHEAD_MODULES='\"\"'";

void expect_each_compiles_alone(const std::vector<std::string>& paths) {
  ASSERT_GT(paths.size(), 10u);
  std::vector<Result> results(paths.size());
  parallel_for(static_cast<int64_t>(paths.size()), [&](int64_t i, int) {
    const size_t at = static_cast<size_t>(i);
    results[at] = run(compiler(kFlags, paths[at]));
  });
  for (size_t i = 0; i < paths.size(); ++i) {
    EXPECT_EQ(results[i].status, 0) << paths[i] << "\n" << results[i].output;
  }
}

TEST(HeadersTest, SlowEachCompilesAlone) {
  expect_each_compiles_alone(files([](const std::string& path) {
    return path.starts_with("multihead/") && path.ends_with(".h") && !path.ends_with("-inl.h") &&
           !opens_its_source(path);
  }));
}

// Builds compile the files of a folder as one, where a source may go without what another includes.
TEST(HeadersTest, SlowEachSourceCompilesAlone) {
  expect_each_compiles_alone(files([](const std::string& path) {
    return path.ends_with(".cc") && !path.ends_with("_test.cc") && !path.ends_with("_bench.cc") &&
           path != "multihead/look/attention_page.cc";  // reads a page that the build puts together
  }));
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
