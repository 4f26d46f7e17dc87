// Who may include whom (docs/architecture.md), read from the #include lines themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/testing-inl.h"

namespace multihead {
namespace {

// Every folder and the folders whose headers it may include, besides its own.
const std::map<std::string, std::set<std::string>>& allowed() {
  static const std::map<std::string, std::set<std::string>> table = [] {
    std::map<std::string, std::set<std::string>> t;
    t["core"] = {};
    t["kernels"] = {"core"};
    t["autograd"] = {"core", "kernels"};
    t["ops"] = {"core", "kernels", "autograd", "distributed"};
    t["nn"] = {"core", "kernels", "autograd", "ops"};
    t["optim"] = {"core", "kernels", "autograd"};
    t["io"] = {"core"};
    t["distributed"] = {"core"};
    t["text"] = {"core", "io"};
    t["models"] = {"core", "kernels", "autograd", "ops", "nn", "io"};
    t["generate"] = {"core", "kernels", "autograd", "ops", "nn", "io", "models", "text"};
    t["look"] = {"core", "kernels", "autograd", "ops", "nn", "io", "models", "text", "generate"};
    t["embed"] = {"core", "kernels", "autograd", "ops", "nn", "io", "models", "text"};
    t["serve"] = {"core", "kernels", "autograd", "ops", "nn", "io", "models", "text", "generate", "embed"};
    t["c"] = {"core", "kernels", "autograd", "ops", "nn", "io", "models", "text", "generate", "embed"};
    t["train"] = {"core",   "kernels", "autograd", "ops",      "nn",    "io",
                  "models", "text",    "optim",    "generate", "embed", "distributed"};
    return t;
  }();
  return table;
}

// The same for the subjects inside kernels, from the bottom up.
using Subjects = std::vector<std::pair<std::string, std::set<std::string>>>;
const Subjects& subjects_of_kernels() {
  static const Subjects list = {{"cpu", {}},
                                {"simd", {}},
                                {"amx", {"cpu"}},
                                {"peak", {"cpu", "simd", "amx"}},
                                {"reduce", {"cpu", "simd"}},
                                {"elementwise", {"cpu", "simd", "reduce"}},
                                {"array", {}},
                                {"recurrence", {}},
                                {"matmul", {"cpu", "simd", "amx", "elementwise"}},
                                {"quantized", {"cpu", "simd", "amx", "elementwise", "matmul"}},
                                {"attention", {"cpu", "simd", "amx", "reduce", "matmul"}}};
  return list;
}

struct Include {
  fs::path file;       // relative to the root
  std::string header;  // as written, without the brackets
};

std::vector<Include> includes_of(const fs::path& file) {
  static const std::regex line_pattern(R"re(^\s*#\s*include\s*[<"]([^>"]+)[>"].*)re");
  std::ifstream in(file);
  std::vector<Include> found;
  std::smatch match;
  for (std::string line; std::getline(in, line);) {
    if (std::regex_match(line, match, line_pattern)) found.push_back({fs::relative(file, kRoot), match[1]});
  }
  return found;
}

bool is_source(const fs::path& p) { return p.extension() == ".h" || p.extension() == ".cc"; }

std::vector<Include> includes_under(const fs::path& folder) {
  std::vector<Include> all;
  if (!fs::exists(folder)) return all;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || !is_source(entry.path())) continue;
    for (Include& include : includes_of(entry.path())) all.push_back(std::move(include));
  }
  return all;
}

bool is_test_or_bench(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.ends_with("_test.cc") || name.ends_with("_bench.cc") || name == "testing-inl.h";
}

// The folder of `header` inside `top`; "" for anything else.
std::string folder_in(const std::string& top, const std::string& header) {
  if (!header.starts_with(top)) return "";
  const size_t end = header.find('/', top.size());
  return end == std::string::npos ? "" : header.substr(top.size(), end - top.size());
}
// "multihead/nn/linear.h" -> "nn".
std::string folder_of(const std::string& header) { return folder_in("multihead/", header); }
// "multihead/kernels/simd/lanes-inl.h" -> "simd".
std::string subject_of(const std::string& header) { return folder_in("multihead/kernels/", header); }

std::string where(const Include& i) { return i.file.string() + " includes " + i.header; }

TEST(IncludesTest, FoldersAreKnown) {
  for (const auto& entry : fs::directory_iterator(kRoot / "multihead")) {
    if (!entry.is_directory() || fs::is_empty(entry.path())) continue;
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(name == "testing" || allowed().count(name)) << "multihead/" << name << " has no place in the "
                                                            << "include order: add it to this test";
  }
}

