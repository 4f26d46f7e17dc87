"""Adapters of all tasks in one folder (Jina Embeddings v3 as published), beside transformers with each task's merged."""

import json
import os
import shutil
import urllib.error
import urllib.request

import numpy as np
import pytest

import multihead as mh
from multihead import serve

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "JinaEmbeddingsV3Model"):
    pytest.skip("transformers without Jina Embeddings v3", allow_module_level=True)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "##s", "sat", "on", "mat", ".", ",", "find", "this"]
TEXTS = ["The cats sat on a mat.", "the dog, the cat", "mat"]
TASKS = {"retrieval.query": "find this , ", "retrieval.passage": "this . ", "separation": "", "text-matching": ""}
RANK, ALPHA = 4, 6


def is_matrix(name, x):
    return x.ndim == 2 and name.endswith(".weight")


def put(folder, tensors, config):
    folder.mkdir(parents=True, exist_ok=True)
    mh.save_safetensors(str(folder / "model.safetensors"), {name: np.ascontiguousarray(x) for name, x in tensors.items()})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "tokenizer_class": "BertTokenizer"}))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The published folder, and transformers' by task; "": without an adapter."""
    root = tmp_path_factory.mktemp("jina")
    config = transformers.JinaEmbeddingsV3Config(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, max_position_embeddings=64,
        initializer_range=.3, rope_parameters={"rope_type": "default", "rope_theta": 20000.0})
    torch.manual_seed(0)
    transformers.JinaEmbeddingsV3Model(config).save_pretrained(root / "hf")
    weights = {name: np.asarray(x) for name, x in mh.load_safetensors(str(root / "hf" / "model.safetensors")).items()}
    saved = json.loads((root / "hf" / "config.json").read_text())
    rng = np.random.default_rng(1)
    published, changes = {}, {}
    for name, x in weights.items():
        if not is_matrix(name, x):
            published["roberta." + name] = x
            continue
        left, right = (rng.normal(scale=.3, size=(len(TASKS), *shape)).astype(np.float32) for shape in ((x.shape[0], RANK), (RANK, x.shape[1])))
        changes[name] = left.astype(np.float64) @ right * (ALPHA / RANK)
        stem = f"roberta.{name.removesuffix('.weight')}.parametrizations.weight."
        published[stem + "original"] = x
        is_table = "embeddings." in name
        published[stem + "0.lora_A"], published[stem + "0.lora_B"] = (left, right) if is_table else (right, left)
    for i, task in enumerate(["", *TASKS]):
        merged = {name: (x + changes[name][i - 1]).astype(np.float32) if task and name in changes else x for name, x in weights.items()}
        put(root / (task or "base"), merged, saved)
    put(root / "published", published, {
        "model_type": "xlm-roberta", "architectures": ["XLMRobertaLoRA"], "position_embedding_type": "rotary", "rotary_emb_base": 20000.0,
        "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
        **{key: saved[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                                       "max_position_embeddings", "initializer_range", "type_vocab_size", "layer_norm_eps", "hidden_act")},
        "lora_adaptations": list(TASKS), "task_instructions": TASKS, "lora_rank": RANK, "lora_alpha": ALPHA, "lora_dropout_p": 0.0,
        "lora_main_params_trainable": False, "load_trained_adapters": True, "matryoshka_dimensions": [8, 16], "truncate_dim": None,
        "emb_pooler": "mean", "use_flash_attn": True, "use_reentrant": False, "output_past": True, "torch_dtype": "bfloat16"})
    return root


def expected(folder, texts):
    model = transformers.JinaEmbeddingsV3Model.from_pretrained(folder).eval()
    tokenizer = mh.Tokenizer.load(str(folder))
    with torch.no_grad():
        return np.stack([model(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0].mean(0).numpy() for text in texts])


