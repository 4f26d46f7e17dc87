// multihead convert
#include <fmt/format.h>

#include "cli/model_dir.h"
#include "cli/parser.h"
#include "cli/streams.h"
#include "multihead/io/gguf.h"
#include "multihead/io/json.h"
#include "multihead/models/files/gguf.h"
#include "multihead/nn/module.h"
#include "multihead/text/tokenizer/files/gguf.h"

namespace multihead::cli {
namespace {

class Convert : public Verb {
 public:
  Convert()
      : Verb("convert", "convert a language model to a Hugging Face folder or a GGUF file",
             {{"multihead convert model.gguf model",
               "from llama.cpp: an f32 folder for all verbs and transformers"},
              {"multihead convert model model.gguf --type q8_0",
               "for llama.cpp, about a quarter of the size"}}) {}

  void declare(Flags& flags) override {
    flags.positional("MODEL", from_, "model folder or GGUF file");
    flags.positional("OUT", to_, "folder, or file ending in .gguf, to write").writes = true;
    declare_overwrite(flags, overwrites_);
    flags.choice("type", type_, {"f32", "f16", "bf16", "q8_0", "q4_1", "q4_0"}, "of a GGUF file's matrices");
  }

  int run(const CommonOptions& common) override {
    if (!models::is_gguf(to_)) refuse_given("on a folder, whose weights are f32", {"type"});
    if (!overwrites_) check_vacant(to_);
    LoadedModel loaded = load_model_dir(from_);
    if (loaded.model.packed_dtype()) {
      throw InputError(concat(printable(from_), ": holds weights in ",
                              kernels::name(loaded.model.weight_dtype()),
                              ", a form of this library; convert the folder that they were quantised from"));
    }
    if (models::is_gguf(from_) && io::GgufFile(from_).tensors().contains("dense_2.weight")) {
      throw InputError(printable(from_) +
                       ": its matrices after the pooling (dense_2, dense_3) would be lost; embed and "
                       "search read the file as it is");
    }
    if (models::is_gguf(to_)) {
      models::save_gguf(loaded.model, to_, type_,
                        text::gguf_vocabulary(loaded.tokenizer, loaded.model.config().vocab_size));
      if (!common.quiet && text::loses_normalizer_in_gguf(loaded.tokenizer)) {
        std::fputs(
            "note: the format has no NFC: of text in other Unicode forms, such as separate accents, "
            "llama.cpp makes other tokens\n",
            stderr);
      }
    } else {
      save_model_dir(loaded, from_, to_);
    }
    if (!common.quiet) note_pooling(from_);
    const int64_t parameters = nn::parameter_count(loaded.model);
    if (common.json) {
      put_json(Json::object({{"out", io::path_to_json(to_)}, {"parameters", parameters}}));
    } else if (!common.quiet) {
      fmt::print("{}: {} parameters\n", printable(to_), parameters);
    }
    return kDone;
  }

 private:
  std::string from_, to_, type_ = "f16";
  bool overwrites_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_convert() { return std::make_unique<Convert>(); }

}  // namespace multihead::cli
