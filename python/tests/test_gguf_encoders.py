"""Encoders in GGUF files, by the names of the package `gguf`, beside their folders."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import multihead as mh
from gguf_blocks import k_blocks
from small_bert import make_bert

gguf = pytest.importorskip("gguf")
DATA = pathlib.Path(__file__).parents[2] / "tests" / "data" / "encoders"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the fixtures lie in a checkout")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "##s", "sat", "on", "mat", ".", ","]
TEXTS = ["The cats sat on a mat.", "unknown", "the dog, the cat", "mat"]


def add_words(writer, words):
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("bert-bge")
    special = [word.startswith("[") and word.isupper() for word in words]
    writer.add_token_list([w if s else w[2:] if w.startswith("##") else "\u2581" + w for w, s in zip(words, special)])
    writer.add_token_types([3 if s else 1 for s in special])
    for role in ("bos", "eos", "unk", "sep", "pad", "mask"):
        getattr(writer, f"add_{role}_token_id")({"bos": 2, "eos": 3, "unk": 1, "sep": 3, "pad": 0, "mask": 4}[role])


def write(folder, architecture, path, kind="F32", skipped=(), rename=(), extra=(), **sizes):
    config = json.loads((folder / "config.json").read_text())
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    writer = gguf.GGUFWriter(str(path), architecture)
    for name, value in sizes.items():
        getattr(writer, f"add_{name}")(value)
    if architecture != "t5encoder":
        writer.add_causal_attention(False)
    words = [w for w in (folder / "vocab.txt").read_text().split("\n") if w]
    add_words(writer, words + [f"[unused{i}]" for i in range(config["vocab_size"] - len(words))])
    names = gguf.get_tensor_name_map(arch, sizes["block_count"])
    for name, x in mh.load_safetensors(str(folder / "model.safetensors")).items():
        if any(part in name for part in skipped):
            continue
        if ".experts.mlp." in name:
            x = np.asarray(x).reshape(config["num_experts"], config["n_inner"], config["n_embd"])
            name, x = name + ".weight", x.transpose(0, 2, 1) if name.endswith("w2") else x
        if architecture == "gemma-embedding" and name.endswith("norm.weight"):
            x = np.asarray(x) + np.float32(1)
        for old, new in rename:
            name = name.replace(old, new)
        theirs = names.get_name(name.split("bert.", 1)[-1] if architecture == "bert" else name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        x = np.ascontiguousarray(x, np.float32)
        quantised = x.ndim >= 2 and kind != "F32" and x.shape[-1] % 32 == 0 and not theirs.startswith(("position_embd", "token_types")) \
            and "ffn_gate_inp" not in theirs
        how = gguf.GGMLQuantizationType[kind if quantised else "F32"]
        writer.add_tensor(theirs, k_blocks(how, x.shape, np.random.default_rng(len(name))) if how.name.endswith("_K")
                          else gguf.quants.quantize(x, how), raw_dtype=how)
    for name, x in extra:
        writer.add_tensor(name, x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def bert_sizes(config, **more):
    return dict(block_count=config["num_hidden_layers"], context_length=config["max_position_embeddings"],
                embedding_length=config["hidden_size"], feed_forward_length=config["intermediate_size"],
                head_count=config["num_attention_heads"], **more)


def check(folder, file, cosine=None):
    a, b = mh.SentenceEncoder(str(folder)), mh.SentenceEncoder(file)
    for text in TEXTS:
        assert a.tokenizer.encode(text) == b.tokenizer.encode(text)
    if cosine is None:
        np.testing.assert_array_equal(b.encode(TEXTS), a.encode(TEXTS))
    else:
        unit = [encoder.encode(TEXTS, normalize_embeddings=True) for encoder in (a, b)]
        assert (unit[0] * unit[1]).sum(axis=1).min() > cosine


def test_bert(tmp_path):
    folder = make_bert(tmp_path / "bert", WORDS)
    config = json.loads((folder / "config.json").read_text())
    sizes = bert_sizes(config, layer_norm_eps=config["layer_norm_eps"])
    file = write(folder, "bert", tmp_path / "bert.gguf", skipped=("pooler", "position_ids"), **sizes)
    check(folder, file)
    assert mh.AutoModel.from_pretrained(file).config.embed_dim == config["hidden_size"]


def random_folder(folder, width=32, **config):
    model = mh.models.Encoder(mh.models.EncoderConfig(vocab_size=40, context=64, num_layers=2, num_heads=2, embed_dim=width, ffn_dim=2 * width,
                                                      pooler=False, init_std=1.5 / width**.5, **config), rng=mh.Rng(2))
    model.save(str(folder))
    (folder / "manifest.json").unlink()  # others add a vocabulary
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "tokenizer_class": "BertTokenizer"}))
    return folder


def write_nomic(folder, kind, width=32):
    model = random_folder(folder / "nomic", width, gated=True, layer_bias=False, activation="silu", rotary_base=1000.0, head_activation="silu")
    config = json.loads((model / "config.json").read_text())
    assert config["model_type"] == "nomic_bert"
    sizes = bert_sizes(config, layer_norm_eps=config["layer_norm_eps"], rope_freq_base=1000.0)
    return model, write(model, "nomic-bert", folder / "nomic.gguf", kind, **sizes)


def write_nomic_with_experts(folder, kind, width=32):
    model = random_folder(folder / "moe", width, rotary_base=1000.0, experts=4, experts_used=2, token_types=1)
    config = json.loads((model / "config.json").read_text())
    assert config["model_type"] == "nomic_bert" and config["num_experts"] == 4
    sizes = dict(block_count=2, context_length=64, embedding_length=width, feed_forward_length=2 * width, head_count=2, layer_norm_eps=1e-12,
                 rope_freq_base=1000.0, expert_count=4, expert_used_count=2, moe_every_n_layers=2)
    return model, write(model, "nomic-bert-moe", folder / "moe.gguf", kind, skipped=("experts.bias",), **sizes)


@pytest.mark.parametrize("made", [write_nomic, write_nomic_with_experts])
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_nomic_bert(tmp_path, made, kind):
    # Rounded weights make a token or two choose another expert.
    check(*made(tmp_path, kind), {"F32": None, "F16": .99999, "Q8_0": .999 if made is write_nomic else .99}[kind])


@pytest.mark.parametrize("made", [write_nomic, write_nomic_with_experts])
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"])
def test_matrices_are_computed_as_stored(tmp_path, made, kind):
    file = made(tmp_path, kind, 256)[1]
    stored, decoded = mh.SentenceEncoder(file), mh.SentenceEncoder(file, weights="f32")
    got, expected = stored.encode(TEXTS), decoded.encode(TEXTS)
    # The weights are the same; in products of integers inputs are rounded to 8 bits.
    assert np.linalg.norm(got - expected) < (1e-5 if kind == "F16" else .03) * np.linalg.norm(expected)
    assert kind == "F16" or not np.array_equal(got, expected)
    np.testing.assert_array_equal(np.stack([stored.encode(text) for text in TEXTS]), got)
    with pytest.raises(ValueError, match="packed"):
        mh.models.Encoder.load(file).save(str(tmp_path / "packed"))
    mh.models.Encoder.load(file, weights="f32").save(str(tmp_path / "decoded"))


def test_modern_bert(tmp_path):
    folder = random_folder(tmp_path / "modern", gated=True, bias=False, norm_first=True, token_types=0, rotary_base=160000.0,
                           local_rotary_base=10000.0, window=8, global_every=3, norm_eps=1e-5, transforms_labels=True)
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "modernbert"
    sizes = bert_sizes(config, layer_norm_eps=1e-5, rope_freq_base=160000.0, rope_freq_base_swa=10000.0, sliding_window=16)
    check(folder, write(folder, "modern-bert", tmp_path / "modern.gguf", **sizes))


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_jina_bert(tmp_path, kind):
    folder = random_folder(tmp_path / "jina", alibi=True, gated=True, ffn_in_bias=False)
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "bert" and config["position_embedding_type"] == "alibi" and config["architectures"] == ["JinaBertModel"]
    sizes = bert_sizes(config, layer_norm_eps=config["layer_norm_eps"])
    check(folder, write(folder, "jina-bert-v2", tmp_path / "jina.gguf", kind, **sizes), None if kind == "F32" else .997)


def test_gemma_embedding(tmp_path):
    """With the window of every layer but the sixth, and the matrices after the pooling."""
    config = mh.models.LanguageModelConfig(
        vocab_size=40, context=64, num_layers=7, num_heads=2, num_kv_heads=1, head_dim=8, embed_dim=24, ffn_dim=48, positions="rotary",
        rotary_base=1e6, local_rotary_base=1e4, norm="rms_from_one", norm_eps=1e-6, block="sandwich", gated=True, activation="gelu_tanh",
        attention_bias=False, out_bias=False, ffn_bias=False, qk_norm=True, scale_dim=8, scale_embeddings=True, head=False, causal=False,
        window=4, global_every=6, init_std=.3)
    folder = tmp_path / "gemma"
    mh.models.LanguageModel(config, rng=mh.Rng(2)).save(str(folder))
    (folder / "manifest.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "tokenizer_class": "BertTokenizer"}))
    saved = json.loads((folder / "config.json").read_text())
    assert saved["model_type"] == "gemma3_text" and saved["use_bidirectional_attention"]
    sizes = dict(block_count=7, context_length=64, embedding_length=24, feed_forward_length=48, head_count=2, head_count_kv=1, key_length=8,
                 value_length=8, layer_norm_rms_eps=1e-6, rope_freq_base=1e6, sliding_window=saved["sliding_window"], vocab_size=40)
    check(folder, write(folder, "gemma-embedding", tmp_path / "plain.gguf", **sizes))
    rng = np.random.default_rng(3)
    up, down = (rng.normal(size=shape).astype(np.float32) for shape in ((30, 24), (16, 30)))
    file = write(folder, "gemma-embedding", tmp_path / "dense.gguf", extra=[("dense_2.weight", up), ("dense_3.weight", down)], **sizes)
    np.testing.assert_allclose(mh.SentenceEncoder(file).encode(TEXTS), mh.SentenceEncoder(str(folder)).encode(TEXTS) @ up.T @ down.T,
                               rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fixture", ["t5", "t5_gated"])
def test_t5_encoder(tmp_path, fixture):
    folder = tmp_path / "t5"
    shutil.copytree(DATA / fixture, folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "tokenizer_class": "BertTokenizer"}))
    config = json.loads((folder / "config.json").read_text()) | {"relative_attention_max_distance": 128}
    (folder / "config.json").write_text(json.dumps(config))
    sizes = dict(block_count=config["num_layers"], context_length=512, embedding_length=config["d_model"], feed_forward_length=config["d_ff"],
                 head_count=config["num_heads"], key_length=config["d_kv"], value_length=config["d_kv"],
                 relative_attn_buckets_count=config["relative_attention_num_buckets"], layer_norm_rms_eps=config["layer_norm_epsilon"])
    file = write(folder, "t5encoder", tmp_path / "t5.gguf", skipped=("embed_tokens",), **sizes)
    check(folder, file)
