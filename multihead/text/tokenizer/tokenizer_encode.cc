// Ids of texts and pairs, with the template around them.
#include <algorithm>
#include <functional>

#include "multihead/core/error.h"
#include "multihead/text/tokenizer/encoder-inl.h"

namespace multihead::text {
namespace {

using Model = Tokenizer::Model;

bool is_space_at(std::string_view text, size_t at) {
  return char_class(decode_utf8(text, at).code_point) == CharClass::space;
}

// The character that holds byte `at`; an invalid byte is one.
std::pair<size_t, size_t> character_at(std::string_view text, size_t at) {
  for (size_t back = 0; back <= std::min<size_t>(at, 3); ++back) {
    const Utf8Char c = decode_utf8(text, at - back);
    const auto length = static_cast<size_t>(c.length);
    if (c.code_point >= 0 && length > back) return {at - back, at - back + length};
  }
  return {at, at + 1};
}

// Tokens come in the order of the text, so the place moves by little from one offset to the next.
class CharacterCount {
 public:
  explicit CharacterCount(std::string_view text) : text_(text) {}

  size_t up_to(size_t byte) {
    MH_CHECK(byte <= text_.size(), ValueError, "count_characters: offset ", byte, " is beyond the text of ",
             text_.size(), " bytes");
    for (; at_ < byte; ++characters_) at_ += static_cast<size_t>(decode_utf8(text_, at_).length);
    for (; at_ > byte; --characters_) at_ = character_at(text_, at_ - 1).first;
    return characters_;
  }

 private:
  std::string_view text_;
  size_t at_ = 0, characters_ = 0;
};

size_t count_spaces(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size() && is_space_at(text, at); ++count)
    at += static_cast<size_t>(decode_utf8(text, at).length);
  return count;
}

size_t count_last_spaces(std::string_view text) {
  size_t count = 0;
  for (size_t end = text.size(); end > 0; ++count) {
    const size_t begin = character_at(text, end - 1).first;
    if (!is_space_at(text, begin)) break;
    end = begin;
  }
  return count;
}

// As the ByteLevel post-processor does it: a character of the text for each of the token's name.
void trim(std::string_view text, std::string_view name, bool trims_prefix, bool is_first, Offsets& offsets) {
  Rewritten token(false);
  replace_all(name, "\xC4\xA0", " ", token);  // the symbol of a space
  size_t front = count_spaces(token.text), back = count_last_spaces(token.text);
  if (front == 1 && trims_prefix && (is_first || offsets.begin == 0)) front = 0;
  for (; front > 0 && offsets.begin < offsets.end; --front)
    offsets.begin += static_cast<size_t>(decode_utf8(text, offsets.begin).length);
  for (; back > 0 && offsets.end > offsets.begin; --back)
    offsets.end = character_at(text, offsets.end - 1).first;
}

// The ids of a text, and its tokens' places on request.
struct Part {
  std::vector<int32_t> ids = {};
  std::vector<Offsets> offsets = {};
  std::vector<int32_t> spelling = {};
  std::vector<std::string> spellings = {};

