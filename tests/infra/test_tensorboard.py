"""TensorBoard's own files, read again."""

from pathlib import Path

from nbrl.infra.tensorboard import EventFiles, log_missing


def test_metrics_are_there_once_over_several_processes(tmp_path: Path) -> None:
    for step in range(1, 4):
        files = EventFiles(tmp_path / "run")
        for earlier in range(1, step + 1):
            log_missing(files, {"reward/em": earlier / 8, "loss": 1.0}, earlier, 1000.0)
        assert files.history("loss") == [(at, 1.0) for at in range(1, step + 1)]
        files.close()
    again = EventFiles(tmp_path / "run")
    assert again.history("reward/em") == [(1, 0.125), (2, 0.25), (3, 0.375)]
    assert again.names() == {"reward/em", "loss"}


def test_an_event_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    files = EventFiles(tmp_path)
    for step in (1, 2):
        files.log_metrics({"em": 0.5}, step)
    files.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    again = EventFiles(tmp_path)
    assert again.history("em") == [(1, 0.5)]
    log_missing(again, {"em": 0.5}, 2)
    again.close()
    assert EventFiles(tmp_path).history("em") == [(1, 0.5), (2, 0.5)]


def test_starting_over_leaves_nothing(tmp_path: Path) -> None:
    files = EventFiles(tmp_path / "run")
    files.log_metrics({"em": 0.5}, 1)
    files.start_over()
    assert files.history("em") == []
    assert not (tmp_path / "run").exists()
