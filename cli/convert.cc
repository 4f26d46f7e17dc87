// multihead convert
#include <fmt/format.h>

#include "cli/model_dir.h"
#include "multihead/nn/module.h"

namespace multihead::cli {
namespace {

class Convert : public Verb {
 public:
  Convert()
      : Verb("convert", "write a language model as a Hugging Face folder in f32",
             {{"multihead convert model.gguf model", "a GGUF file of llama.cpp, for every other verb and transformers"}}) {}

  void declare(Flags& flags) override {
    flags.positional("MODEL", from_, "GGUF file or model folder");
    flags.positional("DIR", to_, "folder to write");
  }

  int run(const CommonOptions& common) override {
    LoadedModel loaded = load_model_dir(from_);
    models::save_language_model(loaded.model, to_);
    loaded.tokenizer.save(to_);
    if (!common.quiet) fmt::print("{}: {} parameters\n", to_, nn::parameter_count(loaded.model));
    return kDone;
  }

 private:
  std::string from_, to_;
};

}  // namespace

std::unique_ptr<Verb> make_convert() { return std::make_unique<Convert>(); }

}  // namespace multihead::cli
