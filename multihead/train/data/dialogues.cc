#include "multihead/train/data/dialogues.h"

#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/core/text/json.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/text/corpus/corpus.h"
#include "multihead/text/corpus/table.h"

namespace multihead::train {
namespace {

using text::Offsets;

// Characters for private use that enclose the spelling of a special token in a message, on its way through the
// template.
constexpr std::string_view kOpen = "\xEF\xA3\xB0", kClose = "\xEF\xA3\xB1";
// The same around what a template marks as generated.
constexpr std::string_view kBegin = "\xEF\xA3\xB2", kEnd = "\xEF\xA3\xB3";

// The template that writes kBegin and kEnd at {% generation %} and {% endgeneration %}; empty: it marks nothing.
std::string marking(const std::string& source) {
  std::string out;
  bool marks = false;
  for (size_t at = 0; at < source.size();) {
    const size_t open = source.find("{%", at),
                 close = open == source.npos ? open : source.find("%}", open + 2);
    if (close == source.npos) {
      out += source.substr(at);
      break;
    }
    std::string inner = source.substr(open + 2, close - open - 2);
    std::string left, right;  // of white space control
    if (inner.starts_with('-') || inner.starts_with('+')) left = inner.front(), inner.erase(0, 1);
    if (inner.ends_with('-') || inner.ends_with('+')) right = inner.back(), inner.pop_back();
    std::erase_if(inner, [](char c) { return c == ' ' || c == '\n' || c == '\t'; });
    out += source.substr(at, open - at);
    if (inner == "generation") {
      out += concat("{%", left, " generation %}{% if true %}", kBegin, "{% endif ", right, "%}");
    } else if (inner == "endgeneration") {
      out += concat("{%", left, " if true %}", kEnd, "{% endif %}{% endgeneration ", right, "%}");
    } else {
      out += source.substr(open, close + 2 - open);
    }
    marks = marks || inner == "generation";
    at = close + 2;
  }
  return marks ? out : "";
}

// The spellings that a message must not have as tokens.
class Spellings {
 public:
  explicit Spellings(const text::Tokenizer& tokenizer) {
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      if (tokenizer.is_special(id) && !tokenizer.token(id).empty()) words_.push_back(tokenizer.token(id));
    }
    std::ranges::sort(words_, std::greater(), &std::string::size);
  }

  std::string enclosed(const std::string& text) const {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const auto found = std::ranges::find_if(
          words_, [&](const std::string& word) { return text.compare(at, word.size(), word) == 0; });
      if (found == words_.end()) {
        out += text[at++];
      } else {
        out += concat(kOpen, *found, kClose);
        at += found->size();
      }
    }
    return out;
  }

  // In all strings of a value but the names of roles and kinds.
  Json enclosed(const Json& value) const {
    if (value.is_string()) return enclosed(value.as_string());
    if (value.is_array()) {
      Json list = Json::array();
      for (const Json& item : value.items()) list.push_back(enclosed(item));
      return list;
    }
    if (!value.is_object()) return value;
    Json object = Json::object();
    for (const JsonMember& member : value.members()) {
      const bool is_name = member.key.view() == "role" || member.key.view() == "type";
      object[member.key] = is_name ? member.value : enclosed(member.value);
    }
    return object;
  }

 private:
  std::vector<std::string> words_;
};

// A rendered conversation: its text without marks, and what they enclosed.
struct Rendered {
  std::string text;
  std::vector<Offsets> plain, generated;
};

Rendered without_marks(const std::string& marked) {
  Rendered out;
  size_t opened = 0, begun = 0;
  for (size_t at = 0; at < marked.size();) {
    const std::string_view mark = std::string_view(marked).substr(at, kOpen.size());
    const size_t size = out.text.size();
    if (mark == kOpen) opened = size;
    if (mark == kClose) out.plain.push_back({opened, size});
    if (mark == kBegin) begun = size;
    if (mark == kEnd) out.generated.push_back({begun, size});
    if (mark == kOpen || mark == kClose || mark == kBegin || mark == kEnd) {
      at += mark.size();
    } else {
      out.text += marked[at++];
    }
  }
  return out;
}

