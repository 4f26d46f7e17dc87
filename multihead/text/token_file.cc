#include "multihead/text/token_file.h"

#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "multihead/core/checksum.h"
#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/json.h"

namespace multihead::text {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr char kMagic[8] = {'M', 'H', 'T', 'O', 'K', 'E', 'N', 'S'};
constexpr uint32_t kVersion = 1;

struct Header {
  char magic[8];
  uint32_t version, width;
  uint64_t count, vocab_size, fingerprint, checksum, zero, header_checksum;
};
static_assert(sizeof(Header) == 64);

uint64_t header_checksum(const Header& header) {
  return checksum({reinterpret_cast<const char*>(&header), offsetof(Header, header_checksum)});
}

void check_header(const Header& header, uint64_t file_size, const std::string& name) {
  MH_CHECK(std::memcmp(header.magic, kMagic, sizeof kMagic) == 0, FormatError, name,
           ": not a token file (it does not start with MHTOKENS)");
  MH_CHECK(header.version == kVersion, FormatError, name, ": version ", header.version,
           " of the token file format; this program knows version ", kVersion);
  MH_CHECK(header_checksum(header) == header.header_checksum, FormatError, name,
           ": the header (bytes 0 to 63) is damaged: wrong checksum");
  MH_CHECK(header.width == 2 || header.width == 4, FormatError, name,
           ": bytes per token must be 2 or 4, got ", header.width);
  MH_CHECK(header.vocab_size >= 1 && header.vocab_size < INT32_MAX, FormatError, name,
           ": vocabulary size must be in [1, 2147483647), got ", header.vocab_size);
  MH_CHECK(header.zero == 0, FormatError, name, ": reserved bytes 48 to 55 must be zero");
  const uint64_t held = file_size - sizeof(Header);
  MH_CHECK(header.count == held / header.width && held % header.width == 0, FormatError, name, ": ",
           header.count, " tokens of ", header.width, " bytes expected behind the header, got ", held,
           " bytes");
}

}  // namespace

void TokenView::copy(int64_t begin, std::span<int32_t> out) const {
  if (out.empty()) return;  // memcpy minds null pointers even then
  if (width_ == 4) {
    std::memcpy(out.data(), static_cast<const int32_t*>(data_) + begin, out.size_bytes());
  } else {
    const auto* from = static_cast<const uint16_t*>(data_) + begin;
    for (size_t i = 0; i < out.size(); ++i) out[i] = from[i];
  }
}

TokenView TokenView::sub(int64_t begin, int64_t size) const {
  MH_CHECK(begin >= 0 && size >= 0 && begin <= size_ - size, ValueError, "TokenView: tokens [", begin, ", ",
           begin, " + ", size, ") must lie in [0, ", size_, ")");
  return {static_cast<const char*>(data_) + begin * width_, size, width_};
}

struct TokenFile::Mapping {
  void* address = MAP_FAILED;
  size_t size = 0;
  Header header;

  ~Mapping() {
    if (address != MAP_FAILED) ::munmap(address, size);
  }
  const unsigned char* payload() const { return static_cast<const unsigned char*>(address) + sizeof(Header); }
  TokenView tokens() const {
    return {payload(), static_cast<int64_t>(header.count), static_cast<int>(header.width)};
  }
};

TokenFile TokenFile::open(const std::filesystem::path& path, const Options& options) {
  const std::string name = path.string();
  const FileReader file(name);
  auto mapping = std::make_shared<Mapping>();
  mapping->size = file.size();
  MH_CHECK(mapping->size >= sizeof(Header), FormatError, name, ": a token file has at least ", sizeof(Header),
           " bytes, got ", mapping->size);
  mapping->address = ::mmap(nullptr, mapping->size, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  MH_CHECK(mapping->address != MAP_FAILED, IoError, "cannot map ", quote(name, 400), ": ",
           std::generic_category().message(errno));
  std::memcpy(&mapping->header, mapping->address, sizeof(Header));
  check_header(mapping->header, mapping->size, name);
  if (!options.verify) return TokenFile(std::move(mapping));

  Checksum sum;
  sum.update(mapping->payload(), mapping->size - sizeof(Header));
  MH_CHECK(sum.value() == mapping->header.checksum, FormatError, name,
           ": the tokens are damaged: wrong checksum");
  const TokenView tokens = mapping->tokens();
  for (int64_t i = 0; i < tokens.size(); ++i)
    MH_CHECK(static_cast<uint32_t>(tokens[i]) < mapping->header.vocab_size, FormatError, name, ": token ",
             static_cast<uint32_t>(tokens[i]), " at offset ", sizeof(Header) + i * mapping->header.width,
             " is outside the vocabulary of ", mapping->header.vocab_size);
  return TokenFile(std::move(mapping));
}

TokenView TokenFile::tokens() const { return mapping_->tokens(); }
int64_t TokenFile::vocab_size() const { return static_cast<int64_t>(mapping_->header.vocab_size); }
uint64_t TokenFile::tokenizer_fingerprint() const { return mapping_->header.fingerprint; }

void TokenFile::check_tokenizer(uint64_t fingerprint) const {
  MH_CHECK(fingerprint == mapping_->header.fingerprint, ValueError,
           "token file: it was written with another tokenizer (fingerprint ", mapping_->header.fingerprint,
           ", this one has ", fingerprint, ")");
}

struct TokenFileWriter::State {
  AtomicFile file;
  Header header;
  Checksum sum;
  std::vector<uint16_t> narrow;
};

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, int64_t vocab_size,
                                 uint64_t fingerprint) {
  MH_CHECK(vocab_size >= 1 && vocab_size < INT32_MAX, ValueError,
           "token file: vocab_size must be in [1, 2147483647), got ", vocab_size);
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.width = vocab_size <= 65536 ? 2 : 4;
  header.vocab_size = static_cast<uint64_t>(vocab_size);
  header.fingerprint = fingerprint;
  state_.reset(new State{AtomicFile(path.string()), header, {}, {}});
  state_->file.contents().write(&header, sizeof header);
}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::append(std::span<const int32_t> tokens) {
  Header& header = state_->header;
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
  Header& header = state_->header;
  header.checksum = state_->sum.value();
  header.header_checksum = header_checksum(header);
  state_->file.contents().rewrite(0, {reinterpret_cast<const char*>(&header), sizeof header});
  state_->file.commit();
  return static_cast<int64_t>(header.count);
}

}  // namespace multihead::text
