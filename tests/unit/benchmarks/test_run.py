"""What a run of the benchmarks does around its numbers. Nothing is measured here."""

from __future__ import annotations

import json
import signal

import pytest

from tests.benchmarks import batching, run
from tests.benchmarks.figures import Figure, Spread, at_most


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "FOLDER", tmp_path / "bench")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    return tmp_path / "bench"


def results() -> run.Results:
    made = run.Results(quick=False, rounds=3)
    made.figures = [
        Figure("cost", "per token", "µs", Spread.of([2.0]), at_most(3)),
        Figure("cost", "beside it", "µs", Spread.of([5.0]), is_shown=True),
        Figure("cost", "more of it", "µs", Spread.of([6.0])),
    ]
    return made


def test_a_second_run_is_refused_while_one_runs(folder):
    with run.alone(), pytest.raises(SystemExit, match=r"another `make bench` runs here"), run.alone():
        pass
    with run.alone():
        pass


def test_only_whole_runs_are_published(monkeypatch, capsys):
    for options in (["--quick"], ["--only", "journal"], ["--rounds", "1"]):
        monkeypatch.setattr("sys.argv", ["bench", "--publish", *options])
        with pytest.raises(SystemExit):
            run.arguments()
        assert "--publish is for a whole run" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["bench", "--publish"])
    assert run.arguments().publish


def test_goals_and_what_is_to_be_shown_get_between_the_marks(folder):
    readme = folder.parent / "README.md"
    readme.write_text("before\n<!-- make bench -->\nold\n<!-- end of make bench -->\nafter\n")
    folder.mkdir()
    run.report(results(), 60)
    run.publish()
    text = readme.read_text()
    assert text.startswith("before\n<!-- make bench -->\n")
    assert text.endswith("<!-- end of make bench -->\nafter\n")
    assert "per token" in text
    assert "beside it" in text
    assert "more of it" not in text
    assert "old" not in text


def test_what_cannot_be_written_is_a_fault_and_the_table_is_there_all_the_same(folder, capsys):
    folder.write_text("a file")
    made = results()
    assert "per token" in run.report(made, 60)
    assert len(made.faults) == 1
    assert made.faults[0].startswith("bench/ is not complete: ")
    run.report(made, 60)
    assert len(made.faults) == 1
    assert capsys.readouterr().err.count("bench/") == 2  # its name, and the path in the reason


def test_a_part_that_fails_is_told_and_the_others_are_measured(folder, monkeypatch, capsys):
    def fail(_results):
        raise RuntimeError("no engine")

    parts = {"bad": fail, "good": lambda made: made.figures.append(results().figures[0])}
    monkeypatch.setattr(run, "PARTS", parts)
    monkeypatch.setattr("sys.argv", ["bench"])
    options = run.arguments()
    options.only = list(parts)
    options.quick = True
    folder.mkdir()
    assert run.measure(options) == 1
    said = capsys.readouterr()
    assert "bad could not be measured: RuntimeError: no engine" in said.err
    assert "0 of 1 goals missed" in said.out
    assert json.loads((folder / "results.json").read_text())["faults"] == said.err.splitlines()[:1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_words(number, code, monkeypatch, capsys):
    set_to: dict[int, object] = {}
    monkeypatch.setattr(signal, "signal", set_to.__setitem__)
    with pytest.raises(SystemExit) as ended:
        run.interrupted(number, None)
    assert ended.value.code == code
    assert f"{number.name}: ending what runs" in capsys.readouterr().err
    assert set_to == {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}


def test_the_story_of_batching_is_a_table():
    seen = {"tokens_per_s": 5.25, "first_median_s": 0.2}
    lines = batching.summary({"alone": {1: seen, 32: seen}, "together": {1: seen, 32: seen}}).splitlines()
    assert lines[0].startswith("| users")
    assert [cell.strip() for cell in lines[3].strip("|").split("|")] == ["32", "5.25, 0.20 s", "5.25, 0.20 s"]
