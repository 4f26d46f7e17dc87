#include "multihead/generate/generate.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "multihead/c/status-inl.h"
#include "multihead/generate/defaults.h"
#include "multihead/generate/text_stream.h"
#include "multihead/io/json.h"

struct mh_model : multihead::LoadedModel {
  multihead::models::GenerationConfig defaults;
};

namespace multihead::c {
namespace {

mh_model* load(const char* path, const char* weights) {
  std::optional<kernels::WeightDtype> dtype;
  if (weights != nullptr) dtype = kernels::parse_weight_dtype(weights);
  const std::string folder = &checked(path, "path");
  return new mh_model{load_with_tokenizer(folder, dtype, true), models::load_generation_config(folder)};
}

// The caller's options over the folder's.
GenerateOptions rules(const mh_model& model, const mh_generate_options& given,
                      std::vector<std::string>& stops) {
  GenerateOptions options{.max_new_tokens = given.max_new_tokens, .seed = given.seed};
  if (const auto eos = model.tokenizer.eos_id()) options.stop_tokens = {*eos};
  apply(model.defaults, options);
  options.max_new_tokens = given.max_new_tokens;
  // NaN is not below 0 and is refused.
  if (!(given.temperature < 0)) options.sampling.temperature = given.temperature;
  if (given.top_k >= 0) options.sampling.top_k = given.top_k;
  if (!(given.top_p < 0)) options.sampling.top_p = given.top_p;
  check(options.sampling);
  stops = model.defaults.stop_strings;
  for (size_t i = 0; i < given.stop_count; ++i) {
    checked(given.stop, "options.stop");
    const std::string name = concat("options.stop[", i, "]");
    stops.push_back(checked_text(given.stop[i], name));
    MH_CHECK(!stops.back().empty(), ValueError, name, " is empty");
  }
  return options;
}

char* copy_of(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));  // NOLINT(*-no-malloc): mh_free() is free()
  if (copy == nullptr) throw std::bad_alloc();
  std::copy_n(text.c_str(), text.size() + 1, copy);
  return copy;
}

void continue_tokens(const mh_model& model, const std::vector<int32_t>& prompt,
                     const mh_generate_options& given, bool is_chat, char** text) {
  std::vector<std::string> stops;
  GenerateOptions options = rules(model, given, stops);
  if (is_chat) {
    for (const int32_t end : turn_ends(model.tokenizer)) options.stop_tokens.push_back(end);
    // An answer ends where the context is full: past it a model would lose the turns' marks.
    options.max_new_tokens = std::min(options.max_new_tokens, model.model.longest() - std::ssize(prompt) + 1);
  }
  bool is_wanted = true;
  std::string all;
  TextStream stream(
      [&](std::string_view piece) {
        all += piece;
        if (given.on_text != nullptr && is_wanted)
          is_wanted = given.on_text(piece.data(), piece.size(), given.user) == 0;
      },
      model.tokenizer, {.skip_special = true, .continued = !is_chat}, stops);
  options.on_token = [&](int64_t, int32_t token) { return stream.write(token) && is_wanted; };
  generate(model.model, {prompt}, options);
  if (is_wanted) stream.finish();
  if (text != nullptr) *text = copy_of(all);
}

std::vector<int32_t> chat_prompt(const mh_model& model, const mh_message* messages, size_t count) {
  Json list = Json::array();
  for (size_t i = 0; i < count; ++i) {
    const mh_message& message = (&checked(messages, "messages"))[i];
    list.push_back(
        Json::object({{"role", checked_text(message.role, concat("messages[", i, "].role"))},
                      {"content", checked_text(message.content, concat("messages[", i, "].content"))}}));
  }
  const std::string text = model.tokenizer.apply_chat_template(list, true, Json::object());
  std::vector<int32_t> ids = model.tokenizer.encode(text, {.parse_special = true, .add_template = false});
  MH_CHECK(std::ssize(ids) < model.model.longest(), ValueError, "the conversation has ", ids.size(),
           " tokens, the context ", model.model.longest());
  return ids;
}

constexpr mh_generate_options kDefaults = MH_GENERATE_OPTIONS;

}  // namespace
}  // namespace multihead::c

mh_status mh_model_load(const char* path, const char* weights, mh_model** model) {
  using namespace multihead::c;
  return guarded([&] {
    mh_model*& slot = emptied(model, "model");
    slot = load(path, weights);
  });
}

void mh_model_free(mh_model* model) { delete model; }

mh_status mh_generate(mh_model* model, const char* prompt, const mh_generate_options* options, char** text) {
  using namespace multihead::c;
  return guarded([&] {
    if (text != nullptr) *text = nullptr;
    const mh_model& loaded = checked(model, "model");
    const std::vector<int32_t> ids = loaded.tokenizer.encode(checked_text(prompt, "prompt"));
    continue_tokens(loaded, ids, options_of(options, kDefaults), false, text);
  });
}

mh_status mh_chat(mh_model* model, const mh_message* messages, size_t count,
                  const mh_generate_options* options, char** text) {
  using namespace multihead::c;
  return guarded([&] {
    if (text != nullptr) *text = nullptr;
    const mh_model& loaded = checked(model, "model");
    continue_tokens(loaded, chat_prompt(loaded, messages, count), options_of(options, kDefaults), true, text);
  });
}

void mh_free(char* text) { std::free(text); }  // NOLINT(*-no-malloc)
