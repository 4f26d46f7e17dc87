"""Encoders and the vectors of texts."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import multihead as mh
from small_bert import make_bert

DATA = pathlib.Path(__file__).parents[2] / "tests" / "data" / "encoders"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the fixtures lie in a checkout")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [
    "the", "cat", "dog", "sat", "on", "a", "mat", "##s", "##ting", "un", "##known", "he", "she", "it", ",", ".", "!",
    "one", "two", "three", "red", "green", "blue", "night", "day", "sun", "moon", "star", "##light", "##y", "water", "fire"]
TEXTS = ["The cats sat on a mat.", "unknown", "One, two, three!", "Moonlight", "a red SUN; a Blue moon", "zzz"]


@pytest.fixture
def folder(tmp_path):
    return str(make_bert(tmp_path / "bert", WORDS))


def test_encode_takes_one_text_or_many(folder):
    encoder = mh.SentenceEncoder(folder)
    assert encoder.max_seq_length == 19 and encoder.get_sentence_embedding_dimension() == 20
    all_vectors = encoder.encode(TEXTS)
    assert all_vectors.shape == (6, 20) and all_vectors.dtype == np.float32
    for text, vector in zip(TEXTS, all_vectors):
        assert np.array_equal(encoder.encode(text), vector)
    assert np.array_equal(encoder.encode(TEXTS, batch_size=1), all_vectors)
    unit = encoder.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)
    assert encoder.encode(TEXTS, truncate_dim=3).shape == (6, 3)
    assert mh.SentenceEncoder(folder, truncate_dim=3).get_sentence_embedding_dimension() == 3
    wide = mh.SentenceEncoder(folder, truncate_dim=768)  # as sentence-transformers, which slices
    assert wide.get_sentence_embedding_dimension() == 20 == wide.encode(TEXTS).shape[1]
    with pytest.raises(ValueError, match="truncate_dim must be in .1, 20., the width of the model, got 21"):
        encoder.encode(TEXTS, truncate_dim=21)
    with pytest.raises(ValueError, match="truncate_dim must be positive, got 0"):
        encoder.encode(TEXTS, truncate_dim=0)
    with pytest.raises(ValueError, match="ranges are for 'int8'"):
        mh.embed.quantize_embeddings(np.ones((2, 8)), "binary", ranges=np.ones((2, 8)))
    assert np.array_equal(encoder.encode(TEXTS, device="cpu", precision="float32"), all_vectors)
    for wrong in ({"device": "cuda"}, {"precision": "int3"}, {"output_value": "token_embeddings"}, {"output_value": None},
                  {"convert_to_tensor": True, "precision": "int8"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            encoder.encode(TEXTS, **wrong)
    assert isinstance(encoder.encode(TEXTS, convert_to_tensor=True), mh.Tensor)
    np.testing.assert_allclose(encoder.similarity(unit, unit), unit @ unit.T, atol=1e-6)


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_vectors_of_bytes_are_compared_as_numbers(folder, name):
    encoder = mh.SentenceEncoder(folder, similarity_fn_name=name)
    for precision in ("int8", "uint8", "binary"):
        few = encoder.encode(TEXTS, precision=precision)
        found = encoder.similarity(few, few)
        np.testing.assert_allclose(found, encoder.similarity(few.astype("f4"), few.astype("f4")), rtol=1e-6)
        for row, best in zip(found, mh.embed.nearest(few, few, len(TEXTS), name)):
            np.testing.assert_allclose([row[i] for i, _ in best], [score for _, score in best], rtol=1e-4, atol=1e-2)


def test_a_name_of_the_hub_is_told_how_to_be_fetched():
    for kind in (mh.SentenceEncoder, mh.SparseEncoder, mh.MultiVectorEncoder, mh.CrossEncoder):
        with pytest.raises(mh.IoError, match="hf download OWNER/NAME --local-dir FOLDER"):
            kind("someone/a-model")


def test_prompts(folder):
    encoder = mh.SentenceEncoder(folder, prompts={"query": "the red "})
    assert np.array_equal(encoder.encode("sun", prompt_name="query"), encoder.encode("the red sun"))
    assert np.array_equal(encoder.encode("sun", prompt="the red "), encoder.encode("the red sun"))
    with pytest.raises(ValueError, match="prompt_name 'other' is none of \\['query'\\]"):
        encoder.encode("sun", prompt_name="other")
    with pytest.raises(ValueError, match="give prompt or prompt_name, not both"):
        encoder.encode("sun", prompt="the ", prompt_name="query")
    with pytest.raises(ValueError, match="prompt_name 'other' is none of"):
        mh.SentenceEncoder(folder, default_prompt_name="other")
    assert np.array_equal(encoder.encode_query("sun"), encoder.encode("the red sun"))
    assert np.array_equal(encoder.encode_document("sun"), encoder.encode("sun"))


def test_a_default_prompt_can_be_left_out(folder):
    path = pathlib.Path(folder) / "config_sentence_transformers.json"
    path.write_text(json.dumps({"prompts": {"query": "the red "}, "default_prompt_name": "query"}))
    (pathlib.Path(folder) / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]))
    (pathlib.Path(folder) / "1_Pooling").mkdir()
    (pathlib.Path(folder) / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 20, "pooling_mode_mean_tokens": True}))
    encoder = mh.SentenceEncoder(folder)
    plain, red = encoder.encode("sun", prompt=""), encoder.encode("sun")
    assert encoder.default_prompt_name == "query" and not np.array_equal(plain, red)
    assert np.array_equal(encoder.encode_document("sun"), plain)
    assert np.array_equal(mh.SentenceEncoder(folder, prompts={"query": ""}).encode("sun"), plain)
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(folder, device="cpu")
    for method in ("encode", "encode_query", "encode_document"):
        np.testing.assert_allclose(getattr(encoder, method)("sun"), getattr(theirs, method)("sun"), atol=1e-5)
    np.testing.assert_allclose(plain, theirs.encode("sun", prompt=""), atol=1e-5)
    for name in ("cosine", "dot", "euclidean", "manhattan"):
        config = json.loads(path.read_text()) | {"similarity_fn_name": name}
        path.write_text(json.dumps(config))
        theirs.similarity_fn_name = name
        got = mh.SentenceEncoder(folder).similarity(red, [plain, red])
        np.testing.assert_allclose(got, theirs.similarity(red, np.stack([plain, red])), atol=1e-5)


def test_words_for_masks_may_be_parts_of_characters():
    tokenizer = mh.Tokenizer.train_bpe("the cat", vocab_size=262, eos="[MASK]")
    config = mh.models.EncoderConfig(vocab_size=300, context=24, num_layers=1, num_heads=2, embed_dim=16, head="masked_lm")
    guesses, = mh.embed.fill_mask(mh.models.Encoder(config, rng=mh.Rng(3)), tokenizer, "the [MASK]", 300)
    assert len(guesses) == 300


def test_the_mean_of_the_tokens_is_the_default(folder):
    encoder = mh.SentenceEncoder(folder)
    ids = encoder.tokenizer.encode(TEXTS[0])
    features = np.asarray(mh.models.Encoder.load(folder).features([ids]))
    np.testing.assert_allclose(encoder.encode(TEXTS[0]), features.mean(axis=0), atol=1e-6)


def test_pairs_have_types(folder):
    tokenizer = mh.Tokenizer.load(folder)
    ids, types = tokenizer.encode_pair("the cat", "a dog", max_length=6)
    assert [tokenizer.token(i) for i in ids] == ["[CLS]", "the", "[SEP]", "a", "dog", "[SEP]"]
    assert types == [0, 0, 0, 1, 1, 1]
    assert tokenizer.decode(tokenizer.encode("cats sitting."), skip_special=True) == "cats."


def test_nearest(folder):
    vectors = np.eye(4, dtype=np.float32)[[3, 1, 0]]
    assert mh.embed.nearest(np.eye(4, dtype=np.float32)[:1], vectors, 2) == [[(2, 1.0), (0, 0.0)]]
    assert mh.embed.nearest([], [vectors, vectors]) == []
    with pytest.raises(TypeError, match="got a dict"):
        mh.SentenceEncoder(folder).encode({"a": "the cat"})


def test_an_encoder_is_trained(folder):
    config = mh.models.Encoder.load(folder).config
    config.head, config.num_labels, config.pooler = "classification", 2, True
    model = mh.models.Encoder(config, rng=mh.Rng(1))
    optimizer = mh.optim.AdamW(model.parameters(), lr=3e-3)
    sequences, targets = [[2, 5, 3], [2, 6, 7, 3], [2, 8, 3]], [0, 1, 0]
    losses = []
    for _ in range(60):
        with mh.Tape() as tape:
            loss = mh.cross_entropy(model.logits(sequences), np.array(targets))
            tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_cross_encoder_scores_pairs(folder, tmp_path):
    classifier = tmp_path / "classifier"
    shutil.copytree(DATA / "bert_classifier", classifier)
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(pathlib.Path(folder) / name, classifier / name)
    pairs = [(a, b) for a in TEXTS[:3] for b in TEXTS]
    cross = mh.CrossEncoder(str(classifier))
    with pytest.raises(ValueError, match="max_length must be in .1, "):
        mh.CrossEncoder(str(classifier), max_length=100000)
    scores = cross.predict(pairs, batch_size=4)
    assert scores.shape == (18, 3) and np.array_equal(cross.predict(pairs[7]), scores[7])
    with pytest.raises(ValueError, match="has 3"):
        cross.rank("the cat", TEXTS)
    with pytest.raises(ValueError, match="expected a sequence classification head .*, got none"):
        mh.CrossEncoder(folder)
    assert cross.predict([]).shape == (0, 3)
    theirs = pytest.importorskip("sentence_transformers").CrossEncoder(str(classifier), device="cpu")
    assert cross.max_length == theirs.max_seq_length
    np.testing.assert_allclose(scores, theirs.predict(pairs), atol=1e-5)
    torch = pytest.importorskip("torch")
    for options in ({"apply_softmax": True}, {"activation_fn": torch.nn.Sigmoid()},
                    {"activation_fn": torch.nn.Tanh(), "apply_softmax": True}):
        np.testing.assert_allclose(cross.predict(pairs, **options), theirs.predict(pairs, **options), atol=1e-5)
    np.testing.assert_allclose(cross.predict(pairs, activation_fn=np.tanh), np.tanh(scores), atol=1e-6)
    assert isinstance(cross.predict(pairs, convert_to_tensor=True), mh.Tensor)
    config = json.loads((classifier / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    (classifier / "config.json").write_text(json.dumps(config))
    np.testing.assert_allclose(mh.CrossEncoder(str(classifier)).predict(pairs), 1 / (1 + np.exp(-scores)), atol=1e-5)


def test_texts_are_classified_and_masks_filled_as_by_transformers(folder, tmp_path):
    def with_words(name):
        shutil.copytree(DATA / name, tmp_path / name)
        for file in ("vocab.txt", "tokenizer_config.json"):
            shutil.copy(pathlib.Path(folder) / file, tmp_path / name / file)
        return str(tmp_path / name)

    classifier, masked = with_words("bert_classifier"), with_words("bert_masked_lm")
    ours = mh.embed.TextClassifier.load(classifier)
    logits = ours.logits(TEXTS)
    assert np.array_equal(np.asarray(ours.logits(TEXTS[4:5])), np.asarray(logits)[4:5])
    scores = np.asarray(mh.embed.label_probabilities(logits))
    encoder, tokenizer = mh.models.Encoder.load(masked), mh.Tokenizer.load(masked)
    text = "the [MASK] sat on a [MASK]."
    masks = mh.embed.fill_mask(encoder, tokenizer, text, 3)
    assert len(masks) == 2 and len(masks[0]) == 3 and masks[0][0]["sequence"].startswith("the ")
    for wrong in ("no mask", "[MASK] " * 600):
        with pytest.raises(ValueError):
            mh.embed.fill_mask(encoder, tokenizer, wrong)
    with pytest.raises(ValueError, match="expected a masked_lm head"):
        mh.embed.fill_mask(ours.encoder, tokenizer, text)
    transformers = pytest.importorskip("transformers")
    pipe = transformers.pipeline("text-classification", classifier, top_k=None, device="cpu")
    for kind in ("multi_label_classification", "regression", "single_label_classification"):
        config = json.loads((pathlib.Path(classifier) / "config.json").read_text())
        (pathlib.Path(classifier) / "config.json").write_text(json.dumps({**config, "problem_type": kind}))
        other = mh.embed.TextClassifier.load(classifier)
        of_kind = np.asarray(other.scores(logits))
        for row, theirs in zip(of_kind, transformers.pipeline("text-classification", classifier, top_k=None,
                                                              device="cpu")(TEXTS)):
            for one in theirs:
                assert abs(row[ours.labels.index(one["label"])] - one["score"]) < 1e-5
    for row, theirs in zip(scores, pipe(TEXTS)):
        for one in theirs:
            assert abs(row[ours.labels.index(one["label"])] - one["score"]) < 1e-5
    for mine, theirs in zip(masks, transformers.pipeline("fill-mask", masked, top_k=3, device="cpu")(text)):
        for a, b in zip(mine, theirs):
            assert a["token"] == b["token"] and abs(a["score"] - b["score"]) < 1e-5
            assert a["token_str"] == b["token_str"]


def test_vectors_are_those_of_sentence_transformers(folder):
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(folder, device="cpu")
    np.testing.assert_allclose(mh.SentenceEncoder(folder).encode(TEXTS), theirs.encode(TEXTS), atol=1e-5)


PROMPT = "Instruct: Given a question, find answers\nQuery: "


@pytest.fixture(params=["qwen3", "t5"])
def pooled_folder(request, tmp_path):
    """A folder as sentence-transformers has Qwen3-Embedding and sentence-t5, random and tiny."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("sentence_transformers")
    tokenizers = pytest.importorskip("tokenizers")
    torch.manual_seed(1)
    folder = tmp_path / request.param
    if request.param == "qwen3":
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=280, special_tokens=["<|endoftext|>"],
                                                 initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator(TEXTS, trainer)
        tokenizer.post_processor = tokenizers.processors.Sequence([
            tokenizers.processors.ByteLevel(trim_offsets=False),
            tokenizers.processors.TemplateProcessing(single="$A <|endoftext|>", pair="$A <|endoftext|> $B <|endoftext|>",
                                                     special_tokens=[("<|endoftext|>", 0)])])
        model = transformers.Qwen3Model(transformers.Qwen3Config(
            vocab_size=280, hidden_size=24, intermediate_size=41, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=10, max_position_embeddings=64, initializer_range=0.3))
        model.config.architectures = ["Qwen3ForCausalLM"]  # as published, without an output layer
        pooling, extra = "lasttoken", []
    else:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        tokenizer.decoder = tokenizers.decoders.Metaspace()
        trainer = tokenizers.trainers.UnigramTrainer(vocab_size=60, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>")
        tokenizer.train_from_iterator(TEXTS, trainer)
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
        model = transformers.T5EncoderModel(transformers.T5Config(
            vocab_size=80, d_model=24, d_kv=6, d_ff=41, num_layers=2, num_heads=3, initializer_factor=0.5))
        pooling, extra = "mean_tokens", ["Dense"]
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|endoftext|>" if not extra else "<pad>", model_max_length=64).save_pretrained(folder)
    modules = ["Transformer", "Pooling", *extra, "Normalize"]
    (folder / "modules.json").write_text(json.dumps([
        {"idx": i, "name": str(i), "path": "" if i == 0 else f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(modules)]))
    for i, kind in enumerate(modules[1:], 1):
        (folder / f"{i}_{kind}").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(
        {"word_embedding_dimension": 24, f"pooling_mode_{pooling}": True,
         **{f"pooling_mode_{mode}": False for mode in ("cls_token", "max_tokens", "mean_sqrt_len_tokens")},
         **({"pooling_mode_mean_tokens": False} if pooling != "mean_tokens" else {}), "include_prompt": True}))
    if extra:
        from safetensors.torch import save_file

        (folder / "2_Dense" / "config.json").write_text(json.dumps(
            {"in_features": 24, "out_features": 9, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"}))
        save_file({"linear.weight": torch.randn(9, 24)}, folder / "2_Dense" / "model.safetensors")
    (folder / "config_sentence_transformers.json").write_text(json.dumps(
        {"prompts": {"query": PROMPT, "document": ""}, "default_prompt_name": None, "similarity_fn_name": "cosine"}))
    return str(folder)


def test_decoders_and_t5_give_the_vectors_of_sentence_transformers(pooled_folder):
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(pooled_folder, device="cpu")
    ours = mh.SentenceEncoder(pooled_folder)
    np.testing.assert_allclose(ours.encode(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(ours.encode(TEXTS, prompt_name="query"), theirs.encode(TEXTS, prompt_name="query"), atol=1e-5)
    for options in ({"truncate_dim": 5}, {"truncate_dim": 5, "normalize_embeddings": True}):
        np.testing.assert_allclose(ours.encode(TEXTS, **options), theirs.encode(TEXTS, **options), atol=1e-5)
    for text, vector in zip(TEXTS, ours.encode(TEXTS)):
        assert np.array_equal(ours.encode(text), vector)


def test_pooling_may_be_chosen(folder):
    by_name = {name: mh.SentenceEncoder(folder, pooling=name).encode(TEXTS[0]) for name in ("mean", "cls", "last")}
    encoder = mh.SentenceEncoder(folder)
    features = np.asarray(encoder.encoder.features([encoder.tokenizer.encode(TEXTS[0])]))
    np.testing.assert_array_equal(by_name["cls"], features[0])
    np.testing.assert_array_equal(by_name["last"], features[-1])
    with pytest.raises(ValueError, match="pooling must be one of 'cls'"):
        mh.SentenceEncoder(folder, pooling="median")
