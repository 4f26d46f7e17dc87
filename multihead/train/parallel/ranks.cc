// Ranks of one job must compute the same: those that would not are refused before the first step.
#include <unistd.h>

#include <span>

#include "multihead/core/checksum.h"
#include "multihead/core/error.h"
#include "multihead/core/text/utf8.h"
#include "multihead/core/version.h"
#include "multihead/kernels/amx/precision.h"
#include "multihead/kernels/cpu/isa.h"
#include "multihead/train/run.h"

namespace multihead::train {
namespace {

// Describes what decides the bits: in f32 AVX2 and AVX-512 agree; bf16 rounds by the instructions there are.
std::string arithmetic(const TrainingSettings& settings) {
  const kernels::Isa isa = kernels::current_isa();
  const bool tiles = kernels::has_tiles();
  const bool f32_on_tiles = tiles && kernels::float32_matmul_precision() != kernels::MatmulPrecision::highest;
  if (settings.precision == Precision::f32 && !f32_on_tiles) {
    return isa == kernels::Isa::baseline ? "without FMA" : "with FMA";
  }
  return concat(kernels::isa_name(isa), tiles ? ", tiles" : "", kernels::bf16_dots() ? ", bf16 dots" : "",
                ", ", kernels::precision_name(kernels::float32_matmul_precision()));
}

std::string host() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return valid_utf8(name);
}

uint64_t weights_checksum(const std::vector<nn::NamedTensor>& weights) {
  std::string sums;
  for (const auto& [name, tensor] : weights) {
    const Tensor rows = tensor.contiguous();
    const std::span<const std::byte> bytes = std::as_bytes(rows.span<float>());
    sums += checksum_text(checksum({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  }
  return checksum(sums);
}

// The first member that differs, with both values; empty: none.
std::string first_difference(const Json& first, const Json& other) {
  for (const JsonMember& member : first.members()) {
    if (member.key.view() == "host") continue;
    const Json* value = other.find(member.key);
    if (value != nullptr && *value == member.value) continue;
    return concat(member.key.view(), " is ", value != nullptr ? value->dump() : "absent", ", not ",
                  member.value.dump());
  }
  return "";
}

}  // namespace

void check_request(const RunRequest& request, const TrainingSettings& settings) {
  static_cast<void>(
      ShardTree(terms_of(settings, request.ranks()), request.ranks()));  // or says what is wrong
  MH_CHECK(settings.lora.rank == 0 || !request.init.empty(), ValueError,
           "train: --lora-rank is for fine-tuning and needs --init");
}

std::unique_ptr<RunFolder> folder_of(const RunRequest& request) {
  if (!request.leads()) return nullptr;
  return std::make_unique<RunFolder>(request.folder, request.resume, request.overwrite);
}

std::string tokenizer_source(const RunRequest& request, const RunFolder& folder) {
  if (folder.checkpoint()) return folder.checkpoint()->path;
  return request.tokenizer.empty() ? request.init : request.tokenizer;
}

void check_named_tokenizer(const RunRequest& request, const RunFolder& folder,
                           FunctionRef<std::vector<uint64_t>(const std::string& source)> fingerprints) {
  const bool is_named = std::ranges::find(request.given, "tokenizer-file") != request.given.end();
  if (!is_named || !folder.checkpoint()) return;
  MH_CHECK(fingerprints(request.tokenizer) == fingerprints(folder.checkpoint()->path), ValueError,
           "train: --tokenizer-file ", quote(request.tokenizer),
           " is not the tokenizer that the run began with");
}

text::Tokenizer share_tokenizer(distributed::Group* group, const text::Tokenizer* own) {
  if (group == nullptr) return *own;
  const std::string json = group->broadcast_text(0, own != nullptr ? own->to_json() : "");
  const std::string config = group->broadcast_text(0, own != nullptr ? own->config_json() : "");
  return own != nullptr ? *own : text::Tokenizer::from_contents(json, config);
}

text::Tokenizer tokenizer_of(const RunRequest& request, const RunFolder* folder,
                             FunctionRef<text::Tokenizer()> train) {
  std::optional<text::Tokenizer> own;
  if (folder != nullptr) {
    const std::string source = tokenizer_source(request, *folder);
    own = source.empty() ? train() : text::Tokenizer::load(source);
    check_named_tokenizer(request, *folder, [](const std::string& from) {
      return std::vector{text::Tokenizer::load(from).fingerprint()};
    });
  }
  return share_tokenizer(request.group, own ? &*own : nullptr);
}

void check_alike(const RunRequest& request, const TrainingSettings& settings, const Json& identity,
                 const std::vector<nn::NamedTensor>& weights) {
  if (request.ranks() == 1) return;
  distributed::Group& group = *request.group;
  Json own = identity;
  own["host"] = host();
  own["version"] = concat(version(), git_hash().empty() ? "" : " ", git_hash());
  own["instruction set"] = arithmetic(settings);
  own["weights"] = checksum_text(weights_checksum(weights));  // frozen ones stay as each rank has read them
  const std::vector<std::string> all = group.gather(0, own.dump());
  std::string problem;
  for (size_t rank = 1; rank < all.size() && problem.empty(); ++rank) {
    const Json other = Json::parse(all[rank], "rank");
    const std::string difference = first_difference(own, other);
    if (difference.empty()) continue;
    problem = concat("train: rank ", rank, " on ", other.at("host").dump(), " differs from rank 0 on ",
                     own.at("host").dump(), ": ", difference);
  }
  problem = group.broadcast_text(0, problem);
  MH_CHECK(problem.empty(), ValueError, problem);
}

}  // namespace multihead::train
