"""A BERT with a few words, in a folder of its own: the weights of a fixture with a vocabulary beside them."""

import json
import pathlib
import shutil

ENCODERS = pathlib.Path(__file__).parents[2] / "tests" / "data" / "encoders"


def make_bert(folder, words):
    shutil.copytree(ENCODERS / "bert", folder, dirs_exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": True, "model_max_length": 19, "tokenizer_class": "BertTokenizer"}))
    return folder