  void shorten(size_t size, bool from_left) {
    if (size >= ids.size()) return;
    const auto cut = [&](auto& of) {
      if (of.empty()) return;
      from_left ? of.erase(of.begin(), of.end() - static_cast<std::ptrdiff_t>(size))
                : of.erase(of.begin() + static_cast<std::ptrdiff_t>(size), of.end());
    };
    cut(offsets);
    cut(spelling);
    cut(ids);
  }
};

Part encoded(const Model& model, std::string_view text, bool parse_special, bool with_offsets) {
  Part part;
  Places places;
  Encoder(model, part.ids, with_offsets ? &places : nullptr).text(text, parse_special);
  const std::vector<TokenSpan>& spans = places.spans;
  part.spellings = std::move(places.spellings);
  part.offsets.reserve(spans.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    Offsets offsets = {character_at(text, spans[i].first).first, character_at(text, spans[i].last).second};
    part.offsets.push_back(offsets);
    part.spelling.push_back(spans[i].spelling);
  }
  return part;
}

// After cut(), which decides what a text's first token is.
void trim(const Model& model, std::string_view text, Part& part) {
  for (size_t i = 0; model.trims_offsets && i < part.offsets.size(); ++i) {
    const int32_t place = part.spelling[i];
    const std::string& name = place < 0 ? model.tokens[static_cast<size_t>(part.ids[i])]
                                        : part.spellings[static_cast<size_t>(place)];
    trim(text, name, model.trims_prefix, i == 0, part.offsets[i]);
  }
}

// The sizes to which two texts are cut to fit `room` ids: the longer one is cut first.
std::pair<size_t, size_t> shortened(size_t first, size_t second, size_t room) {
  if (first + second <= room) return {first, second};
  const size_t less = std::min(first, second);
  if (2 * less > room) {
    const bool odd_goes_to_first = first > second;
    return {room / 2 + (odd_goes_to_first ? room % 2 : 0), room / 2 + (odd_goes_to_first ? 0 : room % 2)};
  }
  return first < second ? std::pair(first, room - first) : std::pair(room - second, second);
}

// How much of the texts is left. Throws ValueError where the file's strategy cannot make room.
void cut(std::span<Part> parts, const Model& model, const EncodeOptions& options, size_t around) {
  const bool as_file = options.as_file && model.truncation;
  const Truncation how = as_file ? *model.truncation : Truncation();
  const bool from_left = options.as_file ? how.from_left : model.cuts_left;
  if (!as_file && options.max_length == 0) return;
  const size_t max_length = options.max_length > 0 ? options.max_length : how.max_length;
  MH_CHECK(max_length >= around, ValueError, "tokenizer: max_length ", max_length, " is less than the ",
           around, " ids of the template");
  const size_t room = max_length - around, first = parts[0].ids.size(),
               second = parts.size() > 1 ? parts[1].ids.size() : 0;
  if (first + second <= room) return;
  if (how.strategy == Truncation::Strategy::longest_first) {
    const auto [a, b] = parts.size() > 1 ? shortened(first, second, room) : std::pair(room, size_t{0});
    parts[0].shorten(a, from_left);
    if (parts.size() > 1) parts[1].shorten(b, from_left);
    return;
  }
  const size_t target = how.strategy == Truncation::Strategy::only_second ? 1 : 0,
               excess = first + second - room;
  MH_CHECK(target < parts.size() && parts[target].ids.size() > excess, ValueError, "tokenizer: max_length ",
           max_length, " leaves no room for the ", target == 0 ? "first" : "second",
           " text, the only one that may be truncated (truncation.strategy)");
  parts[target].shorten(parts[target].ids.size() - excess, from_left);
}

void pad_to(Encoding& encoding, size_t length, const Model& model) {
  const Padding& padding = *model.padding;
  const std::string& name = model.padding_name;
  const size_t size = encoding.ids.size();
  if (encoding.attention_mask.empty()) encoding.attention_mask.assign(size, 1);
  if (length <= size) return;
  const auto grow = [&](auto& of, auto value) {
    if (of.size() == size) of.insert(padding.on_left ? of.begin() : of.end(), length - size, value);
  };
  grow(encoding.type_ids, padding.type_id);
  grow(encoding.offsets, Offsets());
  grow(encoding.sequence_ids, -1);
  grow(encoding.spelling, name.empty() ? -1 : static_cast<int32_t>(encoding.spellings.size()));
  if (!name.empty()) encoding.spellings.push_back(name);
  grow(encoding.attention_mask, 0);
  grow(encoding.ids, padding.id);
}

size_t padded_length(size_t longest, const Padding& padding) {
  const size_t length = padding.length > 0 ? padding.length : longest, step = padding.multiple_of;
  return step > 0 && length % step > 0 ? length + step - length % step : length;
}

Encoding padded(Encoding encoding, const Model& model, const EncodeOptions& options) {
  if (options.as_file && model.padding)
    pad_to(encoding, padded_length(encoding.ids.size(), *model.padding), model);
  return encoding;
}

// A template, as far as the options request it.
std::vector<TemplateItem> items_of(std::vector<TemplateItem> items, const EncodeOptions& options) {
  const auto is_text = [](const TemplateItem& item) { return item.text >= 0; };
  if (!options.add_template) std::erase_if(items, std::not_fn(is_text));
  if (!options.end) return items;
  const auto text = std::find_if(items.rbegin(), items.rend(), is_text);  // the last one
  const bool ends =
      std::count_if(items.rbegin(), text, [&](const auto& item) { return item.id == *options.end; }) > 0;
  const int32_t type_id = text->type_id;
  if (!ends) items.push_back({.id = *options.end, .type_id = type_id});
  return items;
}

Encoding joined(const std::vector<TemplateItem>& items, std::span<const Part> parts, bool with_offsets) {
  Encoding out;
  for (const TemplateItem& item : items) {
    if (item.text < 0) {
      out.ids.push_back(item.id);
    } else {
      const Part& part = parts[static_cast<size_t>(item.text)];
      if (with_offsets) {
        out.offsets.resize(out.ids.size());
        out.spelling.resize(out.ids.size(), -1);
        for (const int32_t place : part.spelling)
          out.spelling.push_back(place < 0 ? place : place + static_cast<int32_t>(out.spellings.size()));
        out.spellings.insert(out.spellings.end(), part.spellings.begin(), part.spellings.end());
      }
      out.ids.insert(out.ids.end(), part.ids.begin(), part.ids.end());
      out.offsets.insert(out.offsets.end(), part.offsets.begin(), part.offsets.end());
    }
    out.type_ids.resize(out.ids.size(), item.type_id);
    if (with_offsets) out.sequence_ids.resize(out.ids.size(), item.text);
  }
  if (with_offsets) {
    out.offsets.resize(out.ids.size());
    out.spelling.resize(out.ids.size(), -1);
  }
  return out;
}

}  // namespace

