"""`notsodeep advise`: what it prints, the files that it reads, and what it refuses."""

import json

import numpy as np
import pytest

GMM = "gmm:n=60,p=20"


@pytest.fixture
def task():
    x = np.random.default_rng(0).standard_normal((60, 3))
    return x, x[:, 0] - x[:, 1]


def test_three_sentences_and_a_table(notsodeep):
    ran = notsodeep("advise", "--data", GMM)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "data: two-class Gaussian mixture (seed 0), 60 samples × 20 features"
    assert lines[1].startswith("Use the explicit network")
    for word in ("conjugate gap", "learnt metric", "missed", "Nothing was trained"):
        assert word in ran.stdout


def test_as_json(notsodeep):
    ran = notsodeep("advise", "--data", GMM, "--json")
    assert ran.returncode == 0, ran.stderr
    record = json.loads(ran.stdout)
    assert record["verdict"] == record["rule"] == "explicit"
    assert len(record["sentences"]) == 3
    assert record["race"] is None
    assert {"name", "value", "meaning"} == set(record["evidence"][0])
    assert record["measured"]["samples"] == 60


def test_training_both(notsodeep):
    ran = notsodeep("advise", "--data", GMM, "--train", "--steps", "3", "--seeds", "2", "--json")
    assert ran.returncode == 0, ran.stderr
    record = json.loads(ran.stdout)
    assert record["verdict"] == record["race"]["outcome"]
    assert len(record["race"]["deq"]["losses"]) == 2
    assert record["race"]["explicit"]["training_flops"] <= record["race"]["deq"]["training_flops"]
    assert "2 seeds each" in record["sentences"][2]


def test_the_seed_is_the_samples_order(notsodeep):
    first, same, other = (notsodeep("advise", "--data", "digits:n=60", "--json", "--seed", s).stdout for s in ("1", "1", "2"))
    assert first == same
    assert json.loads(first)["measured"]["trees"] != json.loads(other)["measured"]["trees"]


def test_a_table_of_numbers_and_every_way_to_name_its_labels(notsodeep, tmp_path, task):
    x, y = task
    np.savetxt(tmp_path / "t.csv", np.column_stack([x, y]), delimiter=",", header="a,b,c,out", comments="")
    np.savez(tmp_path / "t.npz", x=x, y=y)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    ways = [
        ("--data", str(tmp_path / "t.csv"), "--labels", "out"),
        ("--data", str(tmp_path / "t.csv"), "--target", "-1"),
        ("--data", str(tmp_path / "t.npz")),
        ("--data", f"{tmp_path / 'x.npy'},{tmp_path / 'y.npy'}"),
        ("--data", str(tmp_path / "x.npy"), "--labels", str(tmp_path / "y.npy")),
    ]
    records = []
    for way in ways:
        ran = notsodeep("advise", *way, "--json")
        assert ran.returncode == 0, ran.stderr
        records.append(json.loads(ran.stdout)["measured"])
    assert not records[0]["classes"]
    assert records[0]["outputs"] == 1
    assert all(record == records[0] for record in records)


def test_whole_numbers_are_classes_unless_told(notsodeep, tmp_path, task):
    x, y = task
    np.savez(tmp_path / "t.npz", x=x, y=np.round(3 * y))
    of_classes, of_numbers = (
        json.loads(notsodeep("advise", "--data", str(tmp_path / "t.npz"), "--json", *more).stdout)
        for more in ((), ("--numbers",))
    )
    assert of_classes["measured"]["classes"]
    assert not of_numbers["measured"]["classes"]
    assert of_numbers["measured"]["outputs"] == 1


def test_words_are_classes(notsodeep, tmp_path, task):
    x, y = task
    rows = [f"{a},{b},{c},{'up' if t > 0 else 'down'}" for (a, b, c), t in zip(x, y, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c,out", *rows]))
    ran = notsodeep("advise", "--data", str(tmp_path / "t.csv"), "--target", "out", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["measured"]["outputs"] == 2


def test_bad_input_is_one_line_and_exit_code_2(notsodeep, tmp_path, task):
    x, y = task
    for name, labels in (("none", None), ("nan", np.where(y > 1.0, np.nan, y)), ("short", y[:-1]), ("equal", 0 * y)):
        np.savez(tmp_path / f"{name}.npz", **({"x": x} if labels is None else {"x": x, "y": labels}))
    np.savez(tmp_path / "many.npz", x=x, y=np.arange(60))
    np.savez(tmp_path / "few.npz", x=x[:5], y=y[:5])
    np.savez(tmp_path / "fewer.npz", x=x[:12], y=y[:12])
    (tmp_path / "words.csv").write_text("a,b\nx,1\ny,2\n")
    (tmp_path / "kinds.csv").write_text("a,kind\n" + "1,cat\n2,dog\n" * 15)
    cases = [
        (["nowhere.npy,y.npy"], "no file"),
        (["nowhere"], "not data that we know"),
        (["gmm:n=0,p=20"], "n must be a whole number"),
        ([str(tmp_path / "none.npz")], "no labels to learn"),
        ([str(tmp_path / "nan.npz")], "has the label nan"),
        ([str(tmp_path / "short.npz")], "59 labels"),
        ([str(tmp_path / "equal.npz")], "All labels are equal"),
        ([str(tmp_path / "many.npz")], "--numbers"),
        ([str(tmp_path / "few.npz")], "20 at least"),
        ([str(tmp_path / "fewer.npz"), "--train"], "20 at least"),
        ([str(tmp_path / "words.csv"), "--target", "c"], "no column 'c'"),
        ([str(tmp_path / "words.csv"), "--target", "b"], "cannot be read"),
        ([f"{tmp_path / 'none.npz'},y.npy", "--labels", "z.npy"], "leave one of them out"),
        ([GMM, "--labels", "y.npy"], "its own labels"),
        ([str(tmp_path / "kinds.csv"), "--labels", "kind", "--numbers"], "are words"),
        ([GMM, "--train", "--steps", "0"], "steps"),
        ([GMM, "--train", "--seeds", "-1"], "seeds"),
    ]
    for arguments, message in cases:
        ran = notsodeep("advise", "--data", *arguments)
        assert ran.returncode == 2, arguments
        assert message in ran.stderr, (arguments, ran.stderr)
        assert ran.stderr.startswith("error: ")
        assert ran.stderr.count("\n") == 1
        assert ran.stdout == ""
