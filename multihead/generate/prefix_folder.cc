#include "multihead/generate/prefix_folder.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include "multihead/core/checksum.h"
#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/text/utf8.h"
#include "multihead/generate/prefix-inl.h"
#include "multihead/models/files/state_file.h"

namespace multihead {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEnding = ".safetensors";

// Two checksums of 16 digits: "MODEL-TOKENS.safetensors".
bool is_ours(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name.size() != 33 + kEnding.size() || name[16] != '-' || !name.ends_with(kEnding)) return false;
  const auto digit = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
  return std::all_of(name.begin(), name.begin() + 16, digit) &&
         std::all_of(name.begin() + 17, name.begin() + 33, digit) && node_at(path.string()) == Node::file;
}

std::vector<fs::path> files_in(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (is_ours(entry.path())) files.push_back(entry.path());
  }
  MH_CHECK(!error, IoError, folder, ": ", error.message());
  return files;
}

Dtype cache_dtype_of(const nn::DecodeState& state) { return state.layers.front().key.dtype(); }

// Two kinds of cache are two files.
std::string name_of(const std::vector<int32_t>& prompt, Dtype dtype) {
  Checksum sum;
  sum.update(prompt.data(), prompt.size() * sizeof(int32_t));
  sum.update(&dtype, sizeof dtype);
  return checksum_text(sum.value());
}

void touch(const std::string& path) {
  std::error_code ignored;  // another process may have removed it
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
}

}  // namespace

PrefixFolder::PrefixFolder(const std::string& folder, const models::LanguageModel& model, uint64_t bytes,
                           OnProblem on_problem)
    : folder_(folder),
      checksum_(models::model_checksum(model)),
      model_(model),
      bytes_(bytes),
      on_problem_(std::move(on_problem)) {
  models::check_plain_attention(model.config(), "a folder of prompts");
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(concat("folder ", quote(folder, 400), " cannot be created: ", error.message()));
}

// Keys and values can always be computed.
void PrefixFolder::fail(const std::string& message) {
  if (!std::exchange(has_failed_, true) && on_problem_) {
    on_problem_(concat("the folder of prompts is not used: ", message));
  }
}

std::vector<PrefixFolder::Entry> PrefixFolder::entries(const nn::DecodeState& like) const {
  std::vector<Entry> result;
  for (const fs::path& path : files_in(folder_)) {
    if (!path.filename().string().starts_with(checksum_)) continue;
    try {
      auto prompt = models::saved_prompt(path.string(), checksum_);
      if (prompt && prompt->dtype == cache_dtype_of(like))
        result.push_back({path.string(), std::move(prompt->tokens)});
    } catch (const std::runtime_error&) {  // cut off, or gone meanwhile
    }
  }
  return result;
}

int64_t PrefixFolder::recall(const std::vector<int32_t>& prompt, int64_t least, nn::DecodeState& state,
                             int64_t row) {
  if (state.window > 0) return 0;
  std::string best;
  int64_t longest = least;
  try {
    for (const Entry& entry : entries(state)) {
      const int64_t length = std::min<int64_t>(common_prefix(entry.tokens, prompt), std::ssize(prompt) - 1);
      if (length > longest) std::tie(longest, best) = std::pair(length, entry.path);
    }
  } catch (const IoError& error) {
    fail(error.what());
  }
  if (best.empty()) return 0;
  try {
    state.put(row, models::load_prompt(best, model_, checksum_), 0, longest);
  } catch (const FormatError&) {
    return 0;
  } catch (const IoError&) {
    return 0;
  }
  touch(best);
  return longest;
}

void PrefixFolder::remember(const std::vector<int32_t>& prompt, const nn::DecodeState& state, int64_t row) {
  if (state.window > 0 || prompt.empty() || has_failed_) return;
  try {
    write(prompt, state, row);
  } catch (const IoError& error) {
    fail(error.what());
  }
}

void PrefixFolder::write(const std::vector<int32_t>& prompt, const nn::DecodeState& state,
                         int64_t row) const {
  const auto length = std::ssize(prompt);
  std::vector<std::string> said_by_this;
  for (const Entry& entry : entries(state)) {
    const int64_t common = common_prefix(entry.tokens, prompt);
    if (common == length) return touch(entry.path);
    if (common == std::ssize(entry.tokens)) said_by_this.push_back(entry.path);
  }
  const Dtype dtype = cache_dtype_of(state);
  nn::DecodeState own = model_.make_state({.capacity = length, .dtype = dtype});
  own.put(0, state, row, length);
  const std::string name = concat(checksum_, '-', name_of(prompt, dtype), kEnding);
  const std::string path = (fs::path(folder_) / name).string();
  const Node there = node_at(path);
  MH_CHECK(there == Node::absent || there == Node::file, IoError, path, ": ", node_name(there),
           " is in the way of a prompt to be written");
  models::save_prompt(path, prompt, own, checksum_);
  std::error_code ignored;
  for (const std::string& old : said_by_this) fs::remove(old, ignored);
  trim();
}

void PrefixFolder::trim() const {
  struct File {
    fs::file_time_type used;
    uint64_t bytes;
    fs::path path;
  };
  std::vector<File> files;
  uint64_t total = 0;
  for (const fs::path& path : files_in(folder_)) {
    std::error_code error;
    const fs::file_time_type used = fs::last_write_time(path, error);
    const uint64_t bytes = error ? 0 : fs::file_size(path, error);
    if (!error) files.push_back({used, bytes, path}), total += bytes;
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.used < b.used; });
  for (const File& file : files) {
    if (total <= bytes_) return;
    std::error_code ignored;
    fs::remove(file.path, ignored);
    total -= file.bytes;
  }
}

}  // namespace multihead
