"""What we save, used the usual way in the other program, gives our answers from text to text, and what that saves gives them here.

MULTIHEAD_TEXTS=40 asks for as many texts of each kind of model instead of a few.
"""

import json
import os
import pathlib
import random
import shutil

import numpy as np
import pytest

import multihead as mh
from small_bert import make_bert

tf = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
DATA = pathlib.Path(__file__).parents[2] / "tests" / "data"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the fixtures lie in a checkout")

WORDS = "cat dog sun sea mat night tree bird fish stone".split()
TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def sentences(count, seed):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 6))) for _ in range(count)]


TEXTS = sentences(int(os.environ.get("MULTIHEAD_TEXTS", "5")), 7)


@pytest.mark.parametrize("steps", [3, 60])  # after 3, all translations are cut at the longest length
def test_a_translator(tmp_path, steps):
    (tmp_path / "pairs.tsv").write_text("".join(f"{s}\t{s.upper()}\n" for s in sentences(200, 1)))
    mh.train.train_seq2seq(tmp_path / "pairs.tsv", tmp_path / "out", steps=steps, warmup=2, lr=5e-3, width=32, heads=2, ff=64,
                     encoder_layers=1, decoder_layers=1, vocab_size=300, batch_tokens=256, eval_every=0, max_positions=28, max_tokens=24)
    ours = mh.models.Translator.load(tmp_path / "out").translate(TEXTS)
    tokenizer = tf.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = tf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    theirs = [tokenizer.decode(model.generate(tokenizer(text, return_tensors="pt").input_ids)[0], skip_special_tokens=True)
              for text in TEXTS]
    assert ours == theirs
    model.save_pretrained(tmp_path / "back")
    tokenizer.save_pretrained(tmp_path / "back")
    assert mh.models.Translator.load(tmp_path / "back").translate(TEXTS) == ours


