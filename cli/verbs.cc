#include "cli/verb.h"

namespace multihead::cli {

Verbs make_verbs() {
  Verbs verbs;
  verbs.push_back(make_train_lm());
  return verbs;
}

}  // namespace multihead::cli
