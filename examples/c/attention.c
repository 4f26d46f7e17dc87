/* Attention on plain arrays, from C: three tokens, causal. */
#include <math.h>
#include <stdio.h>

#include "multihead/c.h"

int main(void) {
  const float query[] = {1, 0, 0, 1, 1, 1}, value[] = {1, 2, 3};
  float out[3], lse[3];
  const mh_attention_shape shape = {1, 1, 1, 3, 3, 2, 1}; /* one head, three tokens, queries of width 2, values of 1 */
  mh_attention_options options = MH_ATTENTION_OPTIONS;
  options.causal = 1;
  options.lse = lse;
  if (mh_attention(&shape, query, query, value, &options, out) != MH_OK) {
    fprintf(stderr, "attention: %s\n", mh_last_error());
    return 1;
  }
  for (int t = 0; t < 3; ++t) printf("token %d: %.6f (log-sum-exp %.6f)\n", t, out[t], lse[t]);
  /* By hand: the second token sees scores 0 and 1/sqrt(2) of the first two. */
  const double e = exp(1 / sqrt(2.0));
  return fabs(out[1] - (1 + 2 * e) / (1 + e)) < 1e-6 && out[0] == 1 ? 0 : 1;
}