// Ids with their places, special tokens in `plain` read as characters: what lies between the others is encoded
// by itself, as it is between all special tokens.
text::Encoding encoded(const text::Tokenizer& tokenizer, const Rendered& rendered) {
  const text::EncodeOptions options = {.parse_special = true, .add_template = false};
  text::Encoding whole = tokenizer.encoding(rendered.text, options);
  if (rendered.plain.empty()) return whole;
  text::Encoding out;
  size_t begin = 0;
  const auto add_plain = [&](size_t end) {
    if (begin == end) return;
    const text::Encoding part = tokenizer.encoding(std::string_view(rendered.text).substr(begin, end - begin),
                                                   {.add_template = false});
    out.ids.insert(out.ids.end(), part.ids.begin(), part.ids.end());
    for (const Offsets& place : part.offsets) out.offsets.push_back({begin + place.begin, begin + place.end});
  };
  for (size_t i = 0; i < whole.ids.size(); ++i) {
    const Offsets place = whole.offsets[i];
    const bool is_plain = std::ranges::any_of(
        rendered.plain, [&](const Offsets& p) { return place.begin < p.end && p.begin < place.end; });
    if (is_plain || !tokenizer.is_special(whole.ids[i])) continue;
    add_plain(place.begin);
    out.ids.push_back(whole.ids[i]), out.offsets.push_back(place);
    begin = place.end;
  }
  add_plain(rendered.text.size());
  return out;
}

bool is_empty(const Json& value) {
  return value.is_null() || value == Json("") ||
         ((value.is_array() || value.is_object()) && value.size() == 0);
}

// Keys by which others leave an answer out, weigh it or set it against another.
void refuse_unlearned(const Json& object, const std::string& where) {
  constexpr std::string_view kShares[] = {"weight", "train", "label"};
  constexpr std::string_view kOthers[] = {"chosen", "rejected", "functions", "train_detail"};
  for (const JsonMember& member : object.members()) {
    const std::string_view key = member.key.view();
    const Json& value = member.value;
    const bool is_share =
        value == Json(false) || (value.is_number() && value != Json(1) && value != Json(1.0));
    const bool is_class = key == "label" && value.is_number() && value != Json(0);
    MH_CHECK(!is_share || is_class || std::ranges::count(kShares, key) == 0, FormatError, where, ": ",
             quote(key), " must be 1 or true, got ", value.dump().substr(0, 40),
             ": every answer is learned alike");
    MH_CHECK(is_empty(value) || std::ranges::count(kOthers, key) == 0, FormatError, where, ": ", quote(key),
             " is not supported: it would be learned as if it were not there");
  }
}

class Reader {
 public:
  explicit Reader(const text::Tokenizer& tokenizer)
      : tokenizer_(tokenizer), spellings_(tokenizer), marking_(marking(tokenizer.chat_template())) {}

  Dialogue read(const Json& row, const std::string& where) const {
    const Json *messages = row.find("messages"), *prompt = row.find("prompt"),
               *completion = row.find("completion"), *text = row.find("text");
    MH_CHECK((messages != nullptr) + (prompt != nullptr) + (text != nullptr) == 1 &&
                 (prompt == nullptr) == (completion == nullptr),
             FormatError, where, " must have \"messages\", \"prompt\" and \"completion\", or \"text\"");
    if (text != nullptr) return plain("", as_text(*text, "text", where));  // beside anything
    refuse_unlearned(row, where);
    if (messages != nullptr) return conversation(row, *messages, 0, where);
    if (prompt->is_string() && completion->is_string()) {
      return plain(prompt->as_string(), completion->as_string());
    }
    MH_CHECK(prompt->is_array() && completion->is_array(), FormatError, where,
             ": \"prompt\" and \"completion\" must both be texts or lists of messages");
    Json all = *prompt;
    for (const Json& message : completion->items()) all.push_back(message);
    return conversation(row, all, prompt->size(), where);
  }

