// Each function adds one unit to the extension module.
#pragma once

#include <nanobind/nanobind.h>

#include "python/src/tensor/numbers.h"

namespace multihead::python {

void bind_core(nanobind::module_& m);             // core.cc: threads, instruction set, memory, errors
void bind_tensor(nanobind::module_& m);           // tensor.cc
void bind_ops(nanobind::module_& m);              // ops.cc
void bind_fused_ops(nanobind::module_& m);        // ops_fused.cc
void bind_masks(nanobind::module_& m);            // masks.cc
void bind_attention(nanobind::module_& m);        // attention.cc
void bind_attention_kinds(nanobind::module_& m);  // attention_kinds.cc
void bind_attention_rows(nanobind::module_& m);   // rows.cc
void bind_flex(nanobind::module_& m);             // flex.cc
void bind_torch(nanobind::module_& m);            // torch.cc
void bind_nn(nanobind::module_& m);               // nn.cc
void bind_stacks(nanobind::module_& m);           // stacks.cc
void bind_models(nanobind::module_& m);           // models.cc
void bind_generator(nanobind::module_& m);        // generation.cc
void bind_seq2seq(nanobind::module_& m);          // seq2seq.cc: translation
void bind_text(nanobind::module_& m);             // text.cc
void bind_corpus(nanobind::module_& m);           // corpus.cc: text files, BLEU, chrF
void bind_distributed(nanobind::module_& m);      // distributed.cc: the ranks of a job
void bind_ring(nanobind::module_& m);             // ring.cc: long sequences over several ranks
void bind_training(nanobind::module_& m);         // training.cc: optimisers, safetensors
void bind_checkpoints(nanobind::module_& m);      // checkpoints.cc
void bind_runs(nanobind::module_& m);             // runs.cc: whole training runs, evaluation, checks
void bind_embed(nanobind::module_& m);            // embed.cc: encoders, vectors of texts
void bind_decoding(nanobind::module_& m);         // decoding.cc: states of generation
void bind_points(nanobind::module_& m);           // points.cc: named points inside models
void bind_own_attention(nanobind::module_& m);    // own_attention.cc: attention written in Python
void bind_look(nanobind::module_& m);             // look.cc: pages of attention
void bind_serve(nanobind::module_& m);            // serve.cc: models behind HTTP

}  // namespace multihead::python
