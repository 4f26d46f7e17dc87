#include "multihead/train/data/encode_file.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/text/corpus/corpus.h"

namespace multihead::train {
namespace {

using distributed::Group;
using Ids = std::vector<int32_t>;

constexpr int64_t kTogether = 8;  // pieces that a rank's threads encode at a time
constexpr int64_t kFailed = -1;

// Whether a text may be cut at a space where special tokens are recognised: none holds a space or takes those
// after it (rstrip).
bool cuts_at_spaces(const text::Tokenizer& tokenizer) {
  const auto ids = [&](const std::string& text) {
    return tokenizer.encode(text, {.parse_special = true, .add_template = false});
  };
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) continue;
    const std::string& token = tokenizer.token(id);
    Ids apart = ids(token);
    const Ids rest = ids(" a");
    apart.insert(apart.end(), rest.begin(), rest.end());
    if (token.find(' ') != token.npos || apart != ids(token + " a")) return false;
  }
  return true;
}

Ids encoded(text::TextPieces& pieces, int64_t first, const text::Tokenizer& tokenizer, bool parse_special) {
  const auto count = static_cast<size_t>(std::clamp<int64_t>(pieces.count() - first, 0, kTogether));
  std::vector<text::TextPieces::Range> ranges;
  for (size_t i = 0; i < count; ++i) ranges.push_back(pieces.range(first + static_cast<int64_t>(i)));
  std::vector<Ids> parts(count);
  parallel_for(static_cast<int64_t>(count), [&](int64_t i, int) {
    const auto n = static_cast<size_t>(i);
    if (ranges[n].begin == ranges[n].end) return;
    parts[n] =
        tokenizer.encode(pieces.read(ranges[n]), {.parse_special = parse_special, .add_template = false});
  });
  Ids all;
  for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Holds messages that have been sent until they have arrived.
struct Parcel {
  int64_t size = 0;
  Ids ids;
  std::vector<distributed::MessagePtr> messages;

  void send(Group& group) {
    messages.push_back(group.isend(0, std::as_bytes(std::span(&size, 1))));
    if (!ids.empty()) messages.push_back(group.isend(0, std::as_bytes(std::span(ids))));
  }
  void wait() {
    for (const distributed::MessagePtr& message : messages) message->wait();
    messages.clear();
  }
};

Ids received(Group& group, int from, const std::string& data) {
  int64_t size = 0;
  group.recv(from, std::as_writable_bytes(std::span(&size, 1)));
  if (size == kFailed) {
    text::read_text(data);  // says why, if it is the text
    throw GroupError(concat("encode: rank ", from, " has failed"));
  }
  Ids ids(static_cast<size_t>(size));
  if (!ids.empty()) group.recv(from, std::as_writable_bytes(std::span(ids)));
  return ids;
}

}  // namespace

int64_t encode_file(Group& group, const std::string& data, const std::string& out,
                    const text::Tokenizer& tokenizer, uint64_t piece, bool parse_special) {
  if (parse_special && !cuts_at_spaces(tokenizer)) piece = FileReader(data).size() + 1;
  std::optional<text::TokenFileWriter> writer;
  if (group.rank() == 0) writer.emplace(out, tokenizer.vocab_size(), tokenizer.fingerprint());
  Parcel parcel;
  try {
    text::TextPieces pieces(data, tokenizer, piece);
    const int64_t round = kTogether * group.size();
    for (int64_t first = 0; first < pieces.count(); first += round) {
      Ids ids = encoded(pieces, first + kTogether * group.rank(), tokenizer, parse_special);
      if (!writer) {
        parcel.wait();
        parcel.size = std::ssize(ids), parcel.ids = std::move(ids);
        parcel.send(group);
        continue;
      }
      writer->append(ids);
      for (int rank = 1; rank < group.size(); ++rank) writer->append(received(group, rank, data));
    }
    parcel.wait();
  } catch (const GroupError&) {
    throw;
  } catch (const std::exception&) {
    if (!writer) {
      parcel.wait();
      parcel.size = kFailed, parcel.ids.clear();
      parcel.send(group);
      parcel.wait();
    }
    throw;
  }
  return writer ? writer->finish() : 0;
}

}  // namespace multihead::train
