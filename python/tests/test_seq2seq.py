"""Encoder-decoder models: training, Marian folders, beam search, translation."""

import numpy as np
import pytest

import multihead as mh

PAIRS = [("ein roter ball", "a red ball"), ("ein blauer hut", "a blue hat"), ("der hut ist rot", "the hat is red")]


def tiny(tokenizer, **changes):
    fields = dict(source_vocab_size=len(tokenizer) + 1, max_positions=64, encoder_layers=1, decoder_layers=1, num_heads=4)
    fields |= dict(embed_dim=32, dropout_p=0.0, eos_id=tokenizer.eos_id, pad_id=len(tokenizer))
    fields |= dict(decoder_start_id=tokenizer.eos_id)
    return mh.models.Seq2Seq(mh.models.Seq2SeqConfig(**{**fields, **changes}), rng=mh.Rng(1))


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """Learns three sentences by heart."""
    tokenizer = mh.Tokenizer.train_bpe([text for pair in PAIRS for text in pair], vocab_size=280)
    model, eos = tiny(tokenizer), tokenizer.eos_id
    sources = [tokenizer.encode(a) + [eos] for a, _ in PAIRS]
    labels = [tokenizer.encode(b) + [eos] for _, b in PAIRS]
    pad = lambda rows, fill: np.array([row + [fill] * (max(map(len, rows)) - len(row)) for row in rows])
    source, y = pad(sources, eos), pad(labels, -100)
    target = np.concatenate([np.full((3, 1), eos), np.where(y[:, :-1] < 0, eos, y[:, :-1])], axis=1)
    optimizer = mh.optim.AdamW(model, lr=1e-2)
    for _ in range(120):
        with mh.Tape() as tape:
            loss = model.loss(source, target, y, source_lengths=[len(row) for row in sources])
            tape.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 0.1
    folder = tmp_path_factory.mktemp("marian")
    model.save(str(folder))
    tokenizer.save(str(folder / "tokenizer.json"))
    return mh.models.Translator.load(str(folder)), folder


def test_translation(translator):
    translator, _ = translator
    assert translator.translate([a for a, _ in PAIRS]) == [b for _, b in PAIRS]
    assert translator.translate(PAIRS[0][0]) == PAIRS[0][1]
    best = translator.translate(PAIRS[0][0], num_hypotheses=3)
    assert len(best) == 3 and best[0] == PAIRS[0][1]
    many = [PAIRS[i % 3][0] for i in range(40)]
    assert translator.translate(many, beam_size=1) == [PAIRS[i % 3][1] for i in range(40)]


def test_int8_weights(translator):
    translator, _ = translator
    texts = [a for a, _ in PAIRS]
    assert translator.translate(texts, weight_dtype="int8") == [b for _, b in PAIRS]
    source = translator.source_tokenizer.encode(texts[1]) + [translator.model.config.eos_id]
    (((tokens, score),),) = translator.model.beam_search([source], weight_dtype="int8")
    (((exact_tokens, exact),),) = translator.model.beam_search([source])
    assert tokens == exact_tokens and score != exact and abs(score - exact) < 0.05
    with pytest.raises(ValueError, match="weight_dtype: expected f32, bf16, f16, int8, q8, q5 or q4, got 'int4'"):
        translator.translate(texts, weight_dtype="int4")


def test_beam_search_gives_tokens_and_scores(translator):
    translator, _ = translator
    tokenizer = translator.source_tokenizer
    source = tokenizer.encode(PAIRS[1][0]) + [translator.model.config.eos_id]
    ((tokens, score), (_, second)) = translator.model.beam_search([source], num_hypotheses=2)[0]
    assert translator.target_tokenizer.decode(tokens) == PAIRS[1][1] and second <= score <= 0


def test_alternatives_begin_with_different_tokens(translator):
    translator, _ = translator
    source = translator.source_tokenizer.encode(PAIRS[1][0]) + [translator.model.config.eos_id]
    others = translator.model.beam_search([source], alternatives=True, num_hypotheses=6)[0]
    assert len({tuple(tokens[:1]) for tokens, _ in others}) == 6
    ((best, score),) = translator.model.beam_search([source])[0]
    assert others[0] == (best, score)


def test_what_cannot_be_translated_is_named(translator):
    translator, folder = translator
    assert translator.translate(["ein hut", " ", ""])[1:] == ["", ""]  # blank lines stay so
    with pytest.raises(ValueError, match="at most 64"):
        translator.translate("hut " * 100)
    with pytest.raises(ValueError, match="vocabulary"):
        translator.model.beam_search([[-1]])
    with pytest.raises(ValueError, match="beam_size"):
        translator.translate("ein hut", beam_size=0)
    with pytest.raises(TypeError):
        translator.translate([b"bytes"])
    with pytest.raises(TypeError, match="unknown field 'depth'"):
        mh.models.Seq2SeqConfig(depth=3)
    with pytest.raises(mh.IoError):
        mh.models.Translator.load(str(folder / "nowhere"))


