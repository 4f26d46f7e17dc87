// Runs a fuzz target without a fuzzer: every file of a folder, and changes of it that are the same each time.
//   replay FOLDER [CHANGES-PER-FILE]
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

uint64_t next_random() {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

// One of: flip a bit, overwrite, insert, remove, cut, splice with another file.
std::string changed(std::string bytes, const std::vector<std::string>& all) {
  const size_t at = bytes.empty() ? 0 : next_random() % bytes.size();
  constexpr std::string_view kTokens[] = {"\"", "{",  "}",   "[",       "]",   ",", ":",
                                          "0",  "-1", "1e9", "\\u0000", "F32", " "};
  switch (next_random() % 6) {
    case 0:
      if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << next_random() % 8));
      break;
    case 1:
      if (!bytes.empty()) bytes[at] = static_cast<char>(next_random());
      break;
    case 2:
      bytes.insert(at, kTokens[next_random() % std::size(kTokens)]);
      break;
    case 3:
      bytes.erase(at, next_random() % 9);
      break;
    case 4:
      bytes.resize(at);
      break;
    default: {
      const std::string& other = all[next_random() % all.size()];
      bytes = bytes.substr(0, at) + other.substr(std::min(at, other.size()));
    }
  }
  return bytes;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) return 2;
  const long changes = count > 2 ? std::atol(arguments[2]) : 200;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> all;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    all.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (all.empty()) return 2;
  long runs = 0;
  for (const std::string& seed : all) {
    run(seed);
    for (long i = 0; i < changes; ++i) {
      std::string bytes = changed(seed, all);
      if (i % 3 == 0) bytes = changed(bytes, all);
      run(bytes);
    }
    runs += 1 + changes;
  }
  std::printf("%ld inputs from %zu files\n", runs, all.size());
  return 0;
}
