#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "multihead/models/files/adapter.h"
#include "multihead/text/corpus/token_labels.h"
#include "multihead/text/tokenizer/tokenizer.h"
#include "python/src/bindings.h"
#include "python/src/path.h"
#include "python/src/tensor/convert.h"

namespace multihead::python {

using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

using text::Tokenizer;

// str or bytes.
std::string to_bytes(nb::handle text) {
  if (PyBytes_Check(text.ptr())) {
    const auto bytes = nb::borrow<nb::bytes>(text);
    return std::string(bytes.c_str(), bytes.size());
  }
  if (!PyUnicode_Check(text.ptr())) throw nb::type_error("Tokenizer: text must be str or bytes");
  return nb::cast<std::string>(text);
}

std::vector<std::string> to_texts(nb::handle texts) {
  std::vector<std::string> result;
  if (PyUnicode_Check(texts.ptr()) || PyBytes_Check(texts.ptr())) {
    result.push_back(to_bytes(texts));
  } else {
    for (nb::handle text : texts) result.push_back(to_bytes(text));
  }
  return result;
}

void check_signals_between_steps(int64_t, int64_t) {
  const Locked locked;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// train(views) on the texts, which live as long.
template <class Train>
Tokenizer trained(nb::handle texts, Train&& train) {
  const std::vector<std::string> owned = to_texts(texts);
  const std::vector<std::string_view> views(owned.begin(), owned.end());
  return unlocked([&] { return train(std::span<const std::string_view>(views)); });
}

Tokenizer train_bpe(nb::handle texts, int64_t vocab_size, int64_t min_frequency, const std::string& eos) {
  const text::BpeOptions options = {.vocab_size = vocab_size,
                                    .min_frequency = min_frequency,
                                    .special = {.eos = eos},
                                    .progress = check_signals_between_steps};
  return trained(texts, [&](auto views) { return Tokenizer::train_bpe(views, options); });
}

Tokenizer train_wordpiece(nb::handle texts, int64_t vocab_size, int64_t min_frequency, bool lowercase) {
  const text::WordPieceOptions options = {.vocab_size = vocab_size,
                                          .min_frequency = min_frequency,
                                          .lowercase = lowercase,
                                          .progress = check_signals_between_steps};
  return trained(texts, [&](auto views) { return Tokenizer::train_wordpiece(views, options); });
}

Tokenizer train_unigram(nb::handle texts, int64_t vocab_size, int64_t max_piece_length) {
  const text::UnigramOptions options = {.vocab_size = vocab_size,
                                        .max_piece_length = max_piece_length,
                                        .progress = check_signals_between_steps};
  return trained(texts, [&](auto views) { return Tokenizer::train_unigram(views, options); });
}

Tokenizer train_characters(nb::handle texts, const std::string& unk) {
  const text::CharacterOptions options = {.special = {.unk = unk}};
  return trained(texts, [&](auto views) { return Tokenizer::train_characters(views, options); });
}

// Token ids have 32 bits; larger integers are refused.
std::vector<int32_t> to_ids(nb::handle ids, const char* who) {
  std::vector<int32_t> tokens;
  for (const int64_t id : to_integers(ids, {who, "ids"})) {
    tokens.push_back(id < 0 || id > INT32_MAX ? -1 : static_cast<int32_t>(id));
  }
  return tokens;
}

// Python's json module would write keys that are no strings as if they were.
void check_keys(nb::handle value) {
  if (PyDict_Check(value.ptr())) {
    for (const auto& [key, item] : nb::borrow<nb::dict>(value)) {
      if (!PyUnicode_Check(key.ptr()))
        throw nb::type_error(
            concat("apply_chat_template: keys must be strings, got ", nb::cast<std::string>(nb::repr(key)))
                .c_str());
      check_keys(item);
    }
  } else if (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) {
    for (nb::handle item : value) check_keys(item);
  }
}

// Converts by way of Python's json module, which refuses what JSON cannot hold.
Json to_json(nb::handle value) {
  const nb::object json = nb::module_::import_("json");
  const nb::object text = json.attr("dumps")(value, "ensure_ascii"_a = false, "allow_nan"_a = false);
  check_keys(value);  // behind dumps(), which refuses what holds itself
  return Json::parse(nb::cast<std::string>(text), "apply_chat_template");
}

// Keywords of transformers' method that are no variables of a template.
nb::dict variables_of(const nb::kwargs& given) {
  nb::dict variables;
  variables.update(given);
  for (const char* name : {"continue_final_message", "padding", "truncation", "max_length", "return_tensors",
                           "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"}) {
    if (!given.contains(name)) continue;
    if (is_true(given[name]))
      throw nb::type_error(concat("apply_chat_template: ", name, " is not supported").c_str());
    nb::del(variables[name]);
  }
  return variables;
}

nb::object apply_chat_template(const Tokenizer& t, nb::handle messages, bool add_generation_prompt,
                               bool tokenize, const std::optional<std::string>& chat_template,
                               const nb::kwargs& variables) {
  for (nb::handle item : messages) {
    if (!PyDict_Check(item.ptr())) throw nb::type_error("apply_chat_template: a message must be a dict");
    const bool has_role = PyDict_GetItemString(item.ptr(), "role") != nullptr;
    if (!has_role) throw nb::type_error("apply_chat_template: a message must have a role");
  }
  const Json list = to_json(nb::list(nb::borrow(messages))), values = to_json(variables_of(variables));
  std::vector<int32_t> ids;
  std::string prompt;
  unlocked([&] {
    const bool is_blank = chat_template && chat_template->empty();
    if (!is_blank)
      prompt = t.apply_chat_template(list, add_generation_prompt, values, chat_template.value_or(""));
    if (tokenize) ids = t.encode(prompt, {.parse_special = true, .add_template = false});
    return 0;
  });
  return tokenize ? nb::cast(ids) : nb::cast(prompt);
}

// Text may be str, whose offsets are in characters, or bytes.
struct TextEncoding {
  text::Encoding encoding;
  std::vector<std::string> tokens;
};

TextEncoding encoding(const Tokenizer& tokenizer, nb::handle given, nb::handle pair, bool parse_special,
                      bool add_template, size_t max_length, bool as_file) {
  const std::string first = to_bytes(given), second = pair.is_none() ? "" : to_bytes(pair);
  const bool is_str = PyUnicode_Check(given.ptr()), is_pair = !pair.is_none();
  if (is_pair && is_str != static_cast<bool>(PyUnicode_Check(pair.ptr())))
    throw nb::type_error("Tokenizer: both texts must be str, or both bytes");
  const text::EncodeOptions options = {.parse_special = parse_special,
                                       .add_template = add_template,
                                       .max_length = max_length,
                                       .as_file = as_file};
  return unlocked([&] {
    TextEncoding out = {
        is_pair ? tokenizer.encoding(first, second, options) : tokenizer.encoding(first, options), {}};
    out.tokens = tokenizer.tokens(out.encoding);
    if (is_str) text::count_characters(out.encoding, first, second);
    return out;
  });
}

std::vector<TextEncoding> padded(const Tokenizer& tokenizer, std::vector<TextEncoding> batch) {
  std::vector<text::Encoding> encodings;
  for (TextEncoding& one : batch) encodings.push_back(std::move(one.encoding));
  tokenizer.pad(encodings);
  for (size_t i = 0; i < batch.size(); ++i) {
    batch[i].encoding = std::move(encodings[i]);
    batch[i].tokens = tokenizer.tokens(batch[i].encoding);
  }
  return batch;
}

std::vector<std::pair<size_t, size_t>> offsets(const TextEncoding& e) {
  std::vector<std::pair<size_t, size_t>> list;
  for (const text::Offsets& span : e.encoding.offsets) list.emplace_back(span.begin, span.end);
  return list;
}

std::string decode(const Tokenizer& tokenizer, nb::handle ids, bool skip_special, bool continued) {
  const std::vector<int32_t> tokens = to_ids(ids, "decode");
  return unlocked([&] { return tokenizer.decode(tokens, {skip_special, continued}); });
}

void bind_encoding(nb::module_& m) {
  nb::class_<TextEncoding>(m, "Encoding", "What the ids of a text, or of two in one sequence, stand for.")
      .def_prop_ro("ids", [](const TextEncoding& e) { return e.encoding.ids; })
      .def_prop_ro("type_ids", [](const TextEncoding& e) { return e.encoding.type_ids; })
      .def_prop_ro(
          "tokens", [](const TextEncoding& e) { return e.tokens; },
          "As in tokenizer.json; of an added token the text, with white space that it swallows, and of what "
          "unigram does\nnot know too.")
      .def_prop_ro("offsets", &offsets,
                   "(begin, end) of each token in its text: characters of str, bytes of bytes; (0, 0) for "
                   "the template's.")
      .def_prop_ro(
          "sequence_ids",
          [](const TextEncoding& e) {
            std::vector<std::optional<int32_t>> list;
            for (const int32_t id : e.encoding.sequence_ids)
              list.push_back(id < 0 ? std::nullopt : std::optional(id));
            return list;
          },
          "The text that each token's offsets are of: 0, 1, or None.")
      .def_prop_ro(
          "attention_mask",
          [](const TextEncoding& e) {
            std::vector<int32_t> mask = e.encoding.attention_mask;
            if (mask.empty()) mask.assign(e.encoding.ids.size(), 1);
            return mask;
          },
          "1, and 0 for padding.")
      .def("__len__", [](const TextEncoding& e) { return e.encoding.ids.size(); });
}

void bind_makers(nb::class_<Tokenizer>& c) {
  c.def_static("train_bpe", &train_bpe, "texts"_a, nb::kw_only(), "vocab_size"_a = 4096,
               "min_frequency"_a = 2, "eos"_a = "<|endoftext|>",
               "Byte-level BPE as in GPT-2; texts: str, bytes, or a list of them.")
      .def_static("train_wordpiece", &train_wordpiece, "texts"_a, nb::kw_only(), "vocab_size"_a = 30522,
                  "min_frequency"_a = 2, "lowercase"_a = true, "WordPiece as in BERT.")
      .def_static("train_unigram", &train_unigram, "texts"_a, nb::kw_only(), "vocab_size"_a = 8000,
                  "max_piece_length"_a = 16, "Unigram as in SentencePiece (Kudo 2018).")
      .def_static("train_characters", &train_characters, "texts"_a, nb::kw_only(), "unk"_a = "",
                  "One token per distinct character.")
      .def_static(
          "load",
          [](const Path& path) {
            return unlocked([&] { return Tokenizer::load(models::tokenizer_folder(path)); });
          },
          "path"_a, "Loads a tokenizer.json or a folder with one.")
      .def_static(
          "from_json", [](const std::string& json) { return Tokenizer::from_json(json); }, "json"_a)
      .def(
          "save", [](const Tokenizer& t, const Path& path) { t.save(path); }, "path"_a);
}

void bind_coding(nb::class_<Tokenizer>& c) {
  c.def("to_json", &Tokenizer::to_json)
      .def(
          "encode",
          [](const Tokenizer& t, nb::handle text, bool parse_special, bool add_template, size_t max_length,
             bool as_file) {
            const std::string bytes = to_bytes(text);
            return unlocked([&] {
              return t.encode(bytes, {parse_special, add_template, max_length, as_file});
            });
          },
          "text"_a, nb::kw_only(), "parse_special"_a = false, "add_template"_a = true, "max_length"_a = 0,
          "as_file"_a = false,
          "Token ids. max_length: maximum number, including the template's; 0: no limit. as_file: truncate "
          "and pad\nas set in tokenizer.json, as Hugging Face's tokenizers always do.")
      .def("encoding", &encoding, "text"_a, "pair"_a = nb::none(), nb::kw_only(), "parse_special"_a = false,
           "add_template"_a = true, "max_length"_a = 0, "as_file"_a = false,
           "Ids with tokens and offsets, equal to those of Hugging Face's tokenizers. pair: a second text, "
           "joined by the\nfile's template.")
      .def("pad", &padded, "encodings"_a,
           "Copies of encodings, padded to the longest of them or as set in tokenizer.json.")
      .def(
          "encode_pair",
          [](const Tokenizer& t, nb::handle first, nb::handle second, size_t max_length) {
            const std::string a = to_bytes(first), b = to_bytes(second);
            text::Encoding pair = unlocked([&] { return t.encode_pair(a, b, {.max_length = max_length}); });
            return std::make_pair(std::move(pair.ids), std::move(pair.type_ids));
          },
          "first"_a, "second"_a, nb::kw_only(), "max_length"_a = 0,
          "(ids, type_ids) of two texts joined by the file's template, for models that compare them.")
      .def(
          "decode",
          [](const Tokenizer& t, nb::handle ids, bool skip_special, bool continued) {
            return to_str(decode(t, ids, skip_special, continued));
          },
          "ids"_a, nb::kw_only(), "skip_special"_a = false, "continued"_a = false,
          "The text; bytes that are not UTF-8 are replaced. continued: the ids follow others, so that "
          "SentencePiece and\nWordPiece keep the space before the first.")
      .def(
          "decode_bytes",
          [](const Tokenizer& t, nb::handle ids, bool skip_special, bool continued) {
            const std::string bytes = decode(t, ids, skip_special, continued);
            return nb::bytes(bytes.data(), bytes.size());
          },
          "ids"_a, nb::kw_only(), "skip_special"_a = false, "continued"_a = false);
}

void bind_vocabulary(nb::class_<Tokenizer>& c) {
  c.def("apply_chat_template", &apply_chat_template, "messages"_a, nb::kw_only(),
        "add_generation_prompt"_a = false, "tokenize"_a = true, "chat_template"_a = nb::none(), "variables"_a,
        "The prompt of a conversation, a list of {\"role\": ..., \"content\": ...}, by the model's chat "
        "template: token ids,\nor with tokenize=False the text. add_generation_prompt: up to where the "
        "answer begins. chat_template: another one.\nOther keywords are variables of the template: tools (a "
        "list of JSON schemas), documents, enable_thinking, ...")
      .def_prop_ro("chat_template", &Tokenizer::chat_template,
                   "The source of the chat template; empty: none.")
      .def_prop_ro("vocab_size", &Tokenizer::vocab_size)
      .def("__len__", &Tokenizer::vocab_size)
      .def("token", &Tokenizer::token, "id"_a)
      .def(
          "id", [](const Tokenizer& t, const std::string& token) { return t.id(token); }, "token"_a)
      .def_prop_ro("bos_id", &Tokenizer::bos_id)
      .def_prop_ro("eos_id", &Tokenizer::eos_id)
      .def_prop_ro("pad_id", &Tokenizer::pad_id)
      .def_prop_ro("unk_id", &Tokenizer::unk_id)
      .def_prop_ro("fingerprint", &Tokenizer::fingerprint)
      // Workers of a data loader get it by pickle.
      .def("__getstate__", [](const Tokenizer& t) { return nb::make_tuple(t.to_json(), t.config_json()); })
      .def("__setstate__",
           [](Tokenizer& t, const std::tuple<std::string, std::string>& contents) {
             new (&t) Tokenizer(Tokenizer::from_contents(std::get<0>(contents), std::get<1>(contents)));
           })
      .def("__repr__", [](const Tokenizer& t) {
        return std::string("Tokenizer(") + std::string(word_of(t.kind())) + ", " +
               std::to_string(t.vocab_size()) + " tokens)";
      });
}

}  // namespace

void bind_text(nb::module_& m) {
  bind_encoding(m);
  nb::class_<Tokenizer> c(
      m, "Tokenizer",
      "A tokenizer: characters, byte-level BPE, WordPiece or SentencePiece, stored as tokenizer.json.");
  bind_makers(c);
  bind_coding(c);
  bind_vocabulary(c);
  m.def(
      "token_labels",
      [](const Tokenizer& t, nb::handle ids) {
        const std::vector<int32_t> tokens = to_ids(ids, "token_labels");
        return unlocked([&] { return text::token_labels(t, tokens); });
      },
      "tokenizer"_a, "ids"_a,
      "A label per token, for AttentionView and tables: its text; of a token that is a part of a character, "
      "the character and\nwhich part of how many (\"é¹⁄₂\"); \"<0xE2>\" for bytes of no character.");
}

}  // namespace multihead::python
