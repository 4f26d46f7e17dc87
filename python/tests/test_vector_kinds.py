"""Sparse and multi-vector encoders, vectors in fewer bits, and the search among all of them."""

import json
import pickle
import shutil

import numpy as np
import pytest

import multihead as mh
from small_bert import add_multi_vector_modules, make_router

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [
    "the", "cat", "dog", "sat", "on", "a", "mat", "##s", "##ting", "un", "##known", "he", "she", "it", ",", ".", "!",
    "one", "two", "three", "red", "green", "blue", "night", "day", "sun", "moon", "star", "##light", "##y", "water", "fire", "q", ":"]
TEXTS = ["The cats sat on a mat.", "unknown", "One, two, three!", "Moonlight", "a red SUN; a Blue moon", "zzz", "the dog . , !"]


def make_folder(folder, head, seed=5, num_layers=2, num_heads=2, embed_dim=24, init_std=.4):
    config = mh.models.EncoderConfig(vocab_size=len(WORDS), context=40, num_layers=num_layers, num_heads=num_heads, embed_dim=embed_dim,
                                     head=head, init_std=init_std)
    mh.models.Encoder(config, rng=mh.Rng(seed)).save(str(folder))
    (folder / "manifest.json").unlink()  # others add a vocabulary
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": True, "model_max_length": 40, "tokenizer_class": "BertTokenizer"}))
    return folder


@pytest.fixture
def splade(tmp_path):
    return make_folder(tmp_path / "splade", "masked_lm")


@pytest.fixture
def colbert(tmp_path):
    folder = make_folder(tmp_path / "colbert", "none")
    add_multi_vector_modules(folder, 24)
    return folder


def expand(folder, **expansion):
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 30, "query_expansion": {"length": 12, **expansion}}))


def dense(x):
    return x.to_dense().numpy() if hasattr(x, "to_dense") else np.asarray(x)


def test_sparse_vectors(splade):
    encoder = mh.SparseEncoder(str(splade))
    rows = encoder.encode(TEXTS)
    assert rows.shape == (len(TEXTS), len(WORDS)) and len(rows) == len(TEXTS)
    for i, text in enumerate(TEXTS):
        assert np.array_equal(encoder.encode(text).toarray()[0], rows.toarray()[i])
        assert np.array_equal(encoder.encode(text, convert_to_sparse_tensor=False), rows[i].toarray()[0])
    few = encoder.encode(TEXTS, max_active_dims=3)
    assert (np.diff(few.indptr) == 3).all()
    words = encoder.decode(few, top_k=2)
    assert len(words) == len(TEXTS) and all(len(row) == 2 and row[0][1] >= row[1][1] for row in words)
    best = mh.embed.nearest(rows[:2], rows, 2)
    np.testing.assert_allclose([s for _, s in best[0]], np.sort(encoder.similarity(rows[:1], rows)[0])[::-1][:2], rtol=1e-5)
    with pytest.raises(ValueError, match="max_active_dims must be positive"):
        mh.SparseEncoder(str(splade), max_active_dims=0)
    with pytest.raises(ValueError, match="both be SparseVectors"):
        mh.embed.nearest(rows, rows.toarray())


@pytest.mark.parametrize("strategy", ["max", "sum"])
@pytest.mark.parametrize("function", ["relu", "log1p_relu"])
def test_sparse_vectors_are_those_of_sentence_transformers(splade, tmp_path, strategy, function):
    theirs = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

    model = theirs.SparseEncoder(modules=[Transformer(str(splade), transformer_task="fill-mask"),
                                          SpladePooling(pooling_strategy=strategy, activation_function=function)],
                                 prompts={"query": "the red "}, device="cpu", max_active_dims=20)
    model.save_pretrained(str(tmp_path / "saved"))
    encoder = mh.SparseEncoder(str(tmp_path / "saved"))
    for method in ("encode", "encode_query", "encode_document"):
        want = dense(getattr(model, method)(TEXTS))
        np.testing.assert_allclose(getattr(encoder, method)(TEXTS).toarray(), want, rtol=1e-6, atol=1e-5)
    rows = encoder.encode(TEXTS)
    np.testing.assert_allclose(encoder.similarity(rows, rows), model.similarity(model.encode(TEXTS), model.encode(TEXTS)), rtol=1e-5)
    with pytest.raises(mh.FormatError, match="model_type must be"):
        mh.SentenceEncoder(str(tmp_path / "saved"))


