#!/usr/bin/env python3
"""Sentence embedding by an encoder of MiniLM's shape beside its rivals: texts per second, and how far the vectors differ.

    python bench/encoders.py MODEL_FOLDER TEXT_FILE                 # a text a line; all programs installed here, 2 threads
    python bench/encoders.py FOLDER FILE --programs multihead-int8 onnxruntime-int8 --texts 512 --rounds 5

Three ways: one text at a time, batches of 32 as they come, batches of 32 sorted by length. Every program is a process
of its own that sleeps while the others run; they take turns, medians over the rounds are printed. Tokens, mean pooling
and normalisation are included everywhere. "differs" is the mean over the texts of 1 - cosine with sentence-transformers
in f32. Needs multihead, tokenizers and whichever of torch, sentence-transformers, onnx, onnxruntime, openvino and
ctranslate2 are to be compared.
"""

import argparse
import datetime
import json
import pathlib
import sys
import tempfile
import time

import numpy as np
from turns import Program, medians, serve

WAYS = {"one": (1, False), "batches": (32, False), "sorted": (32, True)}


def pooled(hidden, mask):
    vectors = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class Rows:
    """Token ids of a batch, cut where sentence-transformers cuts, padded, with their mask, by the folder's tokenizer."""

    def __init__(self, folder):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = json.loads((folder / "sentence_bert_config.json").read_text())
        self.tokenizer.enable_truncation(config["max_seq_length"])
        self.tokenizer.enable_padding()

    def __call__(self, texts):
        rows = self.tokenizer.encode_batch(texts)
        return np.array([row.ids for row in rows]), np.array([row.attention_mask for row in rows])


def by_hidden(folder, hidden):
    """Encodes texts by a function from ids and mask to hidden states."""
    rows = Rows(folder)

    def encode(texts):
        ids, mask = rows(texts)
        return pooled(hidden(ids, mask), mask)

    return encode


def multihead(precision):
    def load(folder, work, threads):
        import multihead as mh

        mh.set_num_threads(threads)
        options = {"precision": "bf16"} if precision == "bf16" else {"weights": precision}
        encoder = mh.SentenceEncoder(str(folder), **options)
        return lambda texts: encoder.encode(texts, batch_size=len(texts), normalize_embeddings=True)

    return load


def sentence_transformers(precision):
    def load(folder, work, threads):
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(threads)
        model = SentenceTransformer(str(folder), device="cpu", model_kwargs={
            "dtype": torch.bfloat16 if precision == "bf16" else torch.float32})
        return lambda texts: model.encode(texts, batch_size=len(texts), normalize_embeddings=True)

    return load


def onnx_file(folder, work):
    """The encoder as an ONNX file, with ONNX Runtime's own fusions applied."""
    path = work / "fused.onnx"
    if path.exists():
        return path
    import torch
    from onnxruntime.transformers import optimizer
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    ids = torch.ones(2, 8, dtype=torch.long)
    axes = {0: "batch", 1: "tokens"}
    torch.onnx.export(Hidden(), (ids, ids), str(work / "plain.onnx"), input_names=["ids", "mask"],
                      output_names=["hidden"], dynamic_axes={"ids": axes, "mask": axes, "hidden": axes},
                      opset_version=17, dynamo=False)
    config = model.config
    fused = optimizer.optimize_model(str(work / "plain.onnx"), model_type="bert", num_heads=config.num_attention_heads,
                                     hidden_size=config.hidden_size)
    fused.save_model_to_file(str(path))
    return path


def onnxruntime(precision):
    def load(folder, work, threads):
        path = onnx_file(folder, work)
        if precision == "int8":
            from onnxruntime.quantization import QuantType, quantize_dynamic

            int8 = work / "int8.onnx"
            if not int8.exists():
                quantize_dynamic(str(path), str(int8), weight_type=QuantType.QInt8, per_channel=True,
                                 extra_options={"DefaultTensorType": 1})  # float: what it cannot infer
            path = int8
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return by_hidden(folder, lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0])

    return load


