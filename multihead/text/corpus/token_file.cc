#include "multihead/text/corpus/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "multihead/core/checksum.h"
#include "multihead/core/error.h"
#include "multihead/core/files.h"

namespace multihead::text {
struct TokenFileHeader {
  char magic[8];
  uint32_t version, width;
  uint64_t count, vocab_size, fingerprint, checksum, zero, header_checksum;
};
static_assert(sizeof(TokenFileHeader) == 64);

namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr char kMagic[8] = {'M', 'H', 'T', 'O', 'K', 'E', 'N', 'S'};
constexpr uint32_t kVersion = 1;

uint64_t header_checksum(const TokenFileHeader& header) {
  return checksum({reinterpret_cast<const char*>(&header), offsetof(TokenFileHeader, header_checksum)});
}

void check_header(const TokenFileHeader& header, uint64_t file_size, const std::string& name) {
  MH_CHECK(std::memcmp(header.magic, kMagic, sizeof kMagic) == 0, FormatError, name,
           ": not a token file (it does not start with MHTOKENS)");
  MH_CHECK(header.version == kVersion, FormatError, name, ": version ", header.version,
           " of the token file format; this program knows version ", kVersion);
  MH_CHECK(header_checksum(header) == header.header_checksum, FormatError, name,
           ": the header (bytes 0 to 63) is corrupt: wrong checksum");
  MH_CHECK(header.width == 2 || header.width == 4, FormatError, name,
           ": bytes per token must be 2 or 4, got ", header.width);
  MH_CHECK(header.vocab_size >= 1 && header.vocab_size < INT32_MAX, FormatError, name,
           ": vocabulary size must be in [1, 2147483647), got ", header.vocab_size);
  MH_CHECK(header.zero == 0, FormatError, name, ": reserved bytes 48 to 55 must be zero");
  const uint64_t held = file_size - sizeof(TokenFileHeader);
  MH_CHECK(header.count == held / header.width && held % header.width == 0, FormatError, name, ": ",
           header.count, " tokens of ", header.width, " bytes expected after the header, got ", held,
           " bytes");
}

}  // namespace

void TokenView::copy(int64_t begin, std::span<int32_t> out) const {
  if (out.empty()) return;  // memcpy minds null pointers even then
  if (parts_ != nullptr) return copy_parts(begin_ + begin, out);
  const size_t bytes = out.size() * static_cast<size_t>(width_);
  const uint64_t at = static_cast<uint64_t>(begin) * static_cast<uint64_t>(width_);
  // Narrow tokens go to the back of `out` and are widened from the front, which never overtakes them.
  char* to = reinterpret_cast<char*>(out.data()) + (out.size_bytes() - bytes);
  if (file_ != nullptr) {
    file_->read(offset_ + at, to, bytes);
  } else {
    std::memcpy(to, static_cast<const char*>(data_) + at, bytes);
  }
  if (width_ == 4) return;
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t token;
    std::memcpy(&token, to + i * sizeof token, sizeof token);
    out[i] = token;
  }
}

int32_t TokenView::operator[](int64_t i) const {
  int32_t token;
  copy(i, {&token, 1});
  return token;
}

void TokenView::each_piece(FunctionRef<void(int64_t begin, std::span<const int32_t> tokens)> f) const {
  constexpr int64_t kPiece = 1 << 16;
  std::vector<int32_t> piece;
  for (int64_t begin = 0; begin < size_; begin += kPiece) {
    piece.resize(static_cast<size_t>(std::min(kPiece, size_ - begin)));
    copy(begin, piece);
    f(begin, piece);
  }
}

TokenView TokenView::sub(int64_t begin, int64_t size) const {
  MH_CHECK(begin >= 0 && size >= 0 && begin <= size_ - size, ValueError, "TokenView: tokens [", begin, ", ",
           begin, " + ", size, ") must lie in [0, ", size_, ")");
  TokenView part = *this;
  part.size_ = size;
  part.begin_ += begin;
  const int64_t skipped = begin * width_;
  if (file_ != nullptr) {
    part.offset_ += static_cast<uint64_t>(skipped);
  } else if (data_ != nullptr) {
    part.data_ = static_cast<const char*>(data_) + skipped;
  }
  return part;
}

struct TokenFile::Opened {
  FileReader file;
  TokenFileHeader header = {};

  TokenView tokens() const {
    return {file, sizeof(TokenFileHeader), static_cast<int64_t>(header.count),
            static_cast<int>(header.width)};
  }
};

