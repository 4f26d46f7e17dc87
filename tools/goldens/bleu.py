"""BLEU and chrF2 of sacrebleu for awkward sentences: multihead/text/testdata/bleu.json.

    python3 tools/goldens/bleu.py

Needs PyPI sacrebleu.
"""
import json
import pathlib
import random

import sacrebleu
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

OUT = pathlib.Path(__file__).resolve().parents[2] / "multihead" / "text" / "testdata" / "bleu.json"

WORDS = ("the a of cat sat, on mat. 3.14 1,000 1990-1995 don't (he) \"said\" &quot;x&quot; & &amp; A.B. … «¿Qué?» "
         "corazón naïve 東京 e-mail/web 50% #1 [x] {y} ~z a..b ,. .5 5. -3 --").split(" ")
FIXED = [
    (["hello there general kenobi"], ["hello there general kenobi"]),
    (["hello"], ["hello there"]),
    ([""], ["not empty"]),
    (["x"], [""]),
    (["totally different words here now"], ["nothing in common with that one"]),
    (["one two three nine nine"], ["one two three four five"]),
    (["En el principio creó Dios los cielos y la tierra."], ["EN el principio crió Dios los cielos y la tierra."]),
    (["a\u00a0b\u3000c d e f"], ["a b c d e f"]),
    (["<skipped>ab&lt;c&gt; d-\ne 2-3 4.5,6 7, 8"], ["ab <c> de 2 - 3 4.5,6 7 , 8"]),
]


def corpora():
    yield from FIXED
    rng = random.Random(11)
    for size in (1, 2, 7, 40):
        references = [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 25))) for _ in range(size)]
        hypotheses = []
        for reference in references:
            words = [w for w in reference.split(" ") if rng.random() > 0.15]
            hypotheses.append(" ".join(rng.choice(WORDS) if rng.random() < 0.2 else w for w in words))
        yield hypotheses, references


def main():
    cases = []
    for hypotheses, references in corpora():
        score = sacrebleu.corpus_bleu(hypotheses, [references])
        cases.append({
            "hypotheses": hypotheses, "references": references, "bleu": score.score, "counts": score.counts,
            "totals": score.totals, "bp": score.bp, "chrf": sacrebleu.corpus_chrf(hypotheses, [references]).score,
            "tokenized": [Tokenizer13a()(line) for line in hypotheses]})
    OUT.write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{OUT}: {len(cases)} cases, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
