#include "multihead/train/tasks/encoder_parts.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "multihead/core/error.h"
#include "multihead/core/files.h"
#include "multihead/core/threads/parallel.h"
#include "multihead/embed/text_classifier.h"
#include "multihead/io/directory.h"
#include "multihead/models/files/hugging_face.h"
#include "multihead/train/data/windows.h"
#include "multihead/train/run.h"

namespace multihead::train {
namespace {

Encodings encode_all(size_t count, const std::function<text::Encoding(size_t)>& encode) {
  Encodings all(count);
  parallel_for(std::ssize(all),
               [&](int64_t i, int) { all[static_cast<size_t>(i)] = encode(static_cast<size_t>(i)); });
  return all;
}

}  // namespace

models::TokenRows token_rows(const Encodings& examples, const std::vector<int64_t>& rows) {
  std::vector<std::vector<int32_t>> ids, types;
  for (const int64_t row : rows) {
    const text::Encoding& one = examples[static_cast<size_t>(row)];
    ids.push_back(one.ids);
    if (!one.type_ids.empty()) types.push_back(one.type_ids);
  }
  return models::TokenRows::of(ids, types);
}

Encodings encode_texts(const text::Tokenizer& tokenizer, const std::vector<std::string>& texts,
                       int64_t length) {
  const text::EncodeOptions options = {.parse_special = true, .max_length = static_cast<size_t>(length)};
  return encode_all(texts.size(), [&](size_t i) {
    return text::Encoding{tokenizer.encode(texts[i], options), {}};
  });
}

Encodings encode_pair_texts(const text::Tokenizer& tokenizer, const std::vector<std::string>& first,
                            const std::vector<std::string>& second, int64_t length, bool has_types) {
  const text::EncodeOptions options = {.parse_special = true, .max_length = static_cast<size_t>(length)};
  return encode_all(first.size(), [&](size_t i) {
    text::Encoding pair = tokenizer.encode_pair(first[i], second[i], options);
    if (!has_types) pair.type_ids.clear();
    return pair;
  });
}

void start_from(EncoderSettings& settings, const std::string& init) {
  const std::string prompt = embed::pair_prompt(init);
  MH_CHECK(prompt.empty(), ValueError, "train: --init ", init, " has a default prompt, ", quote(prompt, 60),
           ", which is not trained with; set default_prompt_name of its "
           "config_sentence_transformers.json to null");
  settings.model = models::load_encoder(init).config();
  set_fine_tuning(settings);
  settings.max_length = std::min(settings.model.context, kReadTokens);
}

models::Encoder encoder_from(const models::EncoderConfig& config, models::Encoder from, int64_t seed,
                             std::vector<std::string>* fresh) {
  Rng rng(static_cast<uint64_t>(seed));
  return models::with_weights(config, std::move(from), rng, fresh);
}

void freeze_all_but(models::Encoder& model, const std::vector<std::string>& names) {
  for (nn::NamedTensor& p : nn::named_parameters(model)) {
    if (std::find(names.begin(), names.end(), p.name) == names.end()) p.tensor.set_requires_grad(false);
  }
}

namespace {

// tokenizer_config.json with the roles that encoders have besides those of other models, last and in this order: so the
// file is the same again where the tokenizer is a checkpoint's, which has them.
std::string config_of(const text::Tokenizer& tokenizer) {
  Json config = Json::parse(tokenizer.config_json());
  const std::tuple<const char*, const char*, const char*> roles[] = {{"cls_token", "[CLS]", "<s>"},
                                                                     {"sep_token", "[SEP]", "</s>"},
                                                                     {"mask_token", "[MASK]", "<mask>"},
                                                                     {"pad_token", "[PAD]", "<pad>"},
                                                                     {"unk_token", "[UNK]", "<unk>"}};
  for (const auto& [role, bert, roberta] : roles) {
    std::string token = config.contains(role) ? config.at(role).as_string() : "";
    for (const char* name : {bert, roberta}) {
      if (token.empty() && tokenizer.id(name)) token = name;
    }
    config.erase(role);
    if (!token.empty()) config[role] = token;
  }
  return config.dump(2) + "\n";
}

}  // namespace

void save_encoder_files(models::Encoder& model, const text::Tokenizer& tokenizer, const std::string& init,
                        int64_t length, io::CheckpointContents& contents) {
  contents.tensors["model.safetensors"] = models::encoder_tensors(model);
  contents.files["config.json"] = models::config_to_json(model.config()).dump(2) + "\n";
  contents.files["tokenizer.json"] = tokenizer.to_json();
  const std::string given = io::join(init, "tokenizer_config.json");
  const bool is_given = !init.empty() && node_at(given) == Node::file;
  std::string& config = contents.files["tokenizer_config.json"];
  config = is_given ? read_file(given, uint64_t{16} << 20) : config_of(tokenizer);
  if (length == 0) return;
  Json json = Json::parse(config, given);
  json["model_max_length"] = length;
  config = json.dump(2) + "\n";
}

void save_sentence_files(embed::SentenceEncoder& encoder, const std::string& init, int64_t length,
                         io::CheckpointContents& contents) {
  save_encoder_files(encoder.encoder(), encoder.tokenizer(), init, length, contents);
  contents.files.merge(encoder.module_files().at("").files);
  std::string& limits = contents.files.at("sentence_bert_config.json");
  Json json = Json::parse(limits);
  json["max_seq_length"] = length;
  limits = json.dump(2) + "\n";
}

void write_module_folders(const embed::SentenceEncoder& encoder, const RunFolder& folder) {
  for (const auto& [name, contents] : encoder.module_files()) {
    if (name.empty()) continue;
    const io::CheckpointContents& files = contents;
    io::write_directory_atomically(
        io::join(folder.path(), name),
        [&](io::DirectoryWriter& writer) { io::write_contents(writer, files); }, folder.run());
  }
}

void remove_module_folders(const embed::SentenceEncoder& encoder, const RunFolder& folder) {
  std::vector<std::string> paths, foreign;
  for (const auto& [name, contents] : encoder.module_files()) {
    const std::string path = io::join(folder.path(), name);
    if (name.empty() || node_at(path) == Node::absent) continue;
    const std::string reason = io::foreign_directory(path, folder.run());
    if (reason.empty()) {
      paths.push_back(path);
    } else {
      foreign.push_back(concat(quote(name), " ", reason));
    }
  }
  io::refuse_foreign("train", folder.path(), foreign);
  for (const std::string& path : paths) io::remove_directory_atomically(path, folder.run());
}

}  // namespace multihead::train
