#include "cli/verb.h"

namespace multihead::cli {

// Each at the end of its file; here in the order of --help.
void add_training(Verbs& verbs);
std::unique_ptr<Verb> make_generate(), make_translate(), make_eval(), make_embed(), make_search(),
    make_serve(), make_rerank(), make_classify(), make_fill_mask(), make_quantize(), make_prune(),
    make_convert(), make_attend(), make_lab(), make_info(), make_check(), make_tokenizer_train(),
    make_tokenizer_encode(), make_tokenizer_decode(), make_tokenizer_list(), make_tokenizer_verify(),
    make_bench_train(), make_bench_gemm(), make_bench_attention(), make_completion();

Verbs make_verbs() {
  Verbs verbs;
  add_training(verbs);
  for (const auto make :
       {// what models do
        make_generate, make_translate, make_eval, make_embed, make_search, make_rerank, make_classify,
        make_fill_mask, make_serve,
        // what is done to models
        make_quantize, make_prune, make_convert, make_attend, make_lab, make_info, make_check,
        // tokenizers, speed, the shell
        make_tokenizer_train, make_tokenizer_encode, make_tokenizer_decode, make_tokenizer_list,
        make_tokenizer_verify, make_bench_train, make_bench_gemm, make_bench_attention, make_completion}) {
    verbs.push_back(make());
  }
  return verbs;
}

}  // namespace multihead::cli
