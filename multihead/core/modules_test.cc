#include "multihead/core/modules-inl.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "multihead/core/error.h"

namespace multihead {
namespace {

namespace fs = std::filesystem;

TEST(ModulesTest, AreLookedForBesideTheProgramAndNotWhereItIsCalled) {
  const fs::path program = fs::read_symlink("/proc/self/exe");
  const auto found = find_modules(program.filename().string());
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front(), program);
  EXPECT_TRUE(find_modules("multihead_nowhere.so").empty());
}

TEST(ModulesTest, OneThatCannotBeLoadedIsNamed) {
  try {
    module_function("/nowhere/multihead_nowhere.so", "function");
    FAIL() << "loaded";
  } catch (const ValueError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("multihead_nowhere.so: ")) << error.what();
  }
}

}  // namespace
}  // namespace multihead
