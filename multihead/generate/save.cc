#include "multihead/generate/save.h"

#include <map>

#include "multihead/generate/defaults.h"
#include "multihead/io/checkpoint.h"
#include "multihead/io/file_set.h"
#include "multihead/models/files/hugging_face.h"

namespace multihead {
namespace {

// Files beside a model that is saved; another's generation_config.json stays.
void save_beside(const std::string& folder, std::map<std::string, std::string> files) {
  if (!io::foreign_files(folder, {io::kGenerationFile}, io::Look::bytes).empty())
    files.erase(io::kGenerationFile);
  io::FileSet set;
  for (const auto& [name, bytes] : files) set.push_back(name);
  if (set.empty()) return;
  io::save_files(folder, set,
                 [&](io::DirectoryWriter& writer) { io::write_contents(writer, {.files = files}); });
}

}  // namespace

void save_with_tokenizer(models::LanguageModel& model, const text::Tokenizer& tokenizer,
                         const std::string& folder, bool overwrite) {
  models::save_language_model(model, folder, overwrite);
  save_beside(folder,
              {{"tokenizer.json", tokenizer.to_json()},
               {"tokenizer_config.json", tokenizer.config_json()},
               {io::kGenerationFile, saved_defaults("", models::config_to_json(model.config()), tokenizer)}});
}

void save_with_defaults(models::Seq2Seq& model, const std::string& folder, bool overwrite) {
  models::save_seq2seq(model, folder, overwrite);
  save_beside(folder, {{io::kGenerationFile, saved_defaults("", model.config())}});
}

}  // namespace multihead