@pytest.mark.parametrize("output_bias", [True, False])
def test_transformers_reads_the_folder(translator, output_bias, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    translator, folder = translator
    model = translator.model
    if not output_bias:  # Marian has one: it reads zeros
        model, folder = tiny(translator.target_tokenizer, output_bias=False, eos_id=0, decoder_start_id=0), tmp_path
        model.save(str(folder))
        assert not mh.models.Seq2Seq.load(str(folder)).config.output_bias
    theirs = transformers.MarianMTModel.from_pretrained(str(folder)).eval()
    source, target = np.array([[5, 9, 11, 3]]), np.array([[0, 7, 8]])
    with torch.no_grad():
        want = theirs(input_ids=torch.tensor(source), decoder_input_ids=torch.tensor(target)).logits
    np.testing.assert_allclose(np.asarray(model(source, target)), want.numpy(), atol=2e-4, rtol=1e-4)


def test_a_folder_is_loaded_as_what_it_is(translator, tmp_path):
    assert isinstance(mh.AutoModel.from_pretrained(translator[1]), mh.models.Seq2Seq)
    mh.models.Encoder(mh.models.EncoderConfig(vocab_size=9, num_layers=1, num_heads=2, embed_dim=8)).save(tmp_path / "encoder")
    assert isinstance(mh.AutoModel.from_pretrained(tmp_path / "encoder"), mh.models.Encoder)
    config = mh.models.LanguageModelConfig(vocab_size=9, num_layers=1, num_heads=2, embed_dim=8)
    mh.models.LanguageModel(config).save(tmp_path / "model")
    assert isinstance(mh.AutoModel.from_pretrained(str(tmp_path / "model")), mh.models.LanguageModel)
    mh.AutoModel.from_pretrained(tmp_path / "model", weights="int8").save(tmp_path / "packed")
    assert mh.AutoModel.from_pretrained(tmp_path / "packed").weight_dtype == "int8"
    with pytest.raises(mh.IoError, match="nothing"):
        mh.AutoModel.from_pretrained(tmp_path / "nothing")


def test_relative_biases_of_t5(tmp_path):
    """Attention with them beside NumPy, a model saved as T5, the first token of a search."""
    bias = mh.nn.RelativeBias(2, buckets=8, max_distance=5, rng=mh.Rng(2))
    table, buckets = np.asarray(bias()), np.asarray(mh.nn.relative_buckets(8, max_distance=5))
    np.testing.assert_array_equal(table, np.asarray(bias.weight)[buckets].T)
    x = np.random.default_rng(0).standard_normal((1, 2, 9, 4)).astype("f4")
    distance = np.clip(np.arange(9)[None, :] - np.arange(9)[:, None], -5, 5) + 5
    scores = x @ x.swapaxes(2, 3) + table[:, distance]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ x
    got = mh.attention(x, x, x, scale=1.0, relative_bias=bias())
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5, atol=1e-6)

    fields = dict(source_vocab_size=11, max_positions=65536, encoder_layers=1, decoder_layers=1, num_heads=2, head_dim=3)
    fields |= dict(embed_dim=8, positions="none", relative_buckets=32, norm="rms", norm_first=True, final_norm=True)
    fields |= dict(bias=False, output_bias=False, scale_embeddings=False, scale_scores=False, scale_output=True, gated=True)
    fields |= dict(dropout_p=0.0, activation="gelu_tanh", pad_id=0, eos_id=1)
    model = mh.models.Seq2Seq(mh.models.Seq2SeqConfig(**fields), rng=mh.Rng(3))
    model.save(tmp_path)
    assert '"t5"' in (tmp_path / "config.json").read_text()
    sources, back = [[5, 7, 3, 1], [4, 1]], mh.models.Seq2Seq.load(tmp_path)
    found = back.beam_search(sources, max_length=6, first_token=9, stop_early=True)
    assert found == model.beam_search(sources, max_length=6, first_token=9, stop_early=True)
    assert all(tokens[0] == 9 for hypotheses in found for tokens, _ in hypotheses)


def test_languages_are_those_of_transformers(tmp_path):
    tf, torch, tokenizers = (pytest.importorskip(name) for name in ("transformers", "torch", "tokenizers"))
    words = ["<s>", "<pad>", "</s>", "<unk>", "eng_Latn", "fra_Latn", "deu_Latn", *"abcdefghij"]
    tok = tokenizers.Tokenizer(tokenizers.models.Unigram([(w, -float(i > 3)) for i, w in enumerate(words)], unk_id=3))
    tok.add_special_tokens(words[:7])
    template = tokenizers.processors.TemplateProcessing
    tok.post_processor = template(single="eng_Latn $A </s>", pair="eng_Latn $A $B </s>", special_tokens=[("eng_Latn", 4), ("</s>", 2)])
    tok.save(str(tmp_path / "tokenizer.json"))
    torch.manual_seed(3)
    config = tf.M2M100Config(vocab_size=len(words), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                             decoder_attention_heads=2, encoder_ffn_dim=20, decoder_ffn_dim=20, max_position_embeddings=40, init_std=0.6,
                             pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2)
    theirs = tf.M2M100ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = mh.models.Translator.load(str(tmp_path))
    found = set()
    for source, target in (("eng_Latn", "fra_Latn"), ("fra_Latn", "deu_Latn"), ("deu_Latn", "eng_Latn")):
        ids = [words.index(source)] + tok.encode("abba", add_special_tokens=False).ids + [2]
        want = theirs.generate(torch.tensor([ids]), forced_bos_token_id=words.index(target), num_beams=1, do_sample=False,
                               max_new_tokens=8, suppress_tokens=[1])[0].tolist()
        got = ours.translate("abba", beam_size=1, max_length=8, source_lang=source, target_lang=target)
        want = tok.decode(want[1:], skip_special_tokens=True).replace(" ", "")
        assert got.replace(" ", "")[:6] == want[:6]
        found.add(got)
    assert len(found) > 1
    with pytest.raises(ValueError, match="no language"):
        ours.translate("abba", source_lang="xxx")