 private:
  static std::string as_text(const Json& value, const char* key, const std::string& where) {
    MH_CHECK(value.is_string(), FormatError, where, ": ", quote(key), " must be a string, got ",
             value.dump().substr(0, 40));
    return value.as_string();
  }

  // All of `text` is learned, and the end; `prompt` is not.
  Dialogue plain(const std::string& prompt, const std::string& text) const {
    Dialogue out;
    out.ids = tokenizer_.encode(prompt + text);
    const size_t before = prompt.empty() ? 0 : tokenizer_.encode(prompt).size();
    if (const auto end = tokenizer_.eos_id(); end && (out.ids.empty() || out.ids.back() != *end)) {
      out.ids.push_back(*end);
    }
    out.is_target.resize(out.ids.size());
    for (size_t i = std::max<size_t>(before, 1); i < out.ids.size(); ++i) out.is_target[i] = true;
    return out;
  }

  static void check_messages(const Json& messages, const std::string& where) {
    MH_CHECK(messages.is_array() && messages.size() > 0, FormatError, where,
             ": \"messages\" must be a list of objects such as {\"role\": \"user\", \"content\": …}");
    for (const Json& message : messages.items()) {
      const Json* role = message.find("role");
      MH_CHECK(role != nullptr && role->is_string(), FormatError, where, ": a message must have a \"role\"");
      MH_CHECK(message.contains("content") || message.contains("tool_calls"), FormatError, where,
               ": a message must have \"content\"");
    }
    const std::string all = messages.dump();
    for (const std::string_view mark : {kOpen, kClose, kBegin, kEnd}) {
      MH_CHECK(all.find(mark) == all.npos, FormatError, where,
               ": the characters U+F8F0 to U+F8F3 are not supported in messages");
    }
  }

  static Json variables_of(const Json& row) {
    Json variables = Json::object();
    if (const Json* tools = row.find("tools"); tools != nullptr && !tools->is_null())
      variables["tools"] = *tools;
    if (const Json* others = row.find("chat_template_kwargs")) {
      for (const JsonMember& member : others->members()) variables[member.key] = member.value;
    }
    return variables;
  }

  // The targets are what the template marks as generated, or what the assistant's messages add to the text before
  // them, whose last words invite them: from the message `first` on.
  Dialogue conversation(const Json& row, const Json& messages, size_t first, const std::string& where) const {
    check_messages(messages, where);
    for (size_t i = first; i < messages.size(); ++i) {
      if (messages.at(i).at("role") == Json("assistant")) refuse_unlearned(messages.at(i), where);
    }
    const Json variables = variables_of(row), marked = spellings_.enclosed(messages);
    const auto render = [&](size_t count, bool invites) {
      Json some = Json::array();
      for (size_t i = 0; i < count; ++i) some.push_back(marked.at(i));
      return tokenizer_.apply_chat_template(some, invites, variables, marking_);
    };
    try {
      if (!marking_.empty()) {
        const Rendered whole = without_marks(render(messages.size(), false));
        const std::string before = first == 0 ? "" : without_marks(render(first, false)).text;
        MH_CHECK(whole.text.starts_with(before), FormatError, where,
                 ": the chat template writes the prompt otherwise once the completion follows");
        std::vector<Offsets> answers = whole.generated;
        std::erase_if(answers, [&](const Offsets& answer) { return answer.begin < before.size(); });
        MH_CHECK(!answers.empty(), FormatError, where,
                 ": the chat template marks nothing of it as generated, so that there is nothing to learn");
        return marked_targets(encoded(tokenizer_, whole), answers);
      }
      const std::string whole = render(messages.size(), false);
      std::vector<Offsets> answers;
      for (size_t i = first; i < messages.size(); ++i) {
        if (messages.at(i).at("role").as_string() != "assistant") continue;
        const std::string before = i == 0 ? "" : render(i, true), after = render(i + 1, false);
        MH_CHECK(
            after.starts_with(before) && whole.starts_with(after), FormatError, where, ": message ", i + 1,
            ": the chat template writes a turn otherwise once others follow; give conversations that end "
            "with their only answer");
        answers.push_back({without_marks(before).text.size(), without_marks(after).text.size()});
      }
      MH_CHECK(!answers.empty(), FormatError, where, ": no message of the assistant to learn");
      return marked_targets(encoded(tokenizer_, without_marks(whole)), answers);
    } catch (const ValueError& error) {  // of the template
      throw FormatError(concat(where, ": ", error.what()));
    }
  }

