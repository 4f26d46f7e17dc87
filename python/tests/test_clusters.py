"""Corpora embedded by Dask and by Ray Data, as docs/embeddings.md has it: the workers' vectors are those of one process."""

import numpy as np
import pytest

import multihead as mh
from small_bert import make_bert

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "sat", "on", "a", "mat", "##s"]
TEXTS = [f"the {WORDS[5 + i % 7]} sat on a {WORDS[6 + i % 2]}{'s' * (i % 3 == 0)}" for i in range(40)]


@pytest.fixture
def encoder(tmp_path):
    return mh.SentenceEncoder(str(make_bert(tmp_path / "bert", WORDS)))


def embed(part, encoder):
    return part.assign(vector=list(encoder.encode(part["text"].tolist())))


def test_dask(encoder):
    dd = pytest.importorskip("dask.dataframe")
    pd, distributed = pytest.importorskip("pandas"), pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster, \
            distributed.Client(cluster) as client:
        frame = dd.from_pandas(pd.DataFrame({"text": TEXTS}), npartitions=5)
        shared = client.scatter(encoder, broadcast=True)
        made = frame.map_partitions(embed, shared, meta={"text": str, "vector": object}).compute()
    assert made["text"].tolist() == TEXTS
    assert np.array_equal(np.stack(made["vector"].tolist()), encoder.encode(TEXTS))


def test_ray(encoder, tmp_path):
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")

    class Embed:  # here, and so pickled by value: the workers need not find this file
        def __init__(self, encoder):
            self.encoder = encoder

        def __call__(self, batch):
            return {**batch, "vector": self.encoder.encode(batch["text"].tolist())}

    ray.init(num_cpus=3, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        rows = ray.data.from_items([{"text": text} for text in TEXTS])
        made = rows.map_batches(Embed, fn_constructor_args=(encoder,), concurrency=2, batch_size=8).take_all()
    finally:
        ray.shutdown()
    got = {row["text"]: row["vector"] for row in made}
    assert len(made) == len(TEXTS)
    want = encoder.encode(TEXTS)
    assert all(np.array_equal(got[text], vector) for text, vector in zip(TEXTS, want))