TEST(IncludesTest, GoOneWay) {
  int seen = 0;
  for (const auto& [folder, below] : allowed()) {
    for (const Include& include : includes_under(kRoot / "multihead" / folder)) {
      const std::string to = folder_of(include.header);
      if (to.empty() || to == folder || is_test_or_bench(include.file)) continue;
      ++seen;
      EXPECT_TRUE(below.count(to)) << where(include) << ": " << folder << " may not see " << to;
    }
  }
  EXPECT_GT(seen, 10) << "the pattern for #include lines no longer matches";
}

TEST(IncludesTest, SubjectsOfKernelsGoOneWay) {
  const fs::path kernels = kRoot / "multihead" / "kernels";
  std::set<std::string> lower;
  for (const auto& [subject, below] : subjects_of_kernels()) {
    std::set<std::string> used;
    for (const Include& include : includes_under(kernels / subject)) {
      const std::string to = subject_of(include.header);
      if (to.empty() || to == subject || is_test_or_bench(include.file)) continue;
      used.insert(to);
      EXPECT_TRUE(below.count(to)) << where(include) << ": " << subject << " may not see " << to;
    }
    EXPECT_EQ(used, below) << "subjects that kernels/" << subject << " uses";
    for (const std::string& to : below) EXPECT_TRUE(lower.count(to)) << to << " is not below " << subject;
    lower.insert(subject);
  }
  for (const auto& entry : fs::directory_iterator(kernels)) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(!entry.is_directory() || lower.count(name))
        << "kernels/" << name << " has no place in this test";
  }
}

using Arrows = std::map<std::string, std::map<std::string, std::string>>;  // from, to, an example

// The includes between the folders inside `room`.
Arrows arrows_between_folders(const fs::path& room) {
  const std::string prefix = fs::relative(room, kRoot).string() + "/";
  Arrows arrows;
  for (const auto& entry : fs::directory_iterator(room)) {
    if (!entry.is_directory()) continue;
    const std::string from = entry.path().filename().string();
    for (const Include& include : includes_under(entry.path())) {
      const std::string to = folder_in(prefix, include.header);
      if (!to.empty() && to != from && !is_test_or_bench(include.file)) arrows[from][to] = where(include);
    }
  }
  return arrows;
}

// Follows arrows to `goal`; `seen` are the folders already tried.
bool leads_to(const Arrows& arrows, const std::string& from, const std::string& goal,
              std::set<std::string>& seen) {
  const auto found = arrows.find(from);
  if (from == goal || found == arrows.end()) return from == goal;
  return std::any_of(found->second.begin(), found->second.end(), [&](const auto& arrow) {
    return seen.insert(arrow.first).second && leads_to(arrows, arrow.first, goal, seen);
  });
}

TEST(IncludesTest, NoRoomHasACircleOfFolders) {
  int rooms = 0;
  for (const char* top : {"multihead", "cli", "python/src"}) {
    std::vector<fs::path> open = {kRoot / top};
    for (; !open.empty(); ++rooms) {
      const fs::path room = open.back();
      open.pop_back();
      for (const auto& entry : fs::directory_iterator(room)) {
        if (entry.is_directory()) open.push_back(entry.path());
      }
      const Arrows arrows = arrows_between_folders(room);
      for (const auto& [from, ends] : arrows) {
        for (const auto& [to, example] : ends) {
          std::set<std::string> seen;
          EXPECT_FALSE(leads_to(arrows, to, from, seen)) << "a circle back from " << to << ": " << example;
        }
      }
    }
  }
  EXPECT_GT(rooms, 40) << "the folders are elsewhere";
}

TEST(IncludesTest, NoFolderIsALongFlatList) {
  std::map<fs::path, int> files;
  for (const char* top : {"multihead", "cli", "python"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top)) {
      if (is_source(entry.path()) && !is_test_or_bench(entry.path())) ++files[entry.path().parent_path()];
    }
  }
  for (const auto& [folder, count] : files) EXPECT_LE(count, 30) << folder << ": divide it by subject";
}

TEST(IncludesTest, OnlyTestsSeeTesting) {
  for (const char* top : {"multihead", "cli", "python", "examples"}) {
    for (const Include& include : includes_under(kRoot / top)) {
      if (folder_of(include.header) != "testing") continue;
      EXPECT_TRUE(is_test_or_bench(include.file) || include.file.string().starts_with("multihead/testing"))
          << where(include);
    }
  }
}

TEST(IncludesTest, HighwayOnlyInKernels) {
  for (const char* top : {"multihead", "cli", "python", "examples"}) {
    for (const Include& include : includes_under(kRoot / top)) {
      if (!include.header.starts_with("hwy/")) continue;
      EXPECT_TRUE(include.file.string().starts_with("multihead/kernels/")) << where(include);
    }
  }
}

