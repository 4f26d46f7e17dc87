// multihead info
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "cli/model_dir.h"
#include "cli/streams.h"
#include "multihead/io/gguf.h"
#include "multihead/io/json.h"
#include "multihead/io/safetensors.h"
#include "multihead/models/files/adapter.h"
#include "multihead/models/files/gguf.h"
#include "multihead/nn/module.h"

namespace multihead::cli {
namespace {

class Info : public Verb {
 public:
  Info()
      : Verb("info", "describe a model folder: configuration, parameters, memory",
             {{"multihead info model", "configuration, parameters by tensor, memory"},
              {"multihead info model --json", "for programs"}}) {}

  void declare(Flags& flags) override { flags.positional("DIR", folder_, "model folder"); }

  int run(const CommonOptions& common) override {
    const Facts facts = reading([&] { return facts_of_folder(); });
    const std::vector<Stored> tensors = reading([&] { return stored_tensors(folder_); });
    common.json ? print_json(facts, tensors) : print_text(facts, tensors);
    return kDone;
  }

 private:
  // Packed matrices of one type.
  struct Computed {
    int64_t matrices = 0, parameters = 0;
    size_t bytes = 0;
  };

  struct Facts {
    Json config;
    int64_t parameters = 0, cache_bytes = 0;
    std::string cached;  // what the cache covers
    std::vector<std::pair<std::string, text::Tokenizer>> tokenizers;
    std::map<std::string, Computed> computed = {};  // by type; none: f32
  };

  // A tensor as the file holds it.
  struct Stored {
    std::string name, dtype;
    std::vector<int64_t> shape;
    int64_t numel = 0;
  };

  Facts facts_of_folder() const {
    if (models::is_seq2seq_folder(folder_)) return facts_of(load_translator_dir(folder_));
    if (models::is_image_folder(folder_)) return facts_of(models::load_image_encoder(folder_));
    if (!models::has_encoder(folder_)) return facts_of(load_model_dir(folder_, "stored"));
    Facts facts = facts_of(models::load_encoder(folder_));
    facts.tokenizers = {{"tokenizer", text::Tokenizer::load(models::tokenizer_folder(folder_))}};
    return facts;
  }

