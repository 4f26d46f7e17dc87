// Models in several files, as llama.cpp's gguf-split writes them, and files known by how they begin.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/io/gguf.h"

namespace multihead::io {
namespace {

constexpr int64_t kMostParts = 99999;  // what five digits say

std::string part_ending(int64_t number, int64_t count) {
  char ending[32];
  std::snprintf(ending, sizeof ending, "-%05d-of-%05d", static_cast<int>(number), static_cast<int>(count));
  return ending;
}

}  // namespace

bool is_gguf_file(const std::string& path) {
  std::string ending = std::filesystem::path(path).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 'a' - 'A') : c; });
  if (ending == ".gguf") return true;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  char magic[4] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  return std::string_view(magic, sizeof magic) == "GGUF";
}

void GgufFile::join_parts(int64_t count) {
  const std::string first = path();
  const auto fail = [&](const auto&... problem) { throw FormatError(concat(first, ": ", problem...)); };
  if (count > kMostParts) fail("split.count must be at most ", kMostParts, ", got ", count);
  const int64_t number = has("split.no") ? integer("split.no") : 0;
  const std::string own = part_ending(number + 1, count);
  const size_t at = first.rfind(own);
  if (at == first.npos)
    fail("this is a part of a model in ", count, " files, whose name must hold \"", own, "\"");
  const auto part_path = [&](int64_t part) {
    return std::string(first).replace(at, own.size(), part_ending(part + 1, count));
  };
  if (number != 0) {
    fail("this is part ", number + 1, " of a model in ", count, " files; give the first, ",
         quote(part_path(0)));
  }
  for (int64_t i = 1; i < count; ++i) {
    GgufFile part(part_path(i), OnePart());
    for (const auto& [key, expected] : {std::pair("split.no", i), std::pair("split.count", count)}) {
      MH_CHECK(part.has(key) && part.integer(key) == expected, FormatError, part.path(), ": ", key,
               " must be ", expected, ", as its name says");
    }
    for (auto& [name, tensor] : part.tensors_) {
      tensor.part = static_cast<size_t>(i);
      MH_CHECK(tensors_.emplace(name, std::move(tensor)).second, FormatError, part.path(), ": tensor ",
               quote(name), " is in an earlier part too");
    }
    parts_.push_back(std::move(part.parts_[0]));
  }
  const char* total = "split.tensors.count";
  if (has(total) && integer(total) != std::ssize(tensors_))
    fail(total, " is ", integer(total), ", but the files have ", tensors_.size(), " tensors");
}

}  // namespace multihead::io
