// The chat template that comes with a tokenizer.
#include <algorithm>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/text/tokenizer/model-inl.h"

namespace multihead::text {

std::string chat_template_of(const Json& config, const std::string& file) {
  const Json* chosen = config.find("chat_template");
  if (chosen != nullptr && chosen->is_array()) {  // several by name
    const auto items = chosen->items();
    const auto found = std::find_if(items.begin(), items.end(), [](const Json& item) {
      const Json* name = item.find("name");
      return name != nullptr && *name == Json("default");
    });
    chosen = found != items.end() ? found->find("template") : nullptr;
  }
  if (chosen == nullptr || chosen->is_null()) return {};
  MH_CHECK(chosen->is_string(), FormatError, file, ": chat_template must be a string, got ",
           name(chosen->kind()));
  return chosen->as_string();
}

void read_chat_template_file(const std::filesystem::path& folder, Tokenizer::Model& model) {
  const std::filesystem::path file = folder / "chat_template.jinja";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return;
  model.chat_template = read_file(file.string());
  MH_CHECK(find_invalid_utf8(model.chat_template) == std::string::npos, FormatError, file.string(),
           ": is not UTF-8");
}

const std::string& Tokenizer::chat_template() const { return model_->chat_template; }

std::string Tokenizer::apply_chat_template(std::span<const ChatMessage> messages,
                                           bool add_generation_prompt) const {
  Json list = Json::array();
  for (const ChatMessage& m : messages)
    list.push_back(Json::object({{"role", m.role}, {"content", m.content}}));
  return apply_chat_template(list, add_generation_prompt, Json::object());
}

std::string Tokenizer::apply_chat_template(const Json& messages, bool add_generation_prompt,
                                           const Json& variables, const std::string& other) const {
  const std::string& source = other.empty() ? chat_template() : other;
  MH_CHECK(!source.empty(), ValueError, "tokenizer: the model has no chat template");
  Json all = Json::object();
  for (const auto& [key, role] : kRoles) {
    if (!(special().*role).empty()) all[key] = special().*role;
  }
  for (const auto& [key, value] : variables.members()) all[key] = value;
  return ChatTemplate(source).render(messages, add_generation_prompt, all);
}

}  // namespace multihead::text