  static Dialogue marked_targets(const text::Encoding& encoding, const std::vector<Offsets>& answers) {
    Dialogue out = {encoding.ids, std::vector<bool>(encoding.ids.size())};
    for (size_t i = 1; i < encoding.ids.size(); ++i) {
      const Offsets& token = encoding.offsets[i];
      out.is_target[i] = std::ranges::any_of(  // part of an answer is enough, as in transformers
          answers,
          [&](const Offsets& answer) { return token.end > answer.begin && token.begin < answer.end; });
    }
    return out;
  }

  const text::Tokenizer& tokenizer_;
  Spellings spellings_;
  std::string marking_;  // empty: the template has no marks
};

}  // namespace

int64_t Dialogue::targets() const { return std::ranges::count(is_target, true); }

std::vector<int32_t> Dialogue::learned() const {
  std::vector<int32_t> some;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (is_target[i]) some.push_back(ids[i]);
  }
  return some;
}

bool holds_dialogues(const std::string& path) {
  using enum text::TableFormat;
  return text::format_of(path, by_name, lines) == jsonl;
}

Dialogues read_dialogues(const std::string& path, const text::Tokenizer& tokenizer, int64_t length) {
  const std::string content = text::read_text(path, {.in_lines = true});
  std::vector<std::pair<std::string_view, int64_t>> lines;
  text::each_line(content, [&](std::string_view line, int64_t number) { lines.emplace_back(line, number); });
  MH_CHECK(!lines.empty(), FormatError, path, ": the file has no rows");
  const Reader reader(tokenizer);
  std::vector<Dialogue> read(lines.size());
  parallel_for(std::ssize(lines), [&](int64_t i, int) {
    const auto& [line, number] = lines[static_cast<size_t>(i)];
    const std::string where = concat(path, ": line ", number);
    const Json row = Json::parse(line, where);
    MH_CHECK(row.is_object(), FormatError, where, " must be an object, such as {\"messages\": …}");
    read[static_cast<size_t>(i)] = reader.read(row, where);
  });
  Dialogues out;
  for (Dialogue& one : read) {
    if (std::ssize(one.ids) > length) {
      ++out.cut;
      one.ids.resize(static_cast<size_t>(length)), one.is_target.resize(static_cast<size_t>(length));
    }
    if (one.targets() == 0) {
      ++out.skipped;
    } else {
      out.all.push_back(std::move(one));
    }
  }
  MH_CHECK(!out.all.empty(), FormatError, path, ": nothing to learn within --context ", length,
           " tokens of any row");
  return out;
}

DialogueBatch dialogue_batch(const std::vector<Dialogue>& all, const std::vector<int64_t>& rows) {
  std::vector<std::vector<int32_t>> sequences;
  std::vector<int64_t> places, targets;
  int64_t first = 0;
  for (const int64_t row : rows) {
    const Dialogue& one = all[static_cast<size_t>(row)];
    for (size_t i = 1; i < one.ids.size(); ++i) {
      if (!one.is_target[i]) continue;
      places.push_back(first + static_cast<int64_t>(i) - 1);
      targets.push_back(one.ids[i]);
    }
    first += std::ssize(one.ids);
    sequences.push_back(one.ids);
  }
  const Shape shape = {std::ssize(places)};
  return {models::TokenRows::of(sequences), Tensor::of<int64_t>(shape, places),
          Tensor::of<int64_t>(shape, targets)};
}

}  // namespace multihead::train
