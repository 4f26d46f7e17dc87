"""A BERT with a few words, in a folder of its own: the weights of a fixture with a vocabulary beside them."""

import json
import pathlib
import shutil

import numpy as np

import multihead as mh

ENCODERS = pathlib.Path(__file__).parents[2] / "tests" / "data" / "encoders"


def make_bert(folder, words):
    shutil.copytree(ENCODERS / "bert", folder, dirs_exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": True, "model_max_length": 19, "tokenizer_class": "BertTokenizer"}))
    return folder


def make_router(folder, model, routes, **parameters):
    """A folder whose texts of a task go through copies of a model with the pooling of `routes`."""
    folder.mkdir()
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}]))
    types, structure = {}, {}
    for task, pooling in routes.items():
        parts = structure[task] = [f"{task}_0_Transformer", f"{task}_1_Pooling"]
        types |= dict(zip(parts, ("sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling")))
        shutil.copytree(model, folder / parts[0])
        (folder / parts[1]).mkdir()
        (folder / parts[1] / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
    (folder / "router_config.json").write_text(json.dumps({"types": types, "structure": structure, "parameters": parameters}))
    return folder


def add_multi_vector_modules(folder, width):
    """What makes a multi-vector model of sentence-transformers of an encoder's folder: 7 columns, and no full stops or
    commas of documents."""
    tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    kinds = ["base.modules.transformer.Transformer", "base.modules.dense.Dense",
             "multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask", "base.modules.normalize.Normalize"]
    parts = ["", "1_Dense", "2_MultiVectorMask", "3_Normalize"]
    (folder / "modules.json").write_text(json.dumps([
        {"idx": i, "name": str(i), "path": part, "type": f"sentence_transformers.{kind}"}
        for i, (part, kind) in enumerate(zip(parts, kinds))]))
    configs = [{"in_features": width, "out_features": 7, "bias": False, "activation_function": "torch.nn.modules.linear.Identity", **tokens},
               {"skiplist_words": [".", ",", "absent"], "skiplist_tasks": ["document"], "keep_only_token_ids": None}, tokens]
    for part, config in zip(parts[1:], configs):
        (folder / part).mkdir()
        (folder / part / "config.json").write_text(json.dumps(config))
    weight = np.random.default_rng(1).normal(size=(7, width)).astype(np.float32)
    mh.save_safetensors(str(folder / "1_Dense" / "model.safetensors"), {"linear.weight": weight})
    (folder / "config_sentence_transformers.json").write_text(json.dumps(
        {"model_type": "MultiVectorEncoder", "prompts": {"query": "q : ", "document": "the "}, "default_prompt_name": None}))
