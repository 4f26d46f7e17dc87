// Every op of the list against central differences, and every public op against the list.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "multihead/testing/op_list.h"

namespace multihead {
namespace {

namespace fs = std::filesystem;
using testing::OpCase;

class GradientTest : public ::testing::TestWithParam<OpCase> {};

TEST_P(GradientTest, MatchesDifferences) {
  const OpCase& c = GetParam();
  const testing::GradcheckResult result = testing::gradcheck(c.f, c.inputs, c.options);
  EXPECT_TRUE(result) << c.op << " (" << c.variant << "): " << result.message;
}

INSTANTIATE_TEST_SUITE_P(Ops, GradientTest, ::testing::ValuesIn(testing::op_cases()), [](const auto& info) {
  std::string name = std::to_string(info.index) + "_" + info.param.op + "_" + info.param.variant;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
});

std::string text_of(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Functions of multihead/ops/*.h that return tensors, and their header.
std::map<std::string, std::string> public_ops() {
  static const std::regex declaration(
      R"((?:^|\n)(?:inline )?(?:Tensor|std::vector<Tensor>|AddNorm|AttentionPart) ([a-z0-9_]+)\()");
  std::map<std::string, std::string> ops;
  for (const auto& entry :
       fs::recursive_directory_iterator(fs::path(MULTIHEAD_SOURCE_DIR) / "multihead/ops")) {
    const std::string file = entry.path().filename();
    if (entry.path().extension() != ".h" || file.find("-inl") != std::string::npos) continue;
    std::string text = text_of(entry.path());
    // Namespace detail is not public.
    static const std::regex detail(R"(namespace (?:multihead::)?detail \{[^]*?\n\}  // namespace)");
    text = std::regex_replace(text, detail, "");
    for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) {
      ops[(*it)[1]] = file;
    }
  }
  return ops;
}

// Documented as without gradient; of several ranks, whose gradients ring_test.cc compares with those of one.
const std::set<std::string> kWithoutGradient = {
    "attention_int8", "to_int8_rows", "from_int8_rows", "ring_attention", "gather_rows", "own_rows",
    "equal",          "not_equal",    "less",           "less_equal",     "greater",     "greater_equal",
    "nonzero",        "argsort",      "argmax",         "argmin"};

TEST(OpListTest, EveryPublicOpHasAGradientCheck) {
  std::set<std::string> listed;
  for (const OpCase& c : testing::op_cases()) listed.insert(c.op);
  const auto ops = public_ops();
  EXPECT_GT(ops.size(), 40u) << "the headers were not understood";
  for (const auto& [op, header] : ops) {
    EXPECT_TRUE(listed.count(op) + kWithoutGradient.count(op) == 1)
        << "ops/" << header << ": " << op << "() has no entry in testing/op_list.cc";
  }
  for (const std::string& op : listed) EXPECT_EQ(ops.count(op), 1u) << op << " is listed but not public";
}

}  // namespace
}  // namespace multihead