namespace {

void verify_checksum(const FileReader& file, const TokenFileHeader& header) {
  std::vector<char> piece(size_t{1} << 20);
  Checksum sum;
  for (uint64_t at = sizeof(TokenFileHeader); at < file.size(); at += piece.size()) {
    piece.resize(std::min<uint64_t>(piece.size(), file.size() - at));
    file.read(at, piece.data(), piece.size());
    sum.update(piece.data(), piece.size());
  }
  MH_CHECK(sum.value() == header.checksum, FormatError, file.path(),
           ": the tokens are corrupt: wrong checksum");
}

void verify_range(const TokenView& tokens, const TokenFileHeader& header, const std::string& name) {
  tokens.each_piece([&](int64_t begin, std::span<const int32_t> piece) {
    for (size_t i = 0; i < piece.size(); ++i) {
      const auto token = static_cast<uint32_t>(piece[i]);
      MH_CHECK(token < header.vocab_size, FormatError, name, ": token ", token, " at offset ",
               sizeof(TokenFileHeader) + (static_cast<size_t>(begin) + i) * header.width,
               " is outside the vocabulary of ", header.vocab_size);
    }
  });
}

}  // namespace

TokenFile TokenFile::open(const std::string& path, const Options& options) {
  auto opened = std::make_shared<Opened>(Opened{FileReader(path)});
  const FileReader& file = opened->file;
  MH_CHECK(file.size() >= sizeof(TokenFileHeader), FormatError, path, ": a token file has at least ",
           sizeof(TokenFileHeader), " bytes, got ", file.size());
  file.read(0, &opened->header, sizeof(TokenFileHeader));
  check_header(opened->header, file.size(), path);
  TokenFile result(std::move(opened));
  if (options.verify) result.verify();
  return result;
}

void TokenFile::verify() const {
  verify_checksum(opened_->file, opened_->header);
  verify_range(opened_->tokens(), opened_->header, path());
}

uint64_t TokenFile::checksum() const { return opened_->header.checksum; }
const std::string& TokenFile::path() const { return opened_->file.path(); }
std::string TokenFile::header() const {
  return {reinterpret_cast<const char*>(&opened_->header), sizeof(TokenFileHeader)};
}

TokenView TokenFile::tokens() const { return opened_->tokens(); }
int64_t TokenFile::vocab_size() const { return static_cast<int64_t>(opened_->header.vocab_size); }
uint64_t TokenFile::tokenizer_fingerprint() const { return opened_->header.fingerprint; }

void TokenFile::check_tokenizer(uint64_t fingerprint) const {
  MH_CHECK(fingerprint == opened_->header.fingerprint, ValueError,
           "token file: it was written with another tokenizer (fingerprint ", opened_->header.fingerprint,
           ", this one has ", fingerprint, ")");
}

struct TokenFileWriter::State {
  AtomicFile file;
  TokenFileHeader header;
  Checksum sum;
  std::vector<uint16_t> narrow;
};

TokenFileWriter::TokenFileWriter(const std::string& path, int64_t vocab_size, uint64_t fingerprint) {
  MH_CHECK(vocab_size >= 1 && vocab_size < INT32_MAX, ValueError,
           "token file: vocab_size must be in [1, 2147483647), got ", vocab_size);
  TokenFileHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.width = vocab_size <= 65536 ? 2 : 4;
  header.vocab_size = static_cast<uint64_t>(vocab_size);
  header.fingerprint = fingerprint;
  state_.reset(new State{AtomicFile(path), header, {}, {}});
  state_->file.contents().write(&header, sizeof header);
}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::append(std::span<const int32_t> tokens) {
  TokenFileHeader& header = state_->header;
  for (int32_t token : tokens)
    MH_CHECK(token >= 0 && static_cast<uint64_t>(token) < header.vocab_size, ValueError,
             "token file: token must be in [0, ", header.vocab_size, "), got ", token);
  const void* bytes = tokens.data();
  if (header.width == 2) {
    state_->narrow.assign(tokens.begin(), tokens.end());
    bytes = state_->narrow.data();
  }
  const size_t size = tokens.size() * header.width;
  state_->sum.update(bytes, size);
  state_->file.contents().write(bytes, size);
  header.count += tokens.size();
}

int64_t TokenFileWriter::finish() {
  TokenFileHeader& header = state_->header;
  header.checksum = state_->sum.value();
  header.header_checksum = header_checksum(header);
  state_->file.contents().rewrite(0, {reinterpret_cast<const char*>(&header), sizeof header});
  state_->file.commit();
  return static_cast<int64_t>(header.count);
}

}  // namespace multihead::text