def test_sparse_vectors_are_as_near_to_the_exact_ones_as_those_of_sentence_transformers(tmp_path):
    """Wide weights enlarge the rounding of either from layer to layer."""
    theirs = pytest.importorskip("sentence_transformers")
    squares = np.zeros(2)
    for seed in range(4):
        folder = str(make_folder(tmp_path / str(seed), "masked_lm", seed, num_layers=6, num_heads=4, embed_dim=64, init_std=.25))
        model = theirs.SparseEncoder(folder, device="cpu")
        rounded = mh.SparseEncoder(folder).encode(TEXTS).toarray(), dense(model.encode(TEXTS))
        exact = dense(model.double().encode(TEXTS))
        assert exact.dtype == np.float64
        squares += [np.square(x - exact).sum() for x in rounded]
    assert 0 < squares[0] < 2 * squares[1]


def test_multi_vectors(colbert):
    encoder = mh.MultiVectorEncoder(str(colbert))
    documents, queries = encoder.encode_document(TEXTS), encoder.encode_query(TEXTS)
    for text, document, query in zip(TEXTS, documents, queries):
        assert np.array_equal(encoder.encode_document(text), document) and document.shape[1] == 7
        assert np.array_equal(encoder.encode_query(text), query)
    scores = encoder.similarity(queries, documents)
    best = mh.embed.nearest(queries, documents, 3)
    for row, found in zip(scores, best):
        np.testing.assert_allclose([score for _, score in found], np.sort(row)[::-1][:3], rtol=1e-5)
    with pytest.raises(ValueError, match="task must be"):
        encoder.encode(TEXTS, task="other")


@pytest.mark.parametrize("expansion", [None, {"strategy": "fixed", "attend": False}, {"strategy": "fixed", "attend": True},
                                       {"strategy": "min", "attend": False}])
def test_multi_vectors_are_those_of_sentence_transformers(colbert, expansion):
    theirs = pytest.importorskip("sentence_transformers")
    if expansion is not None:
        expand(colbert, **expansion)
    model = theirs.MultiVectorEncoder(str(colbert), device="cpu")
    encoder = mh.MultiVectorEncoder(str(colbert))
    texts = TEXTS + ["one two three red green blue night day sun moon star water fire the cat sat on a mat and more"]
    for method in ("encode", "encode_query", "encode_document"):
        for got, want in zip(getattr(encoder, method)(texts), getattr(model, method)(texts, convert_to_numpy=True)):
            np.testing.assert_allclose(got, want, atol=1e-5)
    queries, documents = encoder.encode_query(texts), encoder.encode_document(texts)
    want = model.similarity(model.encode_query(texts), model.encode_document(texts))
    np.testing.assert_allclose(encoder.similarity(queries, documents), want, atol=1e-4)


