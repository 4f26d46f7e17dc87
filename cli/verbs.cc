#include "cli/verb.h"

namespace multihead::cli {

Verbs make_verbs() {
  Verbs verbs;
  verbs.push_back(make_train_lm());
  verbs.push_back(make_train_seq2seq());
  verbs.push_back(make_generate());
  verbs.push_back(make_translate());
  verbs.push_back(make_eval());
  verbs.push_back(make_attend());
  verbs.push_back(make_info());
  verbs.push_back(make_check());
  verbs.push_back(make_tokenizer_train());
  verbs.push_back(make_tokenizer_encode());
  verbs.push_back(make_tokenizer_decode());
  verbs.push_back(make_bench_train());
  verbs.push_back(make_bench_gemm());
  verbs.push_back(make_bench_attention());
  verbs.push_back(make_completion());
  return verbs;
}

}  // namespace multihead::cli
