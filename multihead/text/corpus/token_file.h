// A file of token ids, read on demand, for corpora larger than memory. Not memory-mapped, because truncating
// a mapped file kills its readers.
//
// Layout, little-endian: "MHTOKENS", u32 version = 1, u32 bytes per token (2 or 4), u64 token count, u64
// vocabulary size, u64 fingerprint of the tokenizer, u64 checksum of the tokens, u64 zero, u64 checksum of
// the 56 bytes before; then the tokens. Checksums are those of core/checksum.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "multihead/core/files.h"
#include "multihead/core/threads/parallel.h"

namespace multihead::text {

struct TokenPart;

/// A non-owning view of tokens, 16- or 32-bit, in memory, in a file or in several.
class TokenView {
 public:
  TokenView(std::span<const int32_t> tokens)  // NOLINT(google-explicit-constructor)
      : data_(tokens.data()), size_(static_cast<int64_t>(tokens.size())), width_(4) {}
  TokenView(const std::vector<int32_t>& tokens)  // NOLINT(google-explicit-constructor)
      : data_(tokens.data()), size_(std::ssize(tokens)), width_(4) {}
  TokenView(std::vector<int32_t>&&) = delete;  // would dangle
  /// Views a file that outlives the view, from byte `offset` on.
  TokenView(const FileReader& file, uint64_t offset, int64_t size, int width)
      : file_(&file), offset_(offset), size_(size), width_(width) {}

  /// Views consecutive parts, which must outlive the view.
  explicit TokenView(const std::vector<TokenPart>& parts);

  int64_t size() const { return size_; }
  /// One token; copy() and each_piece() read many at a time. Throws what copy() throws.
  int32_t operator[](int64_t i) const;
  /// out[i] = tokens[begin + i]; the range must lie inside. Throws IoError (a truncated file).
  void copy(int64_t begin, std::span<int32_t> out) const;
  /// Calls f(begin, tokens) on consecutive pieces.
  void each_piece(FunctionRef<void(int64_t begin, std::span<const int32_t> tokens)> f) const;
  /// The tokens [begin, begin + size).
  TokenView sub(int64_t begin, int64_t size) const;

 private:
  void copy_parts(int64_t begin, std::span<int32_t> out) const;

  const void* data_ = nullptr;        // in memory
  const FileReader* file_ = nullptr;  // or here
  uint64_t offset_ = 0;
  int64_t size_;
  int width_;
  const std::vector<TokenPart>* parts_ = nullptr;  // or there
  int64_t begin_ = 0;                              // in the parts
};

/// Tokens, and the number of the first.
struct TokenPart {
  int64_t begin;
  TokenView tokens;
};

/// A token file open for reading; cheap to copy, open as long as a copy exists.
class TokenFile {
 public:
  struct Options {
    /// Reads everything once: verifies the checksum and the range of every token.
    bool verify = true;
  };
  /// Throws: IoError; FormatError naming the problem and its offset.
  static TokenFile open(const std::string& path, const Options& options);
  static TokenFile open(const std::string& path) { return open(path, Options()); }

  TokenView tokens() const;
  int64_t size() const { return tokens().size(); }
  int64_t vocab_size() const;
  /// Tokenizer::fingerprint() of the tokenizer that wrote it.
  uint64_t tokenizer_fingerprint() const;
  /// Checksum of the tokens, as the header has it.
  uint64_t checksum() const;
  const std::string& path() const;
  /// Checks what Options::verify checks. Throws: IoError, FormatError.
  void verify() const;
  /// The header's 64 bytes, which stand for the whole content.
  std::string header() const;
  /// Throws ValueError unless `fingerprint` is that of the tokenizer that wrote the file.
  void check_tokenizer(uint64_t fingerprint) const;

 private:
  struct Opened;
  explicit TokenFile(std::shared_ptr<const Opened> opened) : opened_(std::move(opened)) {}
  std::shared_ptr<const Opened> opened_;
};

/// A token file, or a list of some, concatenated: for corpora larger than a file
/// should be. A list is a text: the line "multihead token list 1", then for each file a line with the
/// checksum of its tokens (16 hexadecimal digits), a space and its path, which begins at the list's folder.
class TokenFiles {
 public:
  /// Whether the file begins as one or the other does. Throws IoError.
  static bool is_one(const std::string& path);
  /// Reads headers alone, each of which has a checksum of its own. Throws: IoError; FormatError naming the
  /// list's line, for a file with another checksum than the list's or of another tokenizer than the first.
  static TokenFiles open(const std::string& path);
  /// The list of these files, with paths that begin at its folder. Throws as open(); ValueError for none.
  static void write_list(const std::string& path, const std::vector<std::string>& files);

  TokenView tokens() const;
  const std::vector<TokenFile>& files() const { return content_->files; }
  /// Checksum of everything.
  uint64_t checksum() const;
  /// Reads the contents of every `step`-th file from number `first` on, on all threads: TokenFile::verify().
  void verify(int first = 0, int step = 1) const;
  void check_tokenizer(uint64_t fingerprint) const { files().front().check_tokenizer(fingerprint); }

 private:
  struct Content {
    std::vector<TokenFile> files;
    std::vector<TokenPart> parts;
  };
  explicit TokenFiles(std::vector<TokenFile> files);
  std::shared_ptr<const Content> content_;
};

/// Writes a token file in pieces; it appears complete, when finish() returns, or not at all.
class TokenFileWriter {
 public:
  /// Tokens take 2 bytes if the vocabulary allows, else 4. Throws IoError; ValueError for a bad vocab_size.
  TokenFileWriter(const std::string& path, int64_t vocab_size, uint64_t tokenizer_fingerprint);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  /// Throws ValueError for a token outside the vocabulary (nothing of this piece is written then).
  void append(std::span<const int32_t> tokens);
  /// Returns the number of tokens written.
  int64_t finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace multihead::text