def test_folders_of_pylate_and_stanford_are_read_as_by_sentence_transformers(colbert):
    theirs = pytest.importorskip("sentence_transformers")
    for part in ("2_MultiVectorMask", "3_Normalize"):
        shutil.rmtree(colbert / part)
    (colbert / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"}]))
    (colbert / "1_Dense" / "config.json").write_text(json.dumps(
        {"in_features": 24, "out_features": 7, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}))
    (colbert / "config_sentence_transformers.json").write_text(json.dumps(
        {"model_type": "ColBERT", "query_prefix": "water ", "document_prefix": "fire ", "query_length": 9, "document_length": 8,
         "attend_to_expansion_tokens": False, "do_query_expansion": True, "prompts": {}}))
    stanford = colbert.parent / "stanford"
    shutil.copytree(colbert, stanford, ignore=shutil.ignore_patterns("1_Dense", "modules.json", "*sentence*"))
    config = json.loads((stanford / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (stanford / "config.json").write_text(json.dumps(config))
    weights = {f"bert.{name}": x for name, x in mh.load_safetensors(str(colbert / "model.safetensors")).items()}
    weights |= mh.load_safetensors(str(colbert / "1_Dense" / "model.safetensors"))
    mh.save_safetensors(str(stanford / "model.safetensors"), weights)
    (stanford / "artifact.metadata").write_text(json.dumps(
        {"query_token_id": "water", "doc_token_id": "fire", "query_maxlen": 10, "doc_maxlen": 8}))
    for folder in (colbert, stanford):
        model, encoder = theirs.MultiVectorEncoder(str(folder), device="cpu"), mh.MultiVectorEncoder(str(folder))
        for method in ("encode_query", "encode_document"):
            for got, want in zip(getattr(encoder, method)(TEXTS), getattr(model, method)(TEXTS, convert_to_numpy=True)):
                np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "int8", "uint8", "binary", "ubinary"])
def test_vectors_in_fewer_bits_are_those_of_sentence_transformers(precision):
    x = np.random.default_rng(3).normal(size=(120, 21)).astype(np.float32)
    got = mh.embed.quantize_embeddings(x, precision)
    assert got.shape == (120, 3 if "binary" in precision else 21)
    util = pytest.importorskip("sentence_transformers.util")
    want = util.quantize_embeddings(x, precision)
    assert got.dtype == want.dtype and np.array_equal(got, want)
    if precision.endswith("int8"):
        ranges = np.array([x.min(0) - 1, x.max(0) + 1])
        assert np.array_equal(mh.embed.quantize_embeddings(x, precision, ranges=ranges), util.quantize_embeddings(x, precision, ranges=ranges))
        with pytest.raises(ValueError, match="needs ranges"):
            mh.embed.quantize_embeddings(x[:1], precision)


def test_vectors_in_fewer_bits_from_encode(splade):
    encoder = mh.SentenceEncoder(str(splade))
    x = encoder.encode(TEXTS)
    assert np.array_equal(encoder.encode(TEXTS, precision=None), x)
    for precision, width in (("int8", x.shape[1]), ("uint8", x.shape[1]), ("ubinary", (x.shape[1] + 7) // 8)):
        assert encoder.encode([], precision=precision).shape == (0, width)
    assert np.array_equal(encoder.encode(TEXTS, precision="ubinary"), mh.embed.quantize_embeddings(x, "ubinary"))
    assert np.array_equal(encoder.encode(TEXTS[0], precision="ubinary"), mh.embed.quantize_embeddings(x, "ubinary")[0])
    with pytest.raises(ValueError, match="precision must be"):
        encoder.encode(TEXTS, precision="int4")


def test_an_index_of_fewer_bits_finds_what_is_near():
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(500, 40)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    queries = rows[:9] + .05 * rng.normal(size=(9, 40)).astype(np.float32)
    want = mh.embed.nearest(queries, rows, 1)
    for kind in ("int8", "binary"):
        index = mh.embed.VectorIndex(rows, kind)
        assert len(index) == 500 and index.dim == 40 and index.kind == kind
        got = index.nearest(queries, 1, rescored=8)
        assert [row for (row, _), in got] == [row for (row, _), in want]
        np.testing.assert_allclose([s for (_, s), in got], [s for (_, s), in want], rtol=2e-2)
    with pytest.raises(ValueError, match="kind must be one of"):
        mh.embed.VectorIndex(rows, "int4")
    for similarity in ("cosine", "euclidean"):
        want = mh.embed.nearest(queries, rows, 1, similarity)
        got = mh.embed.VectorIndex(rows, "int8").nearest(queries, 1, similarity=similarity)
        assert [row for (row, _), in got] == [row for (row, _), in want]
        np.testing.assert_allclose([s for (_, s), in got], [s for (_, s), in want], atol=2e-2)
    with pytest.raises(ValueError, match="similarity manhattan is not supported; supported are cosine, dot and euclidean"):
        index.nearest(queries, similarity="manhattan")


def test_nearest_as_the_folder_compares():
    rng = np.random.default_rng(3)
    rows, queries = (rng.normal(size=(n, 12)).astype(np.float32) * rng.uniform(.2, 3, size=(n, 1)).astype(np.float32) for n in (60, 5))
    encoders = {"cosine": lambda q, x: q @ x.T / np.linalg.norm(q, axis=1)[:, None] / np.linalg.norm(x, axis=1),
                "dot": lambda q, x: q @ x.T,
                "euclidean": lambda q, x: -np.linalg.norm(q[:, None] - x, axis=2),
                "manhattan": lambda q, x: -np.abs(q[:, None] - x).sum(2)}
    for name, by in encoders.items():
        want = by(queries, rows)
        got = mh.embed.nearest(queries, rows, 7, name)
        assert [[row for row, _ in best] for best in got] == np.argsort(-want, axis=1)[:, :7].tolist()
        np.testing.assert_allclose([[score for _, score in best] for best in got], -np.sort(-want, axis=1)[:, :7], rtol=1e-5)
    with pytest.raises(ValueError, match="similarity must be one of"):
        mh.embed.nearest(queries, rows, 1, "maxsim")
    with pytest.raises(ValueError, match="compared by 'maxsim'"):
        mh.embed.nearest([queries], [rows], 1, "cosine")


def test_a_router_sends_queries_and_documents_through_their_modules(splade, tmp_path):
    folder = make_router(tmp_path / "routed", splade, {"query": "mean", "document": "max"}, default_route="document")
    encoder = mh.SentenceEncoder(str(folder))
    for made in (encoder, pickle.loads(pickle.dumps(encoder))):
        for got, pooling in ((made.encode_query(TEXTS), "mean"), (made.encode(TEXTS, task="query"), "mean"),
                             (made.encode_document(TEXTS), "max"), (made.encode(TEXTS), "max")):
            assert np.array_equal(got, mh.SentenceEncoder(str(splade), pooling=pooling).encode(TEXTS))
    with pytest.raises(ValueError, match="no route for the task \"title\""):
        encoder.encode(TEXTS, task="title")
    with pytest.raises(ValueError, match="Router"):
        mh.SparseEncoder(str(folder))


def test_layers_are_mixed_as_by_sentence_transformers(colbert, tmp_path):
    theirs = pytest.importorskip("sentence_transformers")
    torch = pytest.importorskip("torch")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer, WeightedLayerPooling

    (colbert / "modules.json").unlink()
    weights = torch.nn.Parameter(torch.tensor([.5, -1, 2]))
    transformer = Transformer(str(colbert), config_kwargs={"output_hidden_states": True})
    model = theirs.SentenceTransformer(
        modules=[transformer, WeightedLayerPooling(24, num_hidden_layers=2, layer_start=0, layer_weights=weights), Pooling(24, "mean")], device="cpu")
    model.save_pretrained(str(tmp_path / "saved"))
    want = model.encode(TEXTS)
    np.testing.assert_allclose(mh.SentenceEncoder(str(tmp_path / "saved")).encode(TEXTS), want, atol=1e-5)
    # Trained, the folder is read there with its layers.
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{a}\t{b}\n" for a, b in zip(TEXTS, TEXTS[::-1])))
    mh.train_embedder(str(pairs), str(tmp_path / "out"), init=str(tmp_path / "saved"), steps=2, batch=4, lr=1e-2, progress=False)
    trained = mh.SentenceEncoder(str(tmp_path / "out")).encode(TEXTS)
    assert np.abs(trained - want).max() > 1e-3
    np.testing.assert_allclose(theirs.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS), trained, atol=1e-5)


def test_encoders_are_pickled_as_their_folder(splade, colbert, monkeypatch):
    monkeypatch.chdir(splade.parent)
    for made in (mh.SentenceEncoder("splade", prompts={"query": "the "}, truncate_dim=9), mh.SparseEncoder("splade", max_active_dims=3),
                 mh.MultiVectorEncoder("colbert")):
        monkeypatch.chdir("/")
        data = pickle.dumps(made)
        assert len(data) < 500
        copy = pickle.loads(data)
        monkeypatch.chdir(splade.parent)
        for a, b in zip(made.encode_query(TEXTS), copy.encode_query(TEXTS)):
            assert np.array_equal(*(x.toarray() if isinstance(x, mh.embed.SparseVectors) else x for x in (a, b)))