// Per-target code of all files shares one namespace: two types of one name there would be undefined behaviour
// that neither compiler nor linker reports.
TEST(IncludesTest, PerTargetTypesOfKernelsAreDefinedOnce) {
  static const std::regex type_pattern(R"(^(?:struct|class|enum class) (\w+) (?:: .*)?\{.*)");
  std::map<std::string, fs::path> defined_in;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "multihead" / "kernels")) {
    const std::string file = entry.path().string();
    if (!file.ends_with(".cc") && !file.ends_with("-inl.h")) continue;
    bool anonymous = false;
    std::ifstream in(file);
    std::smatch match;
    for (std::string line; std::getline(in, line);) {
      if (line == "namespace {") anonymous = true;
      if (line == "}  // namespace") anonymous = false;
      if (anonymous || !std::regex_match(line, match, type_pattern)) continue;
      const auto [at, is_new] = defined_in.emplace(match[1], entry.path());
      EXPECT_TRUE(is_new || at->second == entry.path())
          << match[1] << " in " << at->second << " and " << file;
    }
  }
  EXPECT_GT(defined_in.size(), 20) << "the pattern for types no longer matches";
}

TEST(IncludesTest, PublicHeadersShowNoThirdParty) {
  for (const Include& include : includes_under(kRoot / "multihead")) {
    const std::string file = include.file.string();
    if (file.ends_with(".cc") || file.ends_with("-inl.h") || folder_of(file) == "testing") continue;
    if (file == "multihead/c.h") continue;  // C has no headers but those in .h; examples/c compiles it as C
    EXPECT_FALSE(include.header.ends_with("-inl.h")) << where(include) << ": -inl headers are not installed";
    const bool standard = include.header.find('/') == std::string::npos && !include.header.ends_with(".h") &&
                          !include.header.ends_with(".hpp");
    EXPECT_TRUE(standard || include.header.starts_with("multihead/")) << where(include);
  }
}

// Python's macros with a verb in capitals (PyList_GET_SIZE) read objects directly: the stable ABI, to which wheels from
// Python 3.12 on keep, has none, and builds for an older Python compile with them.
TEST(IncludesTest, PythonKeepsToTheStableAbi) {
  static const std::regex macro(R"(\bPy[A-Z]\w*_(GET|SET|AS|READ|WRITE|CAST|CHECK)(_[A-Z]+)*\b)");
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "python" / "src")) {
    if (!is_source(entry.path())) continue;
    ++files;
    std::ifstream in(entry.path());
    std::smatch match;
    for (std::string line; std::getline(in, line);) {
      EXPECT_FALSE(std::regex_search(line, match, macro)) << match[0] << " in " << entry.path();
    }
  }
  EXPECT_GT(files, 10) << "the sources are elsewhere";
}

// Installed, but not for everybody: reached through other headers, or shared with the command line and
// Python.
const std::set<std::string>& included_one_by_one() {
  static const std::set<std::string> headers = {"multihead/core/threads/busy.h",
                                                "multihead/core/checksum.h",
                                                "multihead/core/files.h",
                                                "multihead/core/text/near_names.h",
                                                "multihead/core/memory/storage.h",
                                                "multihead/distributed/mpi_functions.h",
                                                "multihead/io/file_set.h",
                                                "multihead/io/staging.h",
                                                "multihead/models/config/config_fields.h",
                                                "multihead/text/corpus/token_labels.h",
                                                "multihead/train/fields.h",
                                                "multihead/train/run.h",
                                                "multihead/train/run_folder.h",
                                                "multihead/train/signals.h"};
  return headers;
}

TEST(IncludesTest, UmbrellaNamesEveryPublicHeader) {
  std::set<std::string> named;
  for (const Include& include : includes_of(kRoot / "multihead/multihead.h")) named.insert(include.header);
  EXPECT_FALSE(named.empty());
  for (const auto& [folder, below] : allowed()) {
    if (folder == "kernels") continue;  // raw pointers; include them one by one
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / "multihead" / folder)) {
      const std::string header = fs::relative(entry.path(), kRoot).string();
      if (!header.ends_with(".h") || header.ends_with("-inl.h")) continue;
      if (included_one_by_one().count(header)) continue;
      EXPECT_TRUE(named.erase(header)) << "multihead/multihead.h does not include " << header;
    }
  }
  for (const std::string& header : named) ADD_FAILURE() << "multihead/multihead.h includes " << header;
}

// Headers that are not installed end in -inl.h; what is installed must do without them.
TEST(IncludesTest, InstalledHeadersIncludeInstalledHeaders) {
  for (const Include& include : includes_under(kRoot / "multihead")) {
    const std::string file = include.file.string();
    if (!file.ends_with(".h") || file.ends_with("-inl.h") || file.starts_with("multihead/testing")) continue;
    EXPECT_FALSE(include.header.ends_with("-inl.h")) << where(include);
  }
}

}  // namespace
}  // namespace multihead
