/* multihead from C, and from every language that calls C: attention on plain arrays, text generation, embeddings.
 *
 * No exception leaves a function. Those that can fail return an mh_status; mh_last_error() then says what came, what
 * was expected and what to do. Objects are used by one thread at a time; different objects by any. Texts are UTF-8.
 *
 *   mh_model* model = NULL;
 *   char* text = NULL;
 *   mh_generate_options options = MH_GENERATE_OPTIONS;
 *   options.max_new_tokens = 40;
 *   if (mh_model_load("model.gguf", NULL, &model) != MH_OK ||
 *       mh_generate(model, "It was", &options, &text) != MH_OK)
 *     fprintf(stderr, "%s\n", mh_last_error());
 *   mh_free(text);
 *   mh_model_free(model);
 */
#ifndef MULTIHEAD_C_H
#define MULTIHEAD_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mh_status {
  MH_OK = 0,
  MH_INVALID = 1, /* an argument: a null pointer, a shape, a number, an option that is not known */
  MH_INPUT = 2,   /* a file or folder that cannot be read, or is not understood */
  MH_MEMORY = 3,  /* not enough memory */
  MH_FAILED = 4   /* anything else */
} mh_status;

/* "major.minor.patch" of the library. */
const char* mh_version(void);
/* Why the last call of this thread failed; valid until the thread's next call. */
const char* mh_last_error(void);
/* How many threads compute; results have the same bits with any number. */
mh_status mh_set_num_threads(int threads);

/* Sizes: query [batch, heads, query_length, head_dim], key [batch, kv_heads, key_length, head_dim],
 * value [batch, kv_heads, key_length, value_dim]; heads is a multiple of kv_heads. */
typedef struct mh_attention_shape {
  int64_t batch, heads, kv_heads, query_length, key_length, head_dim, value_dim;
} mh_attention_shape;

/* Begin with MH_ATTENTION_OPTIONS, which is what the defaults are and how the library knows which fields there are:
 * later versions add some at the end. */
typedef struct mh_attention_options {
  size_t size;                /* sizeof(mh_attention_options) */
  int causal;                 /* query i sees keys j <= i + key_length - query_length */
  const double* scale;        /* NULL: 1 / sqrt(head_dim) */
  double softcap;             /* c > 0: c * tanh(score / c) */
  const int64_t* key_lengths; /* [batch] valid keys, or NULL: all */
  const uint8_t* keep;        /* [batch, query_length, key_length], 0 excludes the key, or NULL: none */
  float* lse;                 /* receives the log-sum-exp [batch, heads, query_length], or NULL */
} mh_attention_options;
#define MH_ATTENTION_OPTIONS \
  { sizeof(mh_attention_options), 0, NULL, 0, NULL, NULL, NULL }

/* out [batch, heads, query_length, value_dim] = softmax(scale * query key^T) value, row-major f32 arrays. A row whose
 * keys are all excluded gives zeros. Source: Vaswani et al. 2017, eq. 1. */
mh_status mh_attention(const mh_attention_shape* shape, const float* query, const float* key,
                       const float* value, const mh_attention_options* options, float* out);

/* A language model with its tokenizer. */
typedef struct mh_model mh_model;
/* Reads a folder in Hugging Face's form or a GGUF file; after a failure *model is NULL.
 * `weights` are bf16, f16, int8, q8, q5 or q4, or NULL: as stored. */
mh_status mh_model_load(const char* path, const char* weights, mh_model** model);
void mh_model_free(mh_model* model);

typedef struct mh_generate_options {
  size_t size; /* sizeof(mh_generate_options) */
  int64_t max_new_tokens;
  /* Below 0: as generation_config.json of the folder says. */
  double temperature; /* 0: the most probable token; else 1 */
  int64_t top_k;      /* 0 (else): all */
  double top_p;       /* else 1 */
  uint64_t seed;
  const char* const* stop; /* texts at which it ends, not empty, not part of the result */
  size_t stop_count;
  /* Called with every piece of whole characters as it is known; nonzero ends the text. It must leave the model alone.
   * NULL: nobody listens. */
  int (*on_text)(const char* piece, size_t bytes, void* user);
  void* user;
} mh_generate_options;
#define MH_GENERATE_OPTIONS \
  { sizeof(mh_generate_options), 100, -1, -1, -1, 0, NULL, 0, NULL, NULL }

/* Continues a prompt; past the context it goes on from the last half of it. *text, if `text` is not NULL, is to be freed
 * by mh_free(); after a failure it is NULL. */
mh_status mh_generate(mh_model* model, const char* prompt, const mh_generate_options* options, char** text);

typedef struct mh_message {
  const char* role; /* system, user, assistant */
  const char* content;
} mh_message;
/* Answers a conversation by the model's own chat template; the answer ends where the context is full. Otherwise as
 * mh_generate(). */
mh_status mh_chat(mh_model* model, const mh_message* messages, size_t count,
                  const mh_generate_options* options, char** text);
void mh_free(char* text);

/* Texts to vectors, by a folder of sentence-transformers or an encoder's; after a failure *encoder is NULL. */
typedef struct mh_encoder mh_encoder;
mh_status mh_encoder_load(const char* path, mh_encoder** encoder);
void mh_encoder_free(mh_encoder* encoder);
/* The width of a vector; 0 for NULL. */
int64_t mh_encoder_dim(const mh_encoder* encoder);
/* vectors [count, dim]. A text's vector has the same bits in any batch. */
mh_status mh_encoder_encode(mh_encoder* encoder, const char* const* texts, size_t count, float* vectors);

#ifdef __cplusplus
}
#endif

#endif