void count_characters(Encoding& encoding, std::string_view first, std::string_view second) {
  // Begins and ends each come in the order of the text; the bytes of a long unknown word all have both of
  // its.
  struct Counts {
    CharacterCount begin, end;
  } counts[] = {{CharacterCount(first), CharacterCount(first)},
                {CharacterCount(second), CharacterCount(second)}};
  for (size_t i = 0; i < encoding.offsets.size(); ++i) {
    if (encoding.sequence_ids[i] < 0) continue;
    Counts& count = counts[encoding.sequence_ids[i]];
    Offsets& span = encoding.offsets[i];
    span = {count.begin.up_to(span.begin), count.end.up_to(span.end)};
  }
}

std::vector<std::string> Tokenizer::tokens(const Encoding& encoding) const {
  std::vector<std::string> texts;
  texts.reserve(encoding.ids.size());
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    const int32_t place = i < encoding.spelling.size() ? encoding.spelling[i] : -1;
    texts.push_back(place < 0 ? token(encoding.ids[i]) : encoding.spellings[static_cast<size_t>(place)]);
  }
  return texts;
}

void Tokenizer::pad(std::span<Encoding> batch) const {
  MH_CHECK(model_->padding.has_value(), ValueError, "tokenizer: tokenizer.json has no padding");
  size_t longest = 0;
  for (const Encoding& one : batch) longest = std::max(longest, one.ids.size());
  for (Encoding& one : batch) pad_to(one, padded_length(longest, *model_->padding), *model_);
}

Encoding Tokenizer::single(std::string_view text, const EncodeOptions& options, bool with_offsets) const {
  const std::vector<TemplateItem> items = items_of(model_->single, options);
  Part part = encoded(*model_, text, options.parse_special, with_offsets);
  cut({&part, 1}, *model_, options, items.size() - 1);
  trim(*model_, text, part);
  return padded(joined(items, {&part, 1}, with_offsets), *model_, options);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  return single(text, options, false).ids;
}

Encoding Tokenizer::encoding(std::string_view text, const EncodeOptions& options) const {
  return single(text, options, true);
}

Encoding Tokenizer::encoding(std::string_view first, std::string_view second,
                             const EncodeOptions& options) const {
  return both(first, second, options, true);
}

Encoding Tokenizer::encode_pair(std::string_view first, std::string_view second,
                                const EncodeOptions& options) const {
  return both(first, second, options, false);
}

Encoding Tokenizer::both(std::string_view first, std::string_view second, const EncodeOptions& options,
                         bool with_offsets) const {
  MH_CHECK(
      !model_->pair.empty(), ValueError,
      "tokenizer: has no template for pairs of texts: post_processor of tokenizer.json would say how they "
      "are put together");
  const std::vector<TemplateItem> items = items_of(model_->pair, options);
  Part parts[] = {encoded(*model_, first, options.parse_special, with_offsets),
                  encoded(*model_, second, options.parse_special, with_offsets)};
  const auto around = static_cast<size_t>(
      std::count_if(items.begin(), items.end(), [](const TemplateItem& item) { return item.text < 0; }));
  cut(parts, *model_, options, around);
  trim(*model_, first, parts[0]), trim(*model_, second, parts[1]);
  Encoding pair = joined(items, parts, with_offsets);
  if (model_->lacks_types && !options.as_file) std::ranges::fill(pair.type_ids, 0);
  return padded(std::move(pair), *model_, options);
}

}  // namespace multihead::text
