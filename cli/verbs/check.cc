// multihead check
#include <fmt/format.h>

#include "cli/model_dir.h"
#include "cli/parser.h"
#include "cli/streams.h"
#include "multihead/train/doctor/doctor.h"

namespace multihead::cli {
namespace {

class Check : public Verb {
 public:
  Check()
      : Verb("check", "check a model: causality, cache, gradients",
             {{"multihead check model",
               "causality, padding, cache, threads, gradients, learning; exit code 1 if a check fails"},
              {"multihead check encoder", "an encoder: context, same vectors in any batch, threads"}}) {}

  void declare(Flags& flags) override {
    flags.positional("DIR", folder_, "model folder");
    flags.integer("length", options_.length, "tokens per sequence", {.least = 1});
    declare_weights(flags, weights_);
    flags.integer("seed", seed_, "random seed of the sequences");
  }

  int run(const CommonOptions& common) override {
    options_.seed = static_cast<uint64_t>(seed_);
    if (!common.json) options_.on_result = print;
    const std::vector<train::CheckResult> results = check();
    bool all = true;
    Json checks = Json::array();
    for (const train::CheckResult& r : results) {
      all = all && r.passed;
      checks.push_back(Json::object(
          {{"name", r.name}, {"passed", r.passed}, {"detail", r.detail}, {"seconds", r.seconds}}));
    }
    if (common.json) put_json(Json::object({{"passed", all}, {"checks", checks}}));
    if (all) return kDone;
    check_weights(folder_, "the checks cannot pass");
    return kFailed;
  }

 private:
  std::vector<train::CheckResult> check() const {
    if (reading([&] { return models::is_seq2seq_folder(folder_); })) {
      refuse_given("on a translator", {"weights"});
      return train::check_translator(reading([&] { return models::load_seq2seq(folder_); }), options_);
    }
    if (reading([&] { return models::is_encoder_folder(folder_); })) {
      std::optional<nn::WeightDtype> weights;
      if (weights_ != "stored") weights = kernels::parse_weight_dtype(weights_);
      models::Encoder encoder =
          reading([&] { return models::load_encoder(folder_, weights, weights.has_value()); });
      return train::check_encoder(encoder, options_);
    }
    return train::check_language_model(load_model_dir(folder_, weights_).model, options_);
  }

  static void print(const train::CheckResult& r) {
    fmt::print("{}  {:<12} {}\n", r.passed ? "ok  " : "FAIL", r.name, printable(r.detail));
    flush_output();
  }

  std::string folder_, weights_ = "stored";
  int64_t seed_ = 1;
  train::DoctorOptions options_;
};

}  // namespace

std::unique_ptr<Verb> make_check() { return std::make_unique<Check>(); }

}  // namespace multihead::cli
