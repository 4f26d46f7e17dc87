"""Beam-4 translation beside transformers' generate and CTranslate2: sentences per second.

    python3 bench/translation.py build/bench/generate_bench [--threads 2] [--rounds 3]

4+4 layers of 256, 8 heads, 8,000 words, random weights, f32, and int8 of both that have it; 64 sources of 8 to 40
tokens, exactly 30 tokens out. Every round runs each program once, one after the other, and the medians over the
rounds are printed: sentences per second, and how many times multihead's f32 and int8 are as fast.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

WORDS, SIZE, HIDDEN, LAYERS, HEADS, BEAMS, LENGTH = 8000, 256, 1024, 4, 8, 4, 30


def sources():
    rng = random.Random(0)
    return [[rng.randrange(4, WORDS) for _ in range(rng.randint(8, 40))] for _ in range(64)]


class Transformers:
    def __init__(self, threads):
        import torch
        from transformers import MarianConfig, MarianMTModel

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        config = MarianConfig(
            vocab_size=WORDS, d_model=SIZE, encoder_layers=LAYERS, decoder_layers=LAYERS,
            encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=HIDDEN,
            decoder_ffn_dim=HIDDEN, max_position_embeddings=512, pad_token_id=0, eos_token_id=1,
            decoder_start_token_id=0, forced_eos_token_id=1, scale_embedding=True, activation_function="relu")
        self.torch, self.model = torch, MarianMTModel(config).eval()

    def translate(self, batch):
        torch = self.torch
        longest = max(map(len, batch)) + 1
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, source in enumerate(batch):
            ids[row, : len(source) + 1] = torch.tensor(source + [1])
            mask[row, : len(source) + 1] = 1
        with torch.inference_mode():
            self.model.generate(input_ids=ids, attention_mask=mask, num_beams=BEAMS, min_new_tokens=LENGTH,
                                max_new_tokens=LENGTH, do_sample=False)


class CTranslate2:
    def __init__(self, threads, compute_type):
        import ctranslate2
        import numpy
        from ctranslate2.specs import TransformerSpec

        rng = numpy.random.default_rng(0)
        spec = TransformerSpec.from_config((LAYERS, LAYERS), HEADS)

        def matrix(*shape):
            return (rng.standard_normal(shape) * 0.05).astype(numpy.float32)

        def linear(to, outputs, inputs):
            to.weight, to.bias = matrix(outputs, inputs), matrix(outputs)

        def norm(to):
            to.gamma, to.beta = numpy.ones(SIZE, numpy.float32), numpy.zeros(SIZE, numpy.float32)

        def attention(to, *sizes):
            for part, size in zip(to.linear, sizes):
                linear(part, size, SIZE)
            norm(to.layer_norm)

        def feed_forward(to):
            linear(to.linear_0, HIDDEN, SIZE)
            linear(to.linear_1, SIZE, HIDDEN)
            norm(to.layer_norm)

        for side in (spec.encoder, spec.decoder):
            embeddings = side.embeddings[0] if side is spec.encoder else side.embeddings
            embeddings.weight = matrix(WORDS, SIZE)
            side.scale_embeddings = True
            side.position_encodings.encodings = matrix(512, SIZE)
            for layer in side.layer:
                attention(layer.self_attention, 3 * SIZE, SIZE)
                if side is spec.decoder:
                    attention(layer.attention, SIZE, 2 * SIZE, SIZE)
                feed_forward(layer.ffn)
            if getattr(side, "layer_norm", None):
                norm(side.layer_norm)
        linear(spec.decoder.projection, WORDS, SIZE)
        words = ["<blank>", "<s>", "</s>", "<unk>"] + [f"w{i}" for i in range(4, WORDS)]
        spec.register_source_vocabulary(words)
        spec.register_target_vocabulary(words)
        spec.validate()
        spec.optimize(quantization=None)
        folder = tempfile.mkdtemp()
        spec.save(folder)
        self.translator = ctranslate2.Translator(folder, device="cpu", compute_type=compute_type,
                                                 intra_threads=threads)

    def translate(self, batch):
        texts = [[f"w{token}" for token in source] + ["</s>"] for source in batch]
        self.translator.translate_batch(texts, beam_size=BEAMS, min_decoding_length=LENGTH,
                                        max_decoding_length=LENGTH, max_batch_size=len(texts))


def timed(program, size, count):
    texts = sources()[:count]
    program.translate(texts[:size])
    begin_time = time.perf_counter()
    for begin in range(0, count, size):
        program.translate(texts[begin : begin + size])
    return count / (time.perf_counter() - begin_time)


OURS = {"multihead": "Translate", "multihead int8": "TranslateInt8"}


def ours(path, name, size, threads):
    out = subprocess.run(
        [path, f"--benchmark_filter={OURS[name]}/{size}/{threads}/", "--benchmark_format=json",
         "--benchmark_min_time=0.7"], check=True, capture_output=True, text=True).stdout
    return json.loads(out)["benchmarks"][0]["items_per_second"]


RIVALS = {
    "transformers": Transformers,
    "CTranslate2": lambda threads: CTranslate2(threads, "float32"),
    "CTranslate2 int8": lambda threads: CTranslate2(threads, "int8"),
}


def rival(name, size, threads):
    """In a process of its own: idle workers of one library would spin beside the next one's."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    out = subprocess.run([sys.executable, __file__, "--rival", name, "--size", str(size), "--threads", str(threads)],
                         check=True, capture_output=True, text=True, env=environment).stdout
    return json.loads(out.splitlines()[-1])


def compare(bench, sizes, threads, rounds):
    for size in sizes:
        seen = {name: [] for name in (*OURS, *RIVALS)}
        for _ in range(rounds):
            for name in OURS:
                seen[name].append(ours(bench, name, size, threads))
            for name in RIVALS:
                seen[name].append(rival(name, size, threads))
        rates = {name: statistics.median(rounds) for name, rounds in seen.items()}
        for name, rate in rates.items():
            factors = "   ".join(f"{own} x{rates[own] / rate:.2f}" for own in OURS)
            print(f"batch {size:2}  {name:16}  {rate:6.1f} sentences/s   {factors}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench", nargs="?", help="path of generate_bench")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rival", choices=RIVALS, help="time this one alone and print its rates as JSON")
    parser.add_argument("--size", type=int, choices=(32, 1), help="sentences in a batch; default: 32, then 1")
    options = parser.parse_args()
    if options.rival:
        options.size = options.size or 32
        slow = options.size == 1 and options.rival == "transformers"
        count = 64 if options.size > 1 else 8 if slow else 32
        print(json.dumps(timed(RIVALS[options.rival](options.threads), options.size, count)))
    elif options.bench:
        compare(options.bench, [options.size] if options.size else [32, 1], options.threads, options.rounds)
    else:
        parser.error("the path of generate_bench is missing")


if __name__ == "__main__":
    main()
