"""The commands of the applications: a few steps on a small text."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import RunCli, in_terminal, read_terminal, read_until

pytest.importorskip("tokenizers")

from tests._helpers.small_apps import shrink_apps

SMALL = ("language", "--version", "v3", "--text", "notes.txt", "--device", "cpu")
TRAIN = ("train", *SMALL, "--batch-size", "4")
GENERATE = ("generate", "language", "The c", "--version", "v3", "--max-new-tokens", "12")


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_apps(monkeypatch)
    (tmp_path / "notes.txt").write_text("The cat sat on the mat. The dog ran after it.\n" * 60)


def test_apps_are_listed_with_their_versions(cli: RunCli) -> None:
    listed = cli("apps").out
    assert "masked-lm" in listed
    assert "(gpt, v4, v3)" in " ".join(listed.split())
    data = json.loads(cli("apps", "--format", "json").out)
    assert [one["name"] for one in data][:2] == ["language", "translation"]


def test_train_reports_and_generate_uses_the_checkpoint(cli: RunCli, tmp_path: Path) -> None:
    ran = cli(*TRAIN, "--steps", "2", "--audit")
    assert ran.code == 0, ran.err
    first, *_, saved = ran.out.splitlines()
    assert first.startswith("language v3: ")
    assert first.endswith("mask causal()")
    assert "step 2: loss" in ran.out
    assert "BabyGPT respects causal()" in ran.out
    assert "mask check: no output depends on a masked input" in ran.out
    assert saved == "saved in runs/language-v3"
    said = cli(*GENERATE, "--seed", "1").out
    assert said.startswith("The c")
    assert len(said.rstrip("\n")) <= len("The c") + 12
    assert cli(*GENERATE, "--seed", "1").out == said
    for name in ("out.txt", "out.json"):
        assert cli(*GENERATE, "--seed", "1", "-o", name).out == ""
    assert (tmp_path / "out.txt").read_text() == said
    assert json.loads((tmp_path / "out.json").read_text())["output"] == [said.rstrip("\n")]
    refused = cli(*GENERATE, "-o", "out.svg")
    assert refused.code == 2
    assert ".txt or .json" in refused.err
    assert cli(*GENERATE, "-o", "nowhere/out.txt").code == 2


def test_a_run_is_resumed_or_overwritten_only_when_told(cli: RunCli, tmp_path: Path) -> None:
    cli(*TRAIN, "--max-steps", "2", "--output-dir", "parts")
    refused = cli(*TRAIN, "--max-steps", "4", "--output-dir", "parts")
    assert refused.code == 2
    assert all(x in refused.err for x in ("parts", "--resume", "--overwrite"))
    assert "step 4" in cli(*TRAIN, "--max-steps", "4", "--output-dir", "parts", "--resume").out
    state = json.loads((tmp_path / "parts" / "last" / "state.json").read_text())
    assert len(state["losses"]) == 4
    assert cli(*TRAIN, "--max-steps", "1", "--output-dir", "parts", "--overwrite").code == 0


def test_resuming_with_other_options_names_them(cli: RunCli) -> None:
    cli(*TRAIN, "--max-steps", "1", "--output-dir", "parts")
    train = ("train", *SMALL, "--max-steps", "2", "--output-dir", "parts", "--resume")
    refused = cli(*train, "--batch-size", "8", "--mask", "window(back=3)", "--seed", "5")
    assert refused.code == 2
    for difference in (
        "--batch-size was 4, is 8",
        "--mask was causal(), is window(back=3)",
        "--seed was 0, is 5",
    ):
        assert difference in refused.err
    assert "differs" not in refused.err
    Path("other.txt").write_text("Zebras quickly jump over lazy dogs! 0123456789\n" * 60)
    refused = cli(*train, "--batch-size", "4", "--text", "other.txt")
    assert "--text was notes.txt, is other.txt" in refused.err
    assert len(refused.err.splitlines()) == 1


def test_generate_uses_the_last_checkpoint_before_the_first_evaluation(
    cli: RunCli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from maskwright.apps import trainer

    step = trainer._Run.step

    def interrupted(run: trainer._Run) -> tuple[float, int]:
        signal.raise_signal(signal.SIGINT)
        return step(run)

    with monkeypatch.context() as patch:
        patch.setattr(trainer._Run, "step", interrupted)
        ran = cli(*TRAIN, "--max-steps", "4")
    assert ran.code == 130
    assert "interrupted at step 1" in ran.out
    said = cli(*GENERATE)
    assert said.code == 0, said.err
    assert said.out.startswith("The c")
    assert said.err == "runs/language-v3 has no evaluation yet: the weights are those of step 1.\n"
    assert cli(*TRAIN, "--max-steps", "4", "--resume").code == 0
    assert cli(*GENERATE).err == ""


def test_another_mask_is_trained(cli: RunCli) -> None:
    ran = cli(*TRAIN, "--max-steps", "1", "--mask", "everything", "--trace")
    assert "mask everything()" in ran.out
    assert "(4, 128, 128) → (4, 1, 128, 128)" in ran.out


def test_masks_are_compared_as_text_json_and_curves(cli: RunCli, tmp_path: Path) -> None:
    words = ("compare-masks", *SMALL, "--max-steps", "2")
    told = cli(*words, "-o", "curves.svg").out
    assert told.index("causal()") < told.index("everything()")
    assert "steps are too few" in told
    ran = cli(*words, "--format", "json")
    assert "steps are too few" in ran.err
    data = json.loads(ran.out)
    assert [len(data[name]["losses"]) for name in ("causal()", "everything()")] == [2, 2]
    assert "training loss" in (tmp_path / "curves.svg").read_text()


def test_dialogue_without_a_prompt_is_a_chat(cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = cli("train", "dialogue", "--version", "french", "--max-steps", "1", "--batch-size", "2")
    assert "mask the mask of each batch" in ran.out
    monkeypatch.setattr(sys, "stdin", io.StringIO("Bonjour\n\nSalut\n"))
    chat = cli("generate", "dialogue", "--version", "french")
    assert chat.code == 0
    assert chat.out.count("you> ") == 4  # the last one reads the end of the input


def test_images_are_written_only_with_output(cli: RunCli, tmp_path: Path) -> None:
    assert cli("train", "image", "--max-steps", "1", "--batch-size", "2").code == 0
    before = set(tmp_path.iterdir())
    drawn = cli("generate", "image", "3", "--num-samples", "1", "--seed", "0")
    assert len(drawn.out.splitlines()) == 8
    assert set(tmp_path.iterdir()) == before
    assert cli("generate", "image", "3", "--num-samples", "1", "-o", "digits.png").code == 0
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", "langage"), "'language'"),
        (("train", "language", "--version", "v5"), "gpt, v4, v3"),
        ((*TRAIN, "--learning-rate", "-1"), "--learning-rate -1.0"),
        ((*TRAIN, "--dp", "2"), "torchrun --nproc-per-node 2 -m maskwright train"),
        ((*TRAIN, "--fsdp"), "--fsdp"),
        ((*TRAIN, "--cp", "2", "--compile"), "--compile"),
        ((*TRAIN, "--mask", "causl"), "causl"),
        ((*TRAIN, "--resume"), "no checkpoint"),
        (("train", "language", "--text", "nowhere.txt"), "nowhere.txt"),
        (("train", "image", "--device", "abacus"), "--device abacus"),
        (("generate", "language", "--version", "v3"), "maskwright train language --version v3"),
        (("compare-masks", *SMALL, "-o", "curves.html"), ".svg"),
    ],
)
def test_errors_are_one_sentence(cli: RunCli, words: tuple[str, ...], says: str) -> None:
    ran = cli(*words)
    assert ran.code == 2
    assert says in ran.err
    assert len(ran.err.strip().splitlines()) == 1


@pytest.mark.parametrize("flag", ["--max-steps", "--gradient-accumulation-steps", "--cp"])
def test_counts_are_positive(cli: RunCli, flag: str) -> None:
    assert cli(*TRAIN, flag, "0").code == 2


def test_help_groups_the_options(cli: RunCli) -> None:
    shown = cli("train", "--help").out
    groups = ("Data", "Model", "Optimisation", "Distributed", "Output")
    assert all(re.search(rf"─ {group} ─", shown) for group in groups)


def test_lines_and_progress_bar_do_not_collide_in_a_terminal(tmp_path: Path) -> None:
    process, terminal = in_terminal(tmp_path, *TRAIN, "--max-steps", "12", "--eval-interval", "4")
    shown = read_terminal(terminal)
    assert process.wait() == 0, shown
    assert "tokens/s" in shown
    assert "━" in shown  # there was a bar
    lines = []
    for raw in shown.replace("\r\n", "\n").split("\n"):
        visible = re.split(r"\r|\x1b\[2K", raw)[-1]  # what is left after the line was erased
        lines.append(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", visible))
    logged = [line for line in lines if "step" in line]
    assert len(logged) == 3
    for line in logged:
        assert re.fullmatch(r"step \d+: loss [\d.]+, held-out loss [\d.]+", line), line


def test_ctrl_c_saves_and_exits_with_130(tmp_path: Path) -> None:
    options = ("--max-steps", "100000", "--eval-interval", "1")
    process, terminal = in_terminal(tmp_path, *TRAIN, *options)
    shown = read_until(terminal, "step 1: loss")
    process.send_signal(signal.SIGINT)
    shown += read_terminal(terminal)
    assert process.wait() == 130, shown
    step = json.loads((tmp_path / "runs/language-v3/last/state.json").read_text())["step"]
    assert step > 0
    assert f"interrupted at step {step}" in shown
