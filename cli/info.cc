// multihead info
#include <fmt/format.h>

#include "cli/model_dir.h"
#include "multihead/io/safetensors.h"
#include "multihead/nn/module.h"

namespace multihead::cli {
namespace {

class Info : public Verb {
 public:
  std::string name() const override { return "info"; }
  std::string summary() const override { return "what a model folder holds"; }
  std::vector<std::pair<std::string, std::string>> examples() const override {
    return {{"multihead info model", "configuration, parameters by tensor, memory"},
            {"multihead info model --json", "for programs"}};
  }

  void declare(Flags& flags) override { flags.positional("DIR", folder_, "model folder"); }

  int run(const CommonOptions& common) override {
    LoadedModel loaded = load_model_dir(folder_);
    const io::SafetensorsFile file = reading([&] { return io::SafetensorsFile(folder_); });
    const models::LanguageModelConfig& config = loaded.model.config();
    const int64_t parameters = nn::parameter_count(loaded.model);
    const nn::DecodeState state = loaded.model.make_state(1);
    const Json json = models::config_to_json(config);
    if (common.json) {
      Json tensors = Json::array();
      for (const std::string& name : file.names()) tensors.push_back(tensor_json(file, name));
      fmt::print("{}\n", Json::object({{"config", json},
                                       {"parameters", parameters},
                                       {"weight_bytes", parameters * 4},
                                       {"training_bytes", parameters * 16},
                                       {"kv_cache_bytes", static_cast<int64_t>(state.bytes())},
                                       {"tokenizer", tokenizer_json(loaded.tokenizer)},
                                       {"tensors", tensors}})
                             .dump(2));
      return kDone;
    }
    fmt::print("config.json\n");
    for (const JsonMember& member : json.members())
      fmt::print("  {:<28} {}\n", member.key, member.value.dump());
    fmt::print("\ntensors\n");
    for (const std::string& name : file.names()) print_tensor(file, name);
    fmt::print(
        "\n{} parameters; f32 weights {}, training with Adam {}, key/value cache of one full context {}\n",
        parameters, bytes_text(parameters * 4), bytes_text(parameters * 16),
        bytes_text(static_cast<int64_t>(state.bytes())));
    fmt::print("tokenizer: {}, {} tokens\n", kind(loaded.tokenizer), loaded.tokenizer.vocab_size());
    return kDone;
  }

 private:
  static const char* kind(const text::Tokenizer& tokenizer) {
    return tokenizer.kind() == text::Tokenizer::Kind::bpe ? "byte-level BPE" : "characters";
  }

  static Json tokenizer_json(const text::Tokenizer& tokenizer) {
    return Json::object({{"kind", kind(tokenizer)}, {"vocab_size", tokenizer.vocab_size()}});
  }

  static Json tensor_json(const io::SafetensorsFile& file, const std::string& name) {
    const io::TensorInfo& info = file.info(name);
    Json shape = Json::array();
    for (const int64_t size : info.shape) shape.push_back(size);
    return Json::object(
        {{"name", name}, {"dtype", info.dtype_name}, {"shape", shape}, {"parameters", info.numel()}});
  }

  static void print_tensor(const io::SafetensorsFile& file, const std::string& name) {
    const io::TensorInfo& info = file.info(name);
    fmt::print("  {:<44} {:<5} {:>12}  [{}]\n", name, info.dtype_name, info.numel(),
               fmt::join(info.shape, ", "));
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