def openvino(precision):
    def load(folder, work, threads):
        import openvino as ov

        onnx_file(folder, work)
        compiled = ov.Core().compile_model(ov.convert_model(str(work / "plain.onnx")), "CPU", {
            "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": precision})
        return by_hidden(folder, lambda ids, mask: compiled([ids, mask])[0])

    return load


def ctranslate2(precision):
    def load(folder, work, threads):
        import ctranslate2
        from ctranslate2.converters import TransformersConverter

        if not (work / "ctranslate2").exists():
            TransformersConverter(str(folder)).convert(str(work / "ctranslate2"))
        encoder = ctranslate2.Encoder(str(work / "ctranslate2"), compute_type=precision, intra_threads=threads)

        def hidden(ids, mask):
            lists = [row[:length].tolist() for row, length in zip(ids, mask.sum(1))]
            return np.array(encoder.forward_batch(lists).last_hidden_state)

        return by_hidden(folder, hidden)

    return load


PROGRAMS = {
    "sentence-transformers-f32": sentence_transformers("f32"),
    "onnxruntime-f32": onnxruntime("f32"),
    "openvino-f32": openvino("f32"),
    "ctranslate2-f32": ctranslate2("float32"),
    "multihead-f32": multihead("f32"),
    "sentence-transformers-bf16": sentence_transformers("bf16"),
    "openvino-bf16": openvino("bf16"),
    "ctranslate2-bf16": ctranslate2("bfloat16"),
    "multihead-bf16": multihead("bf16"),
    "onnxruntime-int8": onnxruntime("int8"),
    "ctranslate2-int8": ctranslate2("int8"),
    "multihead-int8": multihead("int8"),
}


def load(name, folder, work, threads, texts):
    """Saves all vectors; gives the function from a way to its texts per second."""
    encode = PROGRAMS[name](folder, work, threads)
    np.save(work / f"{name}.npy", np.concatenate([encode(texts[i:i + 32]) for i in range(0, len(texts), 32)]))

    def rate(way):
        size, ordered = WAYS[way]
        order = sorted(texts, key=len) if ordered else texts
        begin = time.perf_counter()
        for i in range(0, len(order), size):
            encode(order[i:i + size])
        return len(texts) / (time.perf_counter() - begin)

    return rate


def start(name, options, work):
    program = Program([__file__, options.folder, options.file, "--texts", str(options.texts), "--threads",
                       str(options.threads), "--serve", name, work], OMP_NUM_THREADS=str(options.threads),
                      OMP_WAIT_POLICY="passive", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    if program.error is not None:
        print(f"{name}: left out: {program.error.splitlines()[-1][:200]}", file=sys.stderr)
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=PROGRAMS)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=2, metavar=("NAME", "WORK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    lines = [line.strip() for line in options.file.read_text(encoding="utf-8").splitlines() if line.strip()]
    texts = lines[::max(1, len(lines) // options.texts)][:options.texts]
    if options.serve:
        name, work = options.serve
        return serve(lambda: load(name, options.folder, pathlib.Path(work), options.threads, texts))
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        started = {name: start(name, options, work) for name in options.programs}
        programs = {name: program for name, program in started.items() if program.error is None}
        report = medians(programs, WAYS, options.rounds)
        for program in programs.values():
            program.close()
        reference = work / "sentence-transformers-f32.npy"
        reference = np.load(reference) if reference.exists() else None
        for name, row in report.items():
            if reference is not None:
                row["differs"] = float(1 - (np.load(work / f"{name}.npy") * reference).sum(1).mean())
    if options.json:
        return print(json.dumps(report, indent=1))
    print(f"{options.folder.name}, {len(texts)} texts, {options.threads} threads, {datetime.date.today()}; texts/s")
    print(f"{'':28}{'one':>8}{'batches':>9}{'sorted':>8}{'differs':>10}")
    for name, row in report.items():
        print(f"{name:28}{row['one']:8.1f}{row['batches']:9.1f}{row['sorted']:8.1f}{row.get('differs', float('nan')):10.1e}")


if __name__ == "__main__":
    main()
