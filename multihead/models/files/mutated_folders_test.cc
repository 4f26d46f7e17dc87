// Folders of every family with a few bytes changed: loaded or refused, in little memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/memory/storage.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/models/testing-inl.h"

namespace multihead::models {
namespace {

namespace fs = std::filesystem;

// A number in place of another, a byte in place of another, or a part left out.
std::string mutated(std::string text, size_t most, std::mt19937& rng) {
  const auto below = [&](size_t n) { return static_cast<size_t>(rng() % n); };
  const char* const numbers[] = {"0", "-1", "2147483647", "1e308", "9223372036854775807", "null", "[]", "7"};
  for (size_t changes = 1 + below(3); changes > 0 && !text.empty(); --changes) {
    const size_t at = below(std::min(text.size(), most));
    const size_t digit = text.find_first_of("0123456789", at);
    switch (below(4)) {
      case 0:
        text[at] = static_cast<char>(rng() & 0xff);
        break;
      case 1:
        text.erase(at, 1 + below(20));
        break;
      case 2:
        text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      default:
        if (digit == text.npos || digit >= most) break;
        text.replace(digit, text.find_first_not_of("0123456789", digit) - digit, numbers[below(8)]);
    }
  }
  return text;
}

void load_any(const std::string& folder) {
  if (has_encoder(folder)) load_encoder(folder);
  if (is_seq2seq_folder(folder)) return static_cast<void>(load_seq2seq(folder));
  if (!has_encoder(folder)) load_language_model(folder);
}

struct Count {
  int loaded = 0, refused = 0;
};

// `times` mutations of each of the two files of each fixture.
Count mutate_all(int times) {
  std::mt19937 rng(1);
  Count count;
  const fs::path folder = fs::temp_directory_path() / concat("multihead_mutated_", ::getpid());
  for (const char* kind : {"encoders", "seq2seq", "hugging_face"}) {
    for (const auto& fixture : fs::directory_iterator(kData / kind)) {
      fs::remove_all(folder);
      fs::create_directories(folder);
      for (const char* name : {"config.json", "model.safetensors"})
        fs::copy_file(fixture.path() / name, folder / name);
      for (const auto& [name, most] :
           {std::pair("config.json", size_t{1} << 20), {"model.safetensors", 4000}}) {
        const std::string path = (folder / name).string(), original = read_file(path);
        for (int i = 0; i < times; ++i) {
          write_file_atomically(path, mutated(original, most, rng));
          try {
            load_any(folder.string());
            ++count.loaded;
          } catch (const std::exception&) {
            ++count.refused;
          }
        }
        write_file_atomically(path, original);
      }
    }
  }
  fs::remove_all(folder);
  return count;
}

void expect_little_memory(int times) {
  reset_peak_memory();
  const int64_t before = memory_stats().peak_bytes;
  const Count count = mutate_all(times);
  EXPECT_GT(count.loaded, 0);
  EXPECT_GT(count.refused, 0);
  EXPECT_LT(memory_stats().peak_bytes, before + (32 << 20));
  std::printf("%d loaded, %d refused\n", count.loaded, count.refused);
}

TEST(MutatedFoldersTest, AreLoadedOrRefused) { expect_little_memory(2); }
TEST(MutatedFoldersTest, ManyAreLoadedOrRefusedSlow) { expect_little_memory(20); }

}  // namespace
}  // namespace multihead::models
