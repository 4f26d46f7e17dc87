/* Continues a prompt with a language model, from C.
 *   generate MODEL PROMPT [TOKENS]      MODEL: a Hugging Face folder or a GGUF file
 * Any language that calls C does the same: see multihead/c.h. */
#include <stdio.h>
#include <stdlib.h>

#include "multihead/c.h"

static int show(const char* piece, size_t bytes, void* user) {
  fwrite(piece, 1, bytes, (FILE*)user);
  fflush((FILE*)user);
  return 0; /* nonzero would end the text */
}

static int fail(void) {
  fprintf(stderr, "generate: %s\n", mh_last_error());
  return 1;
}

int main(int count, char** arguments) {
  if (count < 3) {
    fprintf(stderr, "usage: generate MODEL PROMPT [TOKENS]\n");
    return 2;
  }
  mh_model* model = NULL;
  if (mh_model_load(arguments[1], NULL, &model) != MH_OK) return fail();
  mh_generate_options options = MH_GENERATE_OPTIONS;
  if (count > 3) options.max_new_tokens = atoi(arguments[3]);
  options.temperature = 0;
  options.on_text = show;
  options.user = stdout;
  const mh_status status = mh_generate(model, arguments[2], &options, NULL);
  mh_model_free(model);
  printf("\n");
  return status == MH_OK ? 0 : fail();
}