  static std::vector<Stored> stored_tensors(const std::string& path) {
    std::vector<Stored> list;
    if (models::is_gguf(path)) {
      const io::GgufFile file(path);
      std::vector<std::pair<std::pair<size_t, uint64_t>, Stored>> placed;
      for (const auto& [name, t] : file.tensors()) {
        const std::string type = t.type != nullptr ? t.type->name : concat("type ", t.type_id);
        placed.push_back({{t.part, t.offset}, {name, type, t.shape, t.numel()}});
      }
      std::sort(placed.begin(), placed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      for (auto& [place, stored] : placed) list.push_back(std::move(stored));
      return list;
    }
    const bool is_adapter = models::is_adapter_folder(path);
    const io::SafetensorsFile file(is_adapter ? models::base_of_adapter(path) : path);
    for (const std::string& name : file.names()) {
      const io::TensorInfo& info = file.info(name);
      list.push_back({name, info.dtype_name, info.shape, info.numel()});
    }
    return list;
  }

  template <class Model>
  static bool is_tied(const Model& model) {
    if constexpr (std::is_same_v<Model, models::LanguageModel>) return model.config().tie_embeddings;
    return false;
  }

  template <class Model>
  static std::map<std::string, Computed> computed_as(Model& model) {
    std::map<std::string, Computed> result;
    const auto add = [&](const std::string& name, Tensor&, nn::PackedLinear& packed) {
      if (!packed.defined() || (name == "head.weight" && is_tied(model))) return;
      Computed& of = result[std::string(kernels::name(packed.dtype()))];
      of.matrices += 1, of.bytes += packed.bytes();
      of.parameters += packed.in_features() * packed.out_features();
    };
    nn::Visitor visitor = nn::Visitor::of_matrices(add);
    model.visit(visitor);
    return result;
  }

  // Packed ones, too.
  template <class Model>
  static int64_t parameters_of(Model& model) {
    int64_t parameters = nn::parameter_count(model);
    for (const auto& [dtype, of] : computed_as(model)) parameters += of.parameters;
    return parameters;
  }

  static Facts facts_of(LoadedModel loaded) {
    Facts facts = facts_of(loaded.model);
    facts.tokenizers = {{"tokenizer", loaded.tokenizer}};
    if (!loaded.model.config().causal) return facts;
    const bool windowed = loaded.model.has_ring();
    facts.cache_bytes =
        static_cast<int64_t>(nn::decode_state_bytes(loaded.model.state_options({.ring = windowed})));
    facts.cached = windowed ? "one text of any length" : "one full context";
    return facts;
  }

  // The facts of a model without a cache.
  template <class Model>
  static Facts facts_of(Model model) {
    return {models::config_to_json(model.config()), parameters_of(model), 0, {}, {}, computed_as(model)};
  }

  Facts facts_of(LoadedTranslator loaded) const {
    const models::Seq2SeqConfig& c = loaded.model.config();
    const Json config =
        reading([&] { return io::load_json((std::filesystem::path(folder_) / "config.json").string()); });
    Facts facts{config,
                nn::parameter_count(loaded.model),
                2 * c.decoder_layers * c.num_heads * models::head_dim(c) * 2 * c.max_positions * 4,
                "the longest sentence",
                {}};
    if (c.share_embeddings) return facts.tokenizers = {{"tokenizer", loaded.tokenizers.source}}, facts;
    facts.tokenizers = {{"source tokenizer", loaded.tokenizers.source},
                        {"target tokenizer", loaded.tokenizers.target}};
    return facts;
  }

  static void print_json(const Facts& facts, const std::vector<Stored>& stored) {
    Json tensors = Json::array();
    for (const Stored& t : stored) {
      tensors.push_back(Json::object({{"name", t.name},
                                      {"dtype", t.dtype},
                                      {"shape", std::vector<Json>(t.shape.begin(), t.shape.end())},
                                      {"parameters", t.numel}}));
    }
    Json json = Json::object({{"config", facts.config},
                              {"parameters", facts.parameters},
                              {"weight_bytes", facts.parameters * 4},
                              {"training_bytes", facts.parameters * 16},
                              {"kv_cache_bytes", facts.cache_bytes}});
    for (const auto& [name, tokenizer] : facts.tokenizers) {
      std::string key = name;
      std::replace(key.begin(), key.end(), ' ', '_');
      json[key] = Json::object({{"kind", kind(tokenizer)}, {"vocab_size", tokenizer.vocab_size()}});
      if (!tokenizer.chat_template().empty()) json[key]["chat_template"] = tokenizer.chat_template();
    }
    Json computed = Json::object({});
    for (const auto& [dtype, of] : facts.computed) {
      computed[dtype] = Json::object({{"matrices", of.matrices}, {"bytes", of.bytes}});
    }
    if (!facts.computed.empty()) json["computed_as"] = computed;
    json["tensors"] = tensors;
    put_json(json);
  }

  static void print_text(const Facts& facts, const std::vector<Stored>& stored) {
    fmt::print("config.json\n");
    for (const JsonMember& member : facts.config.members())
      fmt::print("  {:<28} {}\n", printable(member.key), member.value.dump());
    fmt::print("\ntensors\n");
    for (const Stored& t : stored) {
      fmt::print("  {:<44} {:<5} {:>12}  [{}]\n", printable(t.name), printable(t.dtype), t.numel,
                 fmt::join(t.shape, ", "));
    }
    fmt::print("\n{} parameters; f32 weights {}, training with Adam {}", facts.parameters,
               bytes_text(facts.parameters * 4), bytes_text(facts.parameters * 16));
    if (facts.cache_bytes > 0) {
      fmt::print(", key/value cache of {} {}", facts.cached, bytes_text(facts.cache_bytes));
    }
    fmt::print("\n");
    for (const auto& [dtype, of] : facts.computed) {
      fmt::print("{} matrices are computed as {}, {} in memory\n", of.matrices, dtype, bytes_text(of.bytes));
    }
    for (const auto& [name, tokenizer] : facts.tokenizers) {
      fmt::print("{}: {}, {} tokens\n", name, kind(tokenizer), tokenizer.vocab_size());
      if (!tokenizer.chat_template().empty()) print_template(tokenizer.chat_template());
    }
  }

  static void print_template(const std::string& source) {
    fmt::print("\nchat template\n");
    for (size_t at = 0; at < source.size();) {
      const size_t end = std::min(source.find('\n', at), source.size());
      fmt::print("  {}\n", printable(std::string_view(source).substr(at, end - at)));
      at = end + 1;
    }
  }

  static const char* kind(const text::Tokenizer& tokenizer) {
    switch (tokenizer.kind()) {
      case text::Tokenizer::Kind::bpe:
        return "byte-level BPE";
      case text::Tokenizer::Kind::wordpiece:
        return "WordPiece";
      case text::Tokenizer::Kind::unigram:
        return "SentencePiece unigram";
      case text::Tokenizer::Kind::character_bpe:
        return "SentencePiece BPE";
      case text::Tokenizer::Kind::words:
        return "words";
      default:
        return "characters";
    }
  }

  static std::string bytes_text(int64_t bytes) {
    const auto b = static_cast<double>(bytes);
    return bytes < 10'000'000 ? fmt::format("{:.1f} kB", b / 1e3) : fmt::format("{:.1f} MB", b / 1e6);
  }

  std::string folder_;
};

}  // namespace

std::unique_ptr<Verb> make_info() { return std::make_unique<Info>(); }

}  // namespace multihead::cli
