// The templates that surround texts.
#include <set>

#include "multihead/text/tokenizer/files/tokenizer_json/reader-inl.h"

namespace multihead::text::tokenizer_json {
namespace {

int32_t pair_id(Reader& in, const Json& post, const char* key, const std::string& where) {
  const Json& pair = in.array(post, key, where + "." + key);
  if (pair.size() != 2) in.fail(where, ".", key, " must be [token, id]");
  return in.known_id(pair.at(1), where + "." + key);
}

// The ids of a special token of a template.
std::vector<int32_t> template_ids(Reader& in, const Json& post, const Json& item, const std::string& where) {
  const std::string name = in.string(in.object(item, "SpecialToken", where), "id", where + ".id");
  const Json& tokens = in.object(post, "special_tokens", "post_processor.special_tokens");
  const Json& token = in.object(tokens, name.c_str(), "post_processor.special_tokens[" + quote(name) + "]");
  std::vector<int32_t> ids;
  for (const Json& id : in.array(token, "ids", "post_processor.special_tokens.ids").items())
    ids.push_back(in.known_id(id, "post_processor.special_tokens.ids"));
  // Each item may stand for many ids: written out, they must not be more than the file has bytes.
  if (in.model.single.size() + in.model.pair.size() + ids.size() > in.model.source.size())
    in.fail(where, ": its tokens expand to more ids than the file has bytes");
  return ids;
}

// `add(item)` of each text and id of a template.
template <class Add>
void read_items(Reader& in, const Json& post, const Json& items, const std::string& where, const Add& add) {
  for (const Json& item : items.items()) {
    const bool is_text = item.is_object() && item.contains("Sequence");
    const char* key = is_text ? "Sequence" : "SpecialToken";
    const Json& part = in.object(item, key, where);
    const Json* type = Reader::find(part, "type_id");
    const int32_t type_id = type == nullptr ? 0 : in.token_id(*type, where + ".type_id");
    if (is_text) {
      const std::string which = in.string(part, "id", where + ".Sequence.id");
      if (which != "A" && which != "B")
        in.fail(where, ".Sequence.id must be \"A\" or \"B\", got ", quote(which));
      add({.text = which == "B" ? 1 : 0, .type_id = type_id});
    } else {
      for (const int32_t id : template_ids(in, post, item, where)) add({.id = id, .type_id = type_id});
    }
  }
}

void read_template(Reader& in, const Json& post, const std::string& where) {
  std::vector<TemplateItem>& single = in.model.single;
  if (single.size() > 1) in.unsupported(where, "a second template");
  single.clear();
  bool has_text = false;
  read_items(in, post, in.array(post, "single", where + ".single"), where + ".single",
             [&](TemplateItem item) {
               if (item.text >= 0 && has_text) in.unsupported(where + ".single", "the text twice");
               has_text = has_text || item.text >= 0;
               if (item.text >= 0) item.text = 0;  // whatever it is called
               single.push_back(item);
             });
  if (!has_text) in.fail(where, ".single has no place for the text");
  const Json* const pair = Reader::find(post, "pair");
  if (pair == nullptr) return;
  if (!pair->is_array()) in.wrong(where + ".pair", "an array", *pair);
  std::set<int32_t> texts;
  read_items(in, post, *pair, where + ".pair", [&](TemplateItem item) {
    if (item.text >= 0) texts.insert(item.text);
    in.model.pair.push_back(item);
  });
  if (!in.model.pair.empty() && texts.size() < 2) in.fail(where, ".pair has no place for one of the texts");
}

void surround(std::vector<TemplateItem>& items, int32_t cls, int32_t sep) {
  items.insert(items.begin(), {.id = cls});
  items.push_back({.id = sep});
}

void read_processor(Reader& in, const Json& post, const std::string& where) {
  if (!post.is_object()) in.wrong(where, "an object", post);
  const std::string type = in.string(post, "type", where + ".type");
  if (type == "ByteLevel" || type == "RobertaProcessing") {
    in.model.trims_offsets = in.flag(post, "trim_offsets", where, true);
    in.model.trims_prefix = in.flag(post, "add_prefix_space", where, true);
    if (type == "ByteLevel") return;
  }
  if (type == "Sequence") {
    for (const Json& step : in.array(post, "processors", where + ".processors").items())
      if (Reader::is_type(step, "Sequence")) {
        in.unsupported(where, "a sequence of sequences");
      } else {
        read_processor(in, step, where + ".processors");
      }
  } else if (type == "TemplateProcessing") {
    read_template(in, post, where);
  } else if (type == "RobertaProcessing") {
    // <s> a </s></s> b </s>
    const int32_t cls = pair_id(in, post, "cls", where), sep = pair_id(in, post, "sep", where);
    surround(in.model.single, cls, sep);
    in.model.pair = {{.id = cls}, {.text = 0}, {.id = sep}, {.id = sep}, {.text = 1}, {.id = sep}};
  } else if (type == "BertProcessing") {
    const int32_t cls = pair_id(in, post, "cls", where), sep = pair_id(in, post, "sep", where);
    surround(in.model.single, cls, sep);
    in.model.pair = {
        {.id = cls}, {.text = 0}, {.id = sep}, {.text = 1, .type_id = 1}, {.id = sep, .type_id = 1}};
  } else {
    in.unsupported(where, quote(type));
  }
}

}  // namespace

void read_post_processor(Reader& in) {
  if (const Json* post = Reader::find(in.root, "post_processor")) read_processor(in, *post, "post_processor");
}

}  // namespace multihead::text::tokenizer_json
