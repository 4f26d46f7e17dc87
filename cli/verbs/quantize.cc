// multihead quantize
#include <fmt/format.h>

#include "cli/model_dir.h"
#include "cli/streams.h"

namespace multihead::cli {
namespace {

class Quantize : public Verb {
 public:
  Quantize()
      : Verb("quantize", "quantise the weights of a language model",
             {{"multihead quantize model --out small --weights q4",
               "a seventh of the memory; for generate, eval, check and info"}}) {}

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "model folder");
    flags.output("out", "DIR", out_, "folder to write (required)");
    declare_overwrite(flags, overwrites_);
    declare_weights(flags, weights_, true, false);
  }

  int run(const CommonOptions& common) override {
    if (out_.empty()) throw UsageError("--out DIR is required; see multihead quantize --help");
    if (!overwrites_) check_vacant(out_);
    LoadedModel loaded = load_model_dir(folder_, weights_);
    const std::string_view dtype = kernels::name(loaded.model.weight_dtype());
    if (dtype == "f32") throw UsageError(folder_ + " holds f32 weights; choose a format with --weights");
    save_model_dir(loaded, folder_, out_);
    if (!common.quiet) note_pooling(folder_);
    const auto bytes = static_cast<int64_t>(loaded.model.weight_bytes());
    const int64_t f32 = 4 * models::matrix_weights(loaded.model.config());
    if (common.json) {
      put_json(Json::object({{"weights", dtype}, {"bytes", bytes}, {"f32_bytes", f32}}));
    } else {
      fmt::print("{}: {} weights, {:.1f} MB ({:.1f} in f32)\n", printable(out_), dtype,
                 static_cast<double>(bytes) * 1e-6, static_cast<double>(f32) * 1e-6);
    }
    return kDone;
  }

 private:
  std::string folder_, out_, weights_ = "q4";
  bool overwrites_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_quantize() { return std::make_unique<Quantize>(); }

}  // namespace multihead::cli