def test_a_translator_searches_as_its_folder_says(tmp_path):
    tokenizer = mh.Tokenizer.train_bpe(WORDS, vocab_size=270)
    eos, pad = tokenizer.eos_id, len(tokenizer)
    config = mh.models.Seq2SeqConfig(source_vocab_size=pad + 1, max_positions=40, encoder_layers=1, decoder_layers=1, num_heads=2,
                                     embed_dim=16, dropout_p=0.0, eos_id=eos, pad_id=pad, decoder_start_id=eos)
    mh.models.Seq2Seq(config, rng=mh.Rng(5)).save(tmp_path)
    tokenizer.save(tmp_path / "tokenizer.json")

    def said(**keys):
        (tmp_path / "generation_config.json").write_text(json.dumps(keys))
        return mh.models.Translator.load(tmp_path)

    free = said(max_length=12)
    assert free.translate(WORDS) == free.translate(WORDS, max_length=10) != free.translate(WORDS, max_length=5)
    for key, word, value in (("num_beams", "beam_size", 1), ("length_penalty", "length_penalty", -3.0),
                             ("repetition_penalty", "repetition_penalty", 3.0), ("no_repeat_ngram_size", "no_repeat_ngram", 2),
                             ("suppress_tokens", "suppress", [7]), ("forced_bos_token_id", "first_token", 9)):
        bound = said(max_length=12, **{key: value})
        given = [[7]] if word == "suppress" else value
        assert bound.translate(WORDS) == free.translate(WORDS, **{word: given}), key
    assert said(max_length=12, num_beams=1).translate(WORDS, beam_size=4) == free.translate(WORDS)
    with pytest.raises(mh.FormatError, match="typical_p"):
        said(typical_p=0.5)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    """A small Llama of transformers, with a template and a pad token of its own."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("chat")
    tok = tokenizers.Tokenizer(tokenizers.models.BPE())
    tok.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = tokenizers.decoders.ByteLevel()
    tok.train_from_iterator(TEXTS * 3, tokenizers.trainers.BpeTrainer(
        vocab_size=300, show_progress=False, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"]))
    fast = tf.PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|endoftext|>", pad_token="<pad>",
                                      chat_template=TEMPLATE)
    fast.save_pretrained(folder / "base")
    torch.manual_seed(4)
    tf.LlamaForCausalLM(tf.LlamaConfig(
        vocab_size=len(fast), hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, eos_token_id=0, bos_token_id=None, pad_token_id=3, tie_word_embeddings=True, initializer_range=0.05,
    )).save_pretrained(folder / "base")
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": [
        {"role": "user", "content": text}, {"role": "assistant", "content": text.split()[-1].upper()}]}) + "\n"
        for text in sentences(200, 2)))
    return folder


def answers_of_theirs(folder, base=None):
    tokenizer = tf.AutoTokenizer.from_pretrained(folder)
    model = tf.AutoModelForCausalLM.from_pretrained(base or folder, dtype=torch.float32)
    if base is not None:
        model = pytest.importorskip("peft").PeftModel.from_pretrained(model, folder)
    answers = []
    for text in TEXTS:
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                               return_tensors="pt", return_dict=True)
        row = model.generate(**prompt, do_sample=False, max_new_tokens=10)[0, prompt["input_ids"].shape[1]:]
        answers.append(tokenizer.decode(row, skip_special_tokens=True))
    return answers


def answers_of_ours(folder):
    generator = mh.TextGenerator(folder)
    return [generator.chat(text, temperature=0, max_new_tokens=10) for text in TEXTS]


def test_a_chat_model_of_theirs(chat_model):
    assert answers_of_ours(chat_model / "base") == answers_of_theirs(chat_model / "base")


def test_a_chat_model_as_a_folder_and_a_gguf_file(chat_model):
    out = chat_model / "tuned"
    mh.train_language_model(chat_model / "chats.jsonl", out, init=chat_model / "base", steps=120, batch=8, lr=1e-2)
    ours = answers_of_ours(out)
    assert ours == answers_of_theirs(out)
    assert all(answer and "\n" not in answer for answer in ours)  # it stops after the word
    model, tokenizer = mh.models.LanguageModel.load(out), mh.Tokenizer.load(out)
    model.save_gguf(chat_model / "tuned.gguf", tokenizer, type="f32")
    assert ours == answers_of_ours(chat_model / "tuned.gguf")


def test_an_adapter(chat_model):
    base, out = chat_model / "instruct", chat_model / "lora"
    shutil.copytree(chat_model / "base", base)
    # Others stop where the base says, and an adapter leaves that alone.
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2], "pad_token_id": 3}))
    mh.train_language_model(chat_model / "chats.jsonl", out, init=base, steps=80, batch=8, lora_rank=8, lr=3e-2,
                            lora_targets="q_proj,k_proj,v_proj,o_proj,up_proj,down_proj")
    ours = answers_of_ours(out)
    assert ours == answers_of_theirs(out, base)
    assert ours != answers_of_ours(base)
    theirs = pytest.importorskip("peft").PeftModel.from_pretrained(tf.AutoModelForCausalLM.from_pretrained(base), out)
    theirs.save_pretrained(chat_model / "back")
    assert ours == answers_of_ours(chat_model / "back")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    make_bert(folder / "bert", special + WORDS + ["##s"])
    (folder / "labels.tsv").write_text("".join(f"{s}\t{s.split()[0]}\n" for s in sentences(200, 3)))
    (folder / "pairs.tsv").write_text("".join(f"{s}\t{s.split()[0]}s {n}\n" for n, s in enumerate(sentences(200, 4))))
    return folder


def test_a_classifier(bert):
    mh.train_classifier(bert / "labels.tsv", bert / "classifier", init=bert / "bert", steps=40, lr=1e-2)
    ours = mh.embed.TextClassifier.load(bert / "classifier")
    scores = np.asarray(ours.scores(ours.logits(TEXTS)))
    pipe = tf.pipeline("text-classification", str(bert / "classifier"), device="cpu")
    theirs = pipe(TEXTS)
    assert [ours.labels[row.argmax()] for row in scores] == [one["label"] for one in theirs]
    np.testing.assert_allclose(scores.max(1), [one["score"] for one in theirs], atol=1e-5)
    pipe.save_pretrained(bert / "back")
    back = mh.embed.TextClassifier.load(bert / "back")
    assert back.labels == ours.labels
    np.testing.assert_array_equal(back.scores(back.logits(TEXTS)), scores)


def test_an_embedder(bert):
    mh.train_embedder(bert / "pairs.tsv", bert / "embedder", init=bert / "bert", steps=20, lr=1e-2)
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(str(bert / "embedder"), device="cpu")
    ours = mh.SentenceEncoder(bert / "embedder").encode(TEXTS)
    np.testing.assert_allclose(ours, theirs.encode(TEXTS), atol=1e-5)
    theirs.save(str(bert / "vectors"))
    np.testing.assert_array_equal(mh.SentenceEncoder(bert / "vectors").encode(TEXTS), ours)


def test_a_tagger(bert, tmp_path):
    torch.manual_seed(5)
    labels = dict(enumerate(["O", "B-X", "I-X"]))
    config = tf.AutoConfig.from_pretrained(bert / "bert", num_labels=3, id2label=labels, initializer_range=1.0)
    tf.BertForTokenClassification(config).save_pretrained(tmp_path / "theirs")
    tokenizer = tf.AutoTokenizer.from_pretrained(bert / "bert")
    tokenizer.save_pretrained(tmp_path / "theirs")
    mh.models.Encoder.load(tmp_path / "theirs").save(tmp_path / "ours")
    mh.Tokenizer.load(tmp_path / "theirs").save(tmp_path / "ours")
    ours = [[(one["entity_group"], one["start"], one["end"]) for one in found]
            for found in mh.embed.TokenClassifier.load(tmp_path / "ours").entities(TEXTS)]
    assert any(ours)
    for folder in "theirs", "ours":
        pipe = tf.pipeline("token-classification", str(tmp_path / folder), aggregation_strategy="simple", device="cpu")
        theirs = [[(one["entity_group"], one["start"], one["end"]) for one in pipe(text)] for text in TEXTS]
        assert ours == theirs, folder


def test_a_vision_transformer(tmp_path):
    image = pytest.importorskip("PIL.Image")
    config = mh.models.ImageEncoderConfig(image_size=12, patch_size=4, num_layers=1, num_heads=2, embed_dim=16, ffn_dim=20,
                                          head="classification", num_labels=3, pooler=False, init_std=0.5)
    config.labels = ["cat", "dog", "sun"]
    model = mh.models.ImageEncoder(config, rng=mh.Rng(2))
    mh.ImageClassifier(model, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.25]).save(tmp_path / "vit")
    rng = np.random.default_rng(3)
    pictures = rng.integers(0, 256, (len(TEXTS), 12, 12, 3)).astype(np.uint8)
    ours = mh.ImageClassifier.load(tmp_path / "vit")
    scores = np.asarray(ours.scores(ours.logits(pictures.transpose(0, 3, 1, 2))))
    pipe = tf.pipeline("image-classification", str(tmp_path / "vit"), top_k=1, device="cpu")
    theirs = pipe([image.fromarray(picture) for picture in pictures])
    assert [ours.labels[row.argmax()] for row in scores] == [one[0]["label"] for one in theirs]
    np.testing.assert_allclose(scores.max(1), [one[0]["score"] for one in theirs], atol=1e-5)
    pipe.save_pretrained(tmp_path / "back")
    back = mh.ImageClassifier.load(tmp_path / "back")
    np.testing.assert_array_equal(back.scores(back.logits(pictures.transpose(0, 3, 1, 2))), scores)


def test_images_from_files(tmp_path):
    """Trained from files of other sizes, grey or with alpha; read by both from the files."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(4)
    files = []
    for number in range(len(TEXTS) + 2):
        size, mode = sorted(rng.integers(5, 40, 2)), ["L", "RGB", "RGBA"][number % 3]  # Pillow 13 differs on upright ones
        pixels = rng.integers(0, 256, (*size, len(mode)) if mode != "L" else size).astype(np.uint8)
        folder = tmp_path / "images" / ["cat", "dog"][number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        files.append(folder / f"{number}.png")
        image.fromarray(pixels, mode).save(files[-1])
    for resample in 2, 3:
        out = tmp_path / f"vit{resample}"
        mh.train_image_classifier(tmp_path / "images", out, init=tmp_path / "vit2" if resample == 3 else "", steps=20, lr=1e-2, warmup=2,
                                  **({} if resample == 3 else dict(image_size=16, patch_size=4, layers=2, width=32)))
        if resample == 3:
            settings = json.loads((out / "preprocessor_config.json").read_text())
            (out / "preprocessor_config.json").write_text(json.dumps({**settings, "resample": 3}))
        ours = mh.ImageClassifier.load(out)
        logits = np.asarray(ours.logits(ours.read(files)))
        processor, model = tf.AutoImageProcessor.from_pretrained(out), tf.AutoModelForImageClassification.from_pretrained(out)
        pictures = [image.open(file).convert("RGB") for file in files]
        with torch.no_grad():
            theirs = model(**processor(pictures, return_tensors="pt")).logits.numpy()
        np.testing.assert_allclose(logits, theirs, atol=1e-5)
        named = [one[0]["label"] for one in tf.pipeline("image-classification", str(out), top_k=1, device="cpu")(list(map(str, files)))]
        assert named == [ours.labels[row.argmax()] for row in logits]
        model.save_pretrained(tmp_path / f"back{resample}")
        processor.save_pretrained(tmp_path / f"back{resample}")
        back = mh.ImageClassifier.load(tmp_path / f"back{resample}")
        np.testing.assert_array_equal(back.logits(back.read(files)), logits)
