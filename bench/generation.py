#!/usr/bin/env python3
"""Greedy decoding of a language model beside its rivals: tokens per second of one sequence, of eight at once and more.

    python bench/generation.py                                     # GPT-2's size; all programs installed here, two threads
    python bench/generation.py --shape llama --programs multihead-int8 ctranslate2-int8 --batches 1 8 --rounds 5

Random weights: "gpt2" is 12 layers of 768 with 50,257 words, "llama" 30 layers of 576 with 49,152. Prompts of 8 tokens, 32
new ones, of which the first and its prompt are not counted. Every program is a process of its own that sleeps while the
others run; they take turns, medians over the rounds are printed. Needs multihead, torch and transformers, and whichever
of ctranslate2 and onnxruntime-genai (which reads "llama" only) are to be compared. For llama.cpp see gguf_files.py.
"""

import argparse
import datetime
import pathlib
import sys
import tempfile
import time

from turns import Program, medians, serve

PROMPT, NEW = list(range(1, 9)), 32


def multihead(weights):
    def load(folder, work, threads):
        import multihead as mh

        mh.set_num_threads(threads)
        model = mh.models.LanguageModel.load(folder, None if weights == "f32" else weights, packed=True)
        return lambda batch, new: model.generate([PROMPT] * batch, max_new_tokens=new, temperature=0.0)

    return load


def transformers(precision):
    def load(folder, work, threads):
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, precision)).eval()

        def generate(batch, new):
            tokens = torch.tensor([PROMPT] * batch)
            with torch.inference_mode():
                model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=new, min_new_tokens=new,
                               do_sample=False)

        return generate

    return load


def ctranslate2(precision):
    def load(folder, work, threads):
        import ctranslate2
        from ctranslate2.converters import TransformersConverter

        converted = work / "ctranslate2"
        if not converted.exists():
            TransformersConverter(str(folder)).convert(str(converted))
        model = ctranslate2.Generator(str(converted), compute_type=precision, intra_threads=threads)

        def generate(batch, new):
            model.generate_batch([[f"t{id}" for id in PROMPT]] * batch, max_length=new, min_length=new,
                                 include_prompt_in_result=False)

        return generate

    return load


def onnxruntime_genai(precision):
    def load(folder, work, threads):
        import subprocess

        import onnxruntime_genai as og

        built = work / f"genai-{precision}"
        if not built.exists():
            subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(folder), "-o", str(built),
                            "-p", precision, "-e", "cpu", "-c", str(work / "cache")],
                           check=True, capture_output=True, stdin=subprocess.DEVNULL)
        model = og.Model(og.Config(str(built)))

        def generate(batch, new):
            options = og.GeneratorParams(model)
            options.set_search_options(batch_size=batch, min_length=len(PROMPT) + new, max_length=len(PROMPT) + new,
                                       do_sample=False)
            generator = og.Generator(model, options)
            generator.append_tokens([PROMPT] * batch)
            for _ in range(new):
                generator.generate_next_token()

        return generate

    return load


PROGRAMS = {
    **{f"multihead-{weights}": multihead(weights) for weights in ("f32", "bf16", "int8", "q8", "q4")},
    "transformers-f32": transformers("float32"),
    "transformers-bf16": transformers("bfloat16"),
    **{f"ctranslate2-{name}": ctranslate2(precision) for name, precision in (("f32", "float32"), ("int8", "int8"))},
    **{f"genai-{precision}": onnxruntime_genai(precision) for precision in ("fp32", "int8", "int4")},
}


def make_model(shape, folder):
    """A folder of transformers whose words are t0, t1, ..."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    if shape == "gpt2":
        model = GPT2LMHeadModel(GPT2Config())
    else:
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True))
    model.save_pretrained(folder)
    words = {f"t{i}": i for i in range(model.config.vocab_size)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="t0")),
                                        bos_token="t0", eos_token="t0", unk_token="t0")
    tokenizer.save_pretrained(folder)


def load(name, folder, work, threads):
    """A function from the size of a batch to its tokens per second."""
    generate = PROGRAMS[name](folder, work, threads)

    def seconds(batch, new):
        start = time.perf_counter()
        generate(batch, new)
        return time.perf_counter() - start

    def answer(question):
        batch = int(question)
        seconds(batch, 2)
        return batch * NEW / (seconds(batch, NEW + 1) - seconds(batch, 1))

    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("gpt2", "llama"), default="gpt2")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="NAME",
                        help="of " + ", ".join(PROGRAMS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", nargs=3, metavar=("NAME", "FOLDER", "WORK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        name, folder, work = options.serve
        return serve(lambda: load(name, pathlib.Path(folder), pathlib.Path(work), options.threads))
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work) / "model"
        make_model(options.shape, folder)
        programs = {}
        for name in options.programs:
            program = Program([__file__, "--threads", str(options.threads), "--serve", name, str(folder), work],
                              OMP_NUM_THREADS=str(options.threads))
            if program.error is None:
                programs[name] = program
            else:
                print(f"{name}: {program.error.splitlines()[-1][:200]}", file=sys.stderr)
        print(f"{options.shape}, {options.threads} threads, {datetime.date.today()}; tokens/s of a batch of "
              + ", ".join(map(str, options.batches)))
        rates = medians(programs, [str(batch) for batch in options.batches], options.rounds)
        for name, of in rates.items():
            print(f"{name:18}" + "".join(f"{rate:10,.1f}" for rate in of.values()), flush=True)
        for program in programs.values():
            program.close()


if __name__ == "__main__":
    main()
