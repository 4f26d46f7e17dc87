// The extension module multihead._core: thin wrappers, one unit per folder of the library.
#include "python/src/bindings.h"

#include "python/src/tensor/bindings.h"

NB_MODULE(_core, m) {
  // Its types and exceptions are one set for the process: a second interpreter would take them from the
  // first.
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    throw nanobind::import_error(
        "multihead cannot be imported into a subinterpreter; use threads or processes");
  }
  using namespace multihead::python;   // NOLINT(google-build-using-namespace)
  nanobind::set_leak_warnings(false);  // PyTorch's graph may hold calls when the interpreter ends
  bind_core(m);
  bind_tensor(m);
  bind_custom_op(m);
  bind_ops(m);
  bind_array_ops(m);
  bind_fused_ops(m);
  bind_masks(m);
  bind_attention(m);
  bind_attention_kinds(m);
  bind_attention_rows(m);
  bind_flex(m);
  bind_torch(m);
  bind_nn(m);
  bind_stacks(m);
  bind_decoding(m);
  bind_points(m);
  bind_look(m);
  bind_own_attention(m);
  bind_models(m);
  bind_generator(m);
  bind_seq2seq(m);
  bind_text(m);
  bind_embed(m);
  bind_serve(m);
  bind_corpus(m);
  bind_distributed(m);
  bind_ring(m);
  bind_training(m);
  bind_checkpoints(m);
  bind_runs(m);
}
