// Lists of token files.
#include <algorithm>
#include <filesystem>

#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/text/corpus/token_file.h"

namespace multihead::text {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kList = "multihead token list 1\n", kTokens = "MHTOKENS";

bool begins_with(const std::string& path, std::string_view text) {
  const FileReader file(path);
  std::string first(text.size(), '\0');
  if (file.size() < text.size()) return false;
  file.read(0, first.data(), first.size());
  return first == text;
}

// "0123456789abcdef tokens/a.tokens"
TokenFile open_line(std::string_view line, const fs::path& folder, const std::string& where) {
  constexpr size_t kDigits = 16;
  MH_CHECK(line.size() > kDigits + 1 && line[kDigits] == ' ' &&
               line.find_first_not_of("0123456789abcdef") == kDigits,
           FormatError, where, ": expected 16 hexadecimal digits, a space and a path, got ",
           quote(line, 100));
  TokenFile file = TokenFile::open(folder / line.substr(kDigits + 1), {.verify = false});
  MH_CHECK(checksum_text(file.checksum()) == line.substr(0, kDigits), FormatError, where, ": ",
           quote(file.path(), 400), " has the checksum ", checksum_text(file.checksum()), ", not ",
           line.substr(0, kDigits));
  return file;
}

void check_same_tokenizer(const TokenFile& file, const TokenFile& first, const std::string& where) {
  MH_CHECK(file.tokenizer_fingerprint() == first.tokenizer_fingerprint(), FormatError, where, ": ",
           quote(file.path(), 400), " was written with another tokenizer than ", quote(first.path(), 400));
}

}  // namespace

TokenView::TokenView(const std::vector<TokenPart>& parts)
    : size_(parts.back().begin + parts.back().tokens.size()), width_(4), parts_(&parts) {}

void TokenView::copy_parts(int64_t begin, std::span<int32_t> out) const {
  auto part = std::prev(std::upper_bound(parts_->begin(), parts_->end(), begin,
                                         [](int64_t at, const TokenPart& p) { return at < p.begin; }));
  for (; !out.empty(); ++part) {
    const int64_t first = begin - part->begin;
    const auto count = std::min(out.size(), static_cast<size_t>(part->tokens.size() - first));
    part->tokens.copy(first, out.first(count));
    out = out.subspan(count);
    begin += static_cast<int64_t>(count);
  }
}

TokenFiles::TokenFiles(std::vector<TokenFile> files) {
  auto content = std::make_shared<Content>();
  content->files = std::move(files);
  int64_t begin = 0;
  for (const TokenFile& file : content->files) {
    content->parts.push_back({begin, file.tokens()});
    begin += file.size();
  }
  content_ = std::move(content);
}

bool TokenFiles::is_one(const std::string& path) {
  return begins_with(path, kTokens) || begins_with(path, kList);
}

TokenFiles TokenFiles::open(const std::string& path) {
  if (!begins_with(path, kList)) return TokenFiles({TokenFile::open(path, {.verify = false})});
  const std::string text = read_file(path);
  const fs::path folder = fs::path(path).parent_path();
  std::vector<TokenFile> files;
  for (size_t begin = kList.size(), line = 2; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string where = concat(path, ": line ", line);
    files.push_back(open_line(std::string_view(text).substr(begin, end - begin), folder, where));
    check_same_tokenizer(files.back(), files.front(), where);
    begin = end + 1;
  }
  MH_CHECK(!files.empty(), FormatError, path, ": the list has no files");
  return TokenFiles(std::move(files));
}

void TokenFiles::write_list(const std::string& path, const std::vector<std::string>& files) {
  MH_CHECK(!files.empty(), ValueError, "token list: it needs a file");
  std::string text(kList);
  const TokenFile first = TokenFile::open(files.front(), {.verify = false});
  for (const std::string& name : files) {
    MH_CHECK(name.find('\n') == name.npos, ValueError, "token list: ", quote(name, 400),
             " cannot be written on a line");
    const TokenFile file = TokenFile::open(name, {.verify = false});
    check_same_tokenizer(file, first, "token list");
    const fs::path folder = fs::absolute(path).parent_path(), from_there = fs::absolute(name);
    text += concat(checksum_text(file.checksum()), " ", fs::proximate(from_there, folder).string(), "\n");
  }
  write_file_atomically(path, text);
}

TokenView TokenFiles::tokens() const { return TokenView(content_->parts); }

uint64_t TokenFiles::checksum() const {
  Checksum sum;
  for (const TokenFile& file : files()) {
    const std::string header = file.header();
    sum.update(header.data(), header.size());
  }
  return sum.value();
}

void TokenFiles::verify(int first, int step) const {
  const int64_t count = (std::ssize(files()) - first + step - 1) / step;
  parallel_for(std::max<int64_t>(count, 0),
               [&](int64_t i, int) { files()[static_cast<size_t>(first + i * step)].verify(); });
}

}  // namespace multihead::text