@pytest.mark.parametrize("task", ["", *TASKS])
def test_every_task_gives_the_vectors_of_its_merged_weights(folders, task):
    encoder = mh.SentenceEncoder(str(folders / "published"))
    got = encoder.encode(TEXTS, task=task or None)
    own = TASKS.get(task, "")
    np.testing.assert_allclose(got, expected(folders / (task or "base"), [own + text for text in TEXTS]), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(encoder.encode(TEXTS[1], task=task or None), got[1])
    bare = encoder.encode(TEXTS, task=task or None, prompt="")
    np.testing.assert_allclose(bare, expected(folders / (task or "base"), TEXTS), rtol=0, atol=1e-5)


def test_queries_and_documents_are_tasks(folders):
    encoder = mh.SentenceEncoder(str(folders / "published"))
    np.testing.assert_array_equal(encoder.encode_query(TEXTS), encoder.encode(TEXTS, task="retrieval.query"))
    np.testing.assert_array_equal(encoder.encode_document(TEXTS), encoder.encode(TEXTS, task="retrieval.passage"))
    with pytest.raises(ValueError, match='no adapter for the task "headline"; the tasks are retrieval.query, retrieval.passage'):
        encoder.encode(TEXTS, task="headline")


@pytest.mark.skipif(not os.path.exists(serve._SOCKETS), reason="needs libevent")
def test_a_task_of_a_request_chooses_the_adapter(folders):
    encoder = mh.SentenceEncoder(str(folders / "published"))

    def ask(server, **body):
        request = urllib.request.Request(server.url + "/v1/embeddings", json.dumps({"model": "published", "input": TEXTS, **body}).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return np.asarray([row["embedding"] for row in json.load(answer)["data"]], "f4")

    with mh.Server(folders / "published") as server:
        for task in TASKS:
            np.testing.assert_array_equal(ask(server, task=task), encoder.encode(TEXTS, task=task))
        np.testing.assert_array_equal(ask(server, task="query"), encoder.encode_query(TEXTS))
        np.testing.assert_array_equal(ask(server, task="document"), encoder.encode_document(TEXTS))
        np.testing.assert_array_equal(ask(server), encoder.encode(TEXTS))
        with pytest.raises(urllib.error.HTTPError) as error:
            ask(server, task="headline")
        said = json.load(error.value)["error"]
        assert said["param"] == "task" and said["message"] == (
            'the model "published" has no task "headline"; its tasks are document, query, ' + ", ".join(sorted(TASKS)))


def test_a_task_is_saved_merged(folders, tmp_path):
    mh.models.Encoder.load(str(folders / "published"), task="separation").save(str(tmp_path / "saved"))
    saved, merged = (mh.load_safetensors(str(folder / "model.safetensors")) for folder in (tmp_path / "saved", folders / "separation"))
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == "jina_embeddings_v3"
    assert set(saved) == set(merged)
    for name, x in merged.items():
        np.testing.assert_allclose(saved[name], x, rtol=0, atol=2e-6, err_msg=name)
    transformers.JinaEmbeddingsV3Model.from_pretrained(tmp_path / "saved")


def refusal(folders, tmp_path, task="separation", tensors=None, **config):
    shutil.copytree(folders / "published", tmp_path / "changed", dirs_exist_ok=True)
    path = tmp_path / "changed" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    if tensors is not None:
        file = str(tmp_path / "changed" / "model.safetensors")
        mh.save_safetensors(file, tensors(dict(mh.load_safetensors(file))))
    with pytest.raises(Exception) as error:
        mh.models.Encoder.load(str(tmp_path / "changed"), task=task)
    return str(error.value)


def test_what_is_not_understood_is_refused_by_name(folders, tmp_path):
    stem = "roberta.encoder.layers.1.mixer.Wqkv.parametrizations.weight.0.lora_"
    assert "word_embeddings.parametrizations.weight.0.lora_A: expected [4, 40, 3], got [4, 40, 4]" in refusal(folders, tmp_path, lora_rank=3)
    assert "task_instructions" in refusal(folders, tmp_path, lora_rank=RANK, task_instructions={})
    assert "truncate_dim" in refusal(folders, tmp_path, task_instructions=TASKS, truncate_dim=16)
    missing = refusal(folders, tmp_path, truncate_dim=None, tensors=lambda x: {name: t for name, t in x.items() if name != stem + "A"})
    assert "missing encoder.layers.1.mixer.Wqkv.parametrizations.weight.0.lora_A" in missing
    with pytest.raises(ValueError, match="no adapter"):
        mh.models.Encoder.load(str(folders / "separation"), task="separation")
