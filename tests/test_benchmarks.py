"""The benchmarks compare equal computations and write their results."""

from __future__ import annotations

import json
import os
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import maskwright as mw  # noqa: E402
from benchmarks import (  # noqa: E402
    attention,
    audit,
    bias,
    bias_models,
    compare,
    extrapolation,
    figures,
    language,
    losses,
    measure,
    paths,
    paths_kernel,
    paths_models,
    peak,
    peers,
    prefill,
    ranks,
    report,
    training,
    variants,
)
from benchmarks.__main__ import main  # noqa: E402
from benchmarks.figures import BOTH, FORWARD, OURS  # noqa: E402
from benchmarks.patterns import DECODE, PATTERNS, SMALL, make, patterns_of  # noqa: E402
from benchmarks.peers.flex import flex  # noqa: E402
from maskwright.engine.native.kernel import loaded, use_isa  # noqa: E402
from tests._helpers.native_kernel import needs_kernel  # noqa: E402
from tests._helpers.sampling import subset_of_cases  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

TINY = "64"
ONCE = attention.Pace(least=1, most=1, seconds=0.0, call=0.0)
NO_FLEX = ("sdpa", "textbook")


def short_peak() -> peak.Peak:
    return peak.Peak(peak.Yardstick("nothing", 1e9, lambda: None))


KERNEL = {"paths_kernel"}  # is compared with the peak, not with a baseline


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("group", "pattern"), [(g, p) for g in (TINY, SMALL, DECODE) for p in patterns_of(g)]
)
def test_mask_equals_mask_mod(group: str, pattern: str) -> None:
    case = make(pattern, group)
    shape = (case.batch, case.heads, case.q_len, case.kv_len)
    dense = np.broadcast_to(case.bound().dense(), shape)
    assert dense.any(-1).all(), "backends differ in fully masked rows"
    if case.mod is None:
        assert dense.all()
        return
    axes = (
        torch.arange(n).view([-1 if a == i else 1 for i in range(4)]) for a, n in enumerate(shape)
    )
    assert np.array_equal(np.broadcast_to(case.mod(*axes).numpy(), shape), dense)


@pytest.mark.parametrize("dtype", attention.DTYPES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_peers_agree(pattern: str, dtype: str) -> None:
    result = attention.suite(
        [TINY], [pattern], [dtype], names=NO_FLEX, pace=ONCE, peak=short_peak()
    )
    assert [cell["mode"] for cell in result["cells"]] == [FORWARD, BOTH]
    for cell in result["cells"]:
        assert not cell["failed"]
        assert not cell["differs"], cell["differs"]
        assert OURS in cell["seconds"]
        assert ("textbook" in cell["seconds"]) == (dtype == "float32")
        exact = {"none": {"sdpa"}, "causal": {"sdpa is_causal", "sdpa float mask"}}
        assert exact.get(pattern, {"sdpa float mask", "sdpa bool mask"}) <= set(cell["seconds"])
        assert figures.ratio(cell) > 0
        assert figures.share(cell, result["peak"]) > 0


DECODED = patterns_of(DECODE)
ALSO_DECODED = [(pattern, group) for group in (TINY, DECODE) for pattern in DECODED]
ONLY_TINY = [(pattern, TINY) for pattern in PATTERNS if pattern not in DECODED]
FLEXED = [*subset_of_cases(ALSO_DECODED, 2), *ONLY_TINY]


def test_flex_cases_cover_all_patterns() -> None:
    assert {pattern for pattern, _ in FLEXED} == set(PATTERNS)
    assert {group for _, group in FLEXED} == {TINY, DECODE}


@pytest.mark.parametrize(("pattern", "group"), FLEXED)
def test_flex_agrees(pattern: str, group: str) -> None:
    case = make(pattern, group)
    q, k, v, _ = attention.tensors(case, torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled
        theirs = flex(case, compiled=False)(q, k, v)
    ours = mw.attention(q, k, v, case.mask)
    assert attention.difference((ours,), (theirs,)) < attention.TOLERANCE["float32"]


def test_differing_and_failing_peers_are_reported() -> None:
    case = make("causal", TINY)
    found = attention.ways(case, "float32", NO_FLEX)
    found["wrong"] = attention.ways(make("window", TINY), "float32", NO_FLEX)["textbook"]
    found["broken"] = peers.Way(lambda q, k, v: q @ v[..., :3, :])
    for mode in (FORWARD, BOTH):
        cell = attention.measure(case, found, "float32", mode, ONCE)
        assert list(cell["differs"]) == ["wrong"]
        assert list(cell["failed"]) == ["broken"]
        assert "broken" not in cell["seconds"]
        assert figures.wrong({"cells": [cell]}) == [cell]


def test_nan_is_infinite_difference() -> None:
    good, bad = torch.ones(2), torch.tensor([1.0, float("nan")])
    assert attention.difference((good,), (bad,)) == float("inf")
    assert attention.difference((bad,), (good,)) == float("inf")


@pytest.mark.parametrize(
    ("pace", "rounds"),
    [
        ({"least": 4, "most": 4, "more": 0}, [4, 4, 1]),
        ({"once": 0.0}, [1, 1, 1]),
        ({"least": 2, "most": 2, "close": 1e9, "more": 5}, [7, 7, 1]),
        ({"least": 4, "most": 4, "more": 0, "long": 0.0, "seconds": 0.0}, [2, 2, 1]),
    ],
)
def test_slow_peers_run_once_and_close_results_are_repeated(
    pace: dict[str, float], rounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(perf_counter=lambda: now, sleep=sleep)
    monkeypatch.setattr(attention, "time", clock)

    def runner(name: str, pause: float) -> attention.Runner:
        return attention.Runner(name, lambda: (attention.time.sleep(pause),))

    runners = [runner(OURS, 0.001), runner("fast", 0.001), runner("slow", 0.05)]
    attention.race(runners, attention.Pace(call=0.0, **pace))
    assert [r.rounds for r in runners] == rounds


def test_command_writes_tables_and_json(results: Path, capsys: Any) -> None:
    options = ["--lengths", TINY, "--patterns", "causal,window", "--dtypes", "float32"]
    options += ["--peers", "sdpa,textbook"]
    assert main(["attention", *options]) == 0
    printed = capsys.readouterr().out
    assert "| window " in printed
    assert "| measurement" in printed
    found = json.loads((results / "attention-part.json").read_text())
    assert len(found["cells"]) == 4
    assert found["peak"] > 0
    assert {"torch", "numpy", "maskwright", "cpu", "kernel", "isas"} <= found["machine"].keys()
    assert found["measured"].keys() == {"date", "commit", "clean", "seconds", "load_average"}
    assert found["measured"]["seconds"] > 0
    assert [path.name for path in results.iterdir()] == ["attention-part.json"]


def test_options() -> None:
    assert attention.read_options([]).name == "attention"
    assert attention.read_options(["--quick"]).name == "attention-part"
    for wrong in (["--patterns", "stripes"], ["--lengths", "1000"], ["--peers", "no"]):
        with pytest.raises(SystemExit):
            attention.read_options(wrong)
    assert main(["core", "--quick"]) == 2


def test_memory_multiple() -> None:
    used = attention.memory(tokens=1_024, window=32, heads=2)
    assert used["tensor_bytes"] == 4 * 1_024 * 2 * 64 * 4
    assert used["multiple"] == used["peak_bytes"] / used["tensor_bytes"] >= 0


def cell(**changes: Any) -> dict[str, Any]:
    usual = {
        "pattern": "window",
        "group": "4096",
        "dtype": "float32",
        "mode": FORWARD,
        "shape": {"batch": 1, "heads": 8, "q_len": 4_096, "kv_len": 4_096, "head_dim": 64},
        "density": 0.06,
        "flops": 4e9,
        "seconds": {OURS: 0.1, "sdpa float mask": 0.4, "flex": 0.2},
        "rounds": {},
        "first": {OURS: 0.15},
        "differs": {},
        "failed": {},
    }
    return {**usual, **changes}


def a_result(*cells: dict[str, Any]) -> dict[str, Any]:
    machine = {"cpu": "2 × Abacus", "python": "3", "torch": "2", "numpy": "2", "maskwright": "1"}
    memory = {"tokens": 65_536, "window": 256, "heads": 8, "head_dim": 64}
    return {
        "machine": machine,
        "command": "python -m benchmarks attention",
        "threads": 2,
        "yardstick": peak.FMA,
        "peak": 1e11,
        "seconds": 60.0,
        "memory": {**memory, "peak_bytes": 3e8, "tensor_bytes": 2e8, "multiple": 1.5},
        "flex_compile": 7.0,
        "cells": list(cells),
    }


def test_derived_figures() -> None:
    one = cell()
    assert (figures.peer(one), figures.ratio(one)) == ("flex", 2.0)
    assert figures.share(one, 1e11) == pytest.approx(0.4)
    assert figures.geomean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert figures.geomean([]) is None
    slow = cell(mode=BOTH, seconds={OURS: 0.4, "sdpa float mask": 0.1})
    goals = dict(figures.goals(a_result(one, slow)))
    assert goals["cells below 0.95 of the fastest baseline"] == "1 of 2"
    assert goals["forward, relative to the fastest baseline"].startswith(
        "2.00 × (geometric mean of 1"
    )
    sparse = "forward + backward, 4,096 tokens and more, density at most 15 %"
    assert goals[sparse].startswith("0.25 ×")
    assert figures.ratio(cell(seconds={"flex": 0.2})) is None


def test_page_lists_slower_and_failed_cells() -> None:
    lost = cell(pattern="causal", seconds={OURS: 0.4, "sdpa is_causal": 0.1})
    failed = cell(pattern="tree", seconds={"flex": 0.1}, failed={OURS: "no"}, first={})
    small = cell(group="small", seconds={OURS: 0.1, "textbook": 0.05})
    text = report.page(a_result(cell(), lost, failed, small))
    for part in (
        "*0.25 ×, 10 %, sdpa is_causal*",
        "| failed ",
        "2 × Abacus",
        "1.50 times",
        "2 of the 3",
    ):
        assert part in text


def test_peers_compute_bfloat16_in_float32_too(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = "sdpa float mask in float32"
    for limit, narrow in ((None, True), (0, False)):
        monkeypatch.setattr(attention, "MAX_BFLOAT16_CELLS", (None, limit))
        found = attention.ways(make("window", TINY), "bfloat16", NO_FLEX)
        given = attention.tensors(make("window", TINY), torch.bfloat16)
        names = {runner.name for runner in attention.runners_of(found, given, BOTH)}
        assert wide in names
        assert ("sdpa float mask" in names) == narrow


def test_file_in_the_folder_of_peers_is_a_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mean.py").write_text(
        "from benchmarks.peers import Way\n"
        "def ways(case, dtype):\n"
        "    return {'mean of all': Way(lambda q, k, v: v.mean(2, True).expand_as(q))}\n"
    )
    monkeypatch.setattr(peers, "__path__", [*peers.__path__, str(tmp_path)])
    assert peers.names() == ["flex", "mean", "sdpa", "textbook"]
    found = attention.ways(make("none", TINY), "float32", ["mean"])
    cell = attention.measure(make("none", TINY), found, "float32", FORWARD, ONCE)
    assert set(cell["seconds"]) == {OURS, "mean of all"}
    assert set(cell["differs"]) == {"mean of all"}


@needs_kernel
def test_peak_does_not_depend_on_the_selected_kernel() -> None:
    used, flops = loaded().isa, peak.yardstick().flops
    try:
        for isa in loaded().isas:
            use_isa(isa)
            assert peak.yardstick().flops == flops
    finally:
        use_isa(str(used))


@pytest.mark.parametrize("compiler", ["cc", "no-such-compiler"])
def test_peak_without_compiler_is_that_of_matmul(
    compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(peak, "ROUNDS", 10)
    monkeypatch.setattr(peak, "MATRIX", 8)
    peak._compiled.cache_clear()
    try:
        yardstick = peak.yardstick()
        assert peak.Peak(yardstick).ask() > 0
    finally:
        peak._compiled.cache_clear()
    if compiler != "cc":
        assert yardstick.name == peak.MATMUL
        text = report.page({**a_result(cell()), "yardstick": yardstick.name})
        assert "shares above 100 % are possible" in text


@pytest.mark.parametrize("mask", ["causal()", "window(back=7)"])
def test_training_agrees(mask: str) -> None:
    found = training.measure(2, 24, mask, pace=ONCE, width=16)
    assert found["ratio"] == found["seconds"]["sdpa"] / found["seconds"]["maskwright"]
    assert min(found["tokens_per_second"].values()) > 0


def test_prefill_agrees(results: Path) -> None:
    pytest.importorskip("transformers")
    tiny = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 32, "sliding_window": 8}
    found = prefill.measure(tokens=24, pace=ONCE, num_attention_heads=4, **tiny)
    assert set(found["seconds"]) == {OURS, "sdpa", "eager"}
    assert "relative to sdpa" in report.page(a_result(cell()), prefill=found)


@pytest.mark.parametrize("name", audit.CONFIGS)
def test_cost_of_audit_is_measured(name: str) -> None:
    pytest.importorskip("transformers")
    tiny = {"vocab_size": 100, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    of = {"GPT-2": ("n_embd", "n_layer", "n_head")}
    names = of.get(name, ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    tiny |= dict(zip(names, (32, 1, 4), strict=True))
    found = audit.measure_audit(name, 24, rounds=1, **tiny)
    assert {found["status"][probe] for probe in ("leak", "padding")} == {"passed"}
    assert found["forwards"] == found["seconds"] / found["forward"]
    assert audit.measure_step(name, 24, **tiny)["bytes"] >= 0
    assert name in figures.audit_table({name: {**found, "memory": 1.0}})


def test_recorded_audits_are_cheap() -> None:
    result = figures.load("audit")
    for found in result["models"].values():
        assert found["weights"] > 100e6
        assert "failed" not in found["status"].values()
        assert found["passes"] <= 40
        assert found["forwards"] <= 40
        assert found["memory"] <= 2.5


def test_sections_measured_elsewhere_say_so() -> None:
    main, other = a_result(cell()), {"size": {"layers": 1, "width": 8, "heads": 2}, "cells": []}
    measured = {"commit": "a" * 40, "clean": True, "date": "2026-01-02T03:04:05+00:00"}
    main["measured"] = measured
    same = {**other, "machine": main["machine"], "measured": measured}
    assert "Measured on" not in report.page(main, training=same).partition("Training step")[2]
    for changed in (
        {"machine": {**main["machine"], "kernel": "avx2"}},
        {"measured": {**measured, "commit": "b" * 40}},
        {"measured": {**measured, "clean": False}},
    ):
        text = report.page(main, training={**same, **changed}).partition("Training step")[2]
        assert "Measured on 2 × Abacus" in text


def test_both_languages_say_what_is_not_known_of_a_measurement() -> None:
    measured = {"commit": "a" * 40, "clean": True, "date": "2026-01-02T03:04:05+00:00"}
    for when in (report.when, report.when_zh):
        texts = {when({}), when(measured), when({**measured, "clean": False})}
        assert len(texts) == 3
        assert all(texts)


def test_all_measurements_are_searched_for_faster_baselines() -> None:
    results = {name: figures.load(name) for name in report.RESULTS}
    compared = {name: len(list(losses.compared(name, results[name]))) for name in results}
    assert all(compared[name] for name in set(results) - {"explore"} - KERNEL)
    slow = {OURS: 2.0, "sdpa": 1.0}
    made = {
        "attention": {"cells": [cell(seconds=slow)]},
        "prefill": {"tokens": 8, "seconds": slow},
        "training": {"cells": [{"batch": 1, "tokens": 8, "mask": "causal()", "seconds": slow}]},
        "bias": {"cells": [{"case": "ALiBi", "seconds": {**slow, "plain": 0.5}}]},
        "core": {name: {"ours": 2.0, "theirs": 1.0} for name in ("blocks", "dense")},
        "targets": {"short": {"ours": 2.0, "theirs": 1.0}},
        "bias_models": {"models": {"T5": {"seconds": slow}}},
        "paths_models": {"paths": {"generate": {"seconds": slow, "step": {"seconds": slow}}}},
        "paths": {"cells": [{"group": "g", "case": "c", "mode": FORWARD, "seconds": slow}]},
        "variants": {
            "cells": [
                {
                    "mask": "causal",
                    "mode": FORWARD,
                    "threads": 1,
                    "shares": {"avx2": 0.5},
                    "seconds": {"avx2": 2.0, "sdpa": 1.0},
                }
            ]
        },
    }
    lost, count = losses.losses(made)
    assert count == len(lost) == len(made) + 2  # two each of `paths_models` and `core`
    assert {loss.measurement for loss in lost} == set(made)
    assert all(loss.ratio == 0.5 for loss in lost)
    text = losses.losses_table(made)
    assert "plain" not in text
    fast = {
        "paths": {"cells": [{**made["paths"]["cells"][0], "seconds": {OURS: 1.0, "sdpa": 2.0}}]},
        "bias": {"cells": [{"case": "ALiBi", "seconds": {OURS: 2.0, "plain": 1.0}}]},
    }
    assert losses.losses_table(fast) == "None of 1 configurations."


def test_instruction_sets_agree(results: Path) -> None:
    if not loaded().isas:
        pytest.skip("there is no C kernel")
    used = loaded().isa
    try:
        found = [variants.measure("causal window of 64", BOTH, tokens=96, pace=ONCE)]
    finally:
        use_isa(str(used))
    assert set(found[0]["seconds"]) == {*loaded().isas, "blocks", "sdpa"}
    text = report.page(a_result(cell()), variants={"cells": found})
    assert "| causal window of 64" in text
    assert "baseline" in text


COMPARED = ["--quick", "--lengths", "64", "--threads", "1", "--minimum-runs", "2"]


def test_compare_writes_table_and_json(
    results: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_tree = ["--base-tree", str(compare.ROOT), "--minimum-seconds", "0", "--repeats", "0"]
    monkeypatch.setattr(compare, "build_kernel", lambda tree: None)  # tests compile nothing
    assert main(["compare", *COMPARED, *base_tree]) == 0
    assert "geometric mean" in capsys.readouterr().out
    found = json.loads((results / "compare.json").read_text())
    assert "torch" in found["machine"]
    assert found["base"] == found["new"]
    assert set(found["base"]) == {"commit", "dirty"}
    for version in ("base", "new"):
        assert found["workers"][version]["package"].startswith(str(compare.ROOT / "src"))
    assert [cell["direction"] for cell in found["cells"]] == ["forward", "forward + backward"]
    for cell in found["cells"]:
        assert (cell["pattern"], cell["q_len"], cell["dtype"]) == ("tiny", 64, "float32")
        assert cell["ratio"] == cell["seconds"]["base"] / cell["seconds"]["new"] > 0
        assert cell["rounds"] >= 2
        assert cell["difference"] == 0
        assert cell["agrees"]
    assert found["summary"]["cells"] == 2
    assert found["summary"]["minimum"] == min(cell["ratio"] for cell in found["cells"])


def test_compare_core_measures_both_trees(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["compare_core", "--base-tree", str(compare.ROOT), "--rounds", "1", "--tokens", "512"])
        == 0
    )
    found = json.loads((results / "compare_core.json").read_text())
    assert found["ratios"].keys() == found["seconds"].keys()
    assert all(seconds > 0 for times in found["seconds"].values() for seconds in times.values())
    assert f"{len(found['ratios'])} cells" in capsys.readouterr().out


@pytest.mark.parametrize("cell", compare.shapes(), ids=lambda cell: f"{cell.pattern} {cell.length}")
def test_every_compared_mask_has_visible_keys(cell: compare.Cell) -> None:
    mask = eval(cell.mask, dict(vars(mw)))
    bound = mask.on(cell.q_len, cell.kv_len, cell.batch, cell.heads)
    assert bound.count() >= cell.batch * cell.heads * cell.q_len


def test_compared_cells_are_selected_by_options() -> None:
    whole = compare.parse_options(["--base", "HEAD", "--threads", "1", "2"]).cells
    assert len(set(whole)) == len(whole)
    assert {cell.threads for cell in whole} == {1, 2}
    assert {cell.dtype for cell in whole} == set(compare.DTYPES)
    assert not any(cell.backward for cell in whole if cell.kv_len == 8_192 or cell.q_len == 1)
    quick = compare.parse_options(["--base", "HEAD", "--quick"]).cells
    assert 0 < len(quick) < len(whole) / 10
    for wrong in ([], ["--base", "HEAD", "--dtypes", "int8"], ["--base", "HEAD", "--threads", "0"]):
        with pytest.raises(SystemExit):
            compare.parse_options(wrong)


def measured(base: float, new: float, **changes: Any) -> compare.Measured:
    seconds = {"base": base, "new": new}
    return compare.Measured(
        compare.shapes()[0], seconds, round_ratios=[base / new], first_ratio=base / new, **changes
    )


def test_slow_and_differing_cells_are_listed() -> None:
    found = [measured(2.0, 1.0), measured(1.0, 2.0), measured(1.0, 1.0, difference=0.5)]
    text = compare.report(found)
    assert "geometric mean 1.000, minimum 0.500" in text
    assert "cells below 0.93: 1" in text
    assert "outputs differ by 5.0e-01" in text
    failed = compare.Measured(compare.shapes()[0], failed={"new": "ValueError: no"})
    assert "ValueError: no" in compare.report([failed])
    assert failed.to_json()["failed"] == {"new": "ValueError: no"}


def test_kernel_is_built_only_when_older_than_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = tmp_path / compare.NATIVE
    (native / "src").mkdir(parents=True)
    for path in (tmp_path / "setup.py", native / "src" / "module.c", native / "_kernel.abi3.so"):
        path.write_text("")
    built: list[Any] = []

    def build(command: list[str], **_: Any) -> Any:
        built.append(command)
        return compare.subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(compare.subprocess, "run", build)
    os.utime(native / "_kernel.abi3.so", (2e9, 2e9))
    compare.build_kernel(tmp_path)
    assert not built
    os.utime(native / "src" / "module.c", (2.1e9, 2.1e9))
    compare.build_kernel(tmp_path)
    assert len(built) == 1


@pytest.mark.slow  # compiles FlexAttention
@pytest.mark.parametrize("name", bias.CASES)
def test_bias(name: str) -> None:
    found = bias.measure(name, tokens=96, pace=ONCE)
    assert found["ratio"] > 0
    assert OURS in found["seconds"]


def test_memory_of_bias_grows_with_the_tokens() -> None:
    found = bias.measure_memory(tokens=2_048)
    assert 0 < found["bytes"] < 2_048 * 2_048 * 4 * bias.HEADS


def test_models_with_bias_agree() -> None:
    found = bias_models.measure(tokens=80, pace=ONCE)
    assert found["models"].keys() == bias_models.MODELS.keys()
    assert len(bias_models.rows(found)) == 5
    for model in found["models"].values():
        assert max(model["gaps"].values()) < 1e-4


def test_extrapolation_trains_and_evaluates_all_positions() -> None:
    found = extrapolation.measure(steps=2)
    assert found["nats"].keys() == set(extrapolation.POSITIONS)
    for nats in found["nats"].values():
        assert all(0 < loss < 10 for loss in nats.values())


def test_language_is_trained_and_tabulated() -> None:
    found = {"versions": {version: language.measure(version, 2) for version in language.VERSIONS}}
    for version in found["versions"].values():
        ((step, loss),) = version["evaluations"]
        assert step == 2
        assert 0 < version["bigram"] < loss == version["best"]
        version["evaluations"] = [(100, loss)]
    text = language.losses(found, language.VERSIONS, "step")
    assert [line[:4] for line in text.splitlines()] == ["| st", "| --", "| v3", "| v4"]
    assert "v4: " in language.samples(found["versions"])


def test_paths_measure_every_group_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One case of each group, with the peers that can run."""
    monkeypatch.setattr(paths, "STEPS", 2)
    found = [
        paths.measure(next(iter(paths.CASES[group]())), seconds=0.0)
        for group in paths.GROUPS
        if group != paths.NEW_MASK  # compiles FlexAttention
    ]
    assert [cell["group"] for cell in found] == [g for g in paths.GROUPS if g != paths.NEW_MASK]
    assert all(took > 0 for cell in found for took in cell["seconds"].values())
    assert not any(cell["failed"] for cell in found)
    text = report.page(a_result(cell()), paths={"cells": found})
    assert all(group.capitalize() in text for group in (c["group"] for c in found))


def test_paths_report_failing_peers_and_refuse_failing_attention() -> None:
    def broken() -> None:
        raise ValueError("no")

    runners = {OURS: lambda: None, "sdpa": broken}
    found = paths.measure(paths.Case(paths.SMALL, "one", FORWARD, runners), 0.0)
    assert found["failed"] == {"sdpa": "ValueError: no"}
    assert set(found["seconds"]) == {OURS}
    with pytest.raises(ValueError, match="no"):
        paths.measure(paths.Case(paths.SMALL, "one", FORWARD, {OURS: broken}), 0.0)


@needs_kernel
@pytest.mark.parametrize("mode", [FORWARD, BOTH])
@pytest.mark.parametrize("dtype", paths_kernel.TOLERANCES)
def test_kernel_shares_of_both_dtypes(
    dtype: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths_kernel, "TOKENS", 128)
    monkeypatch.setitem(paths_kernel.MASKS, "narrow", (mw.window(back=9), 0.5))
    found = paths_kernel.measure("narrow", mode, dtype, ONCE)
    assert (found["dtype"], found["mode"]) == (dtype, mode)
    assert 0 < found["share"] < 10
    assert found["goal"] == ((0.5 if mode == FORWARD else 0.4) if dtype == "float32" else None)
    text = report.page(a_result(cell()), paths_kernel={"cells": [found]})
    assert f"{mode}, {dtype}" in text


def test_decode_steps_of_generate_are_measured() -> None:
    found = paths_models.measure(tokens=48, pace=ONCE, paths=["generate"])
    for row in found["paths"].values():
        steps = row["step"]["seconds"]
        assert row["step"]["ratio"] == steps["sdpa"] / steps[OURS]
        assert all(0 < steps[name] < row["seconds"][name] for name in steps)
    assert sum("decode step" in row[0] for row in figures.models_rows(found)) == 2
    text = report.page(a_result(cell()), paths_models=found)
    assert "generate, Llama: one decode step" in text


def test_layouts_of_ranks_are_tabulated(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ranks, "TOKENS", (4_096,))
    monkeypatch.setattr(ranks, "FEW_TOKENS", (4_096,))
    monkeypatch.setattr(ranks, "LARGE", (8_192, 4))
    monkeypatch.setattr(ranks, "RANKS", (4,))
    ranks.run()
    printed = capsys.readouterr().out
    found = json.loads((results / "ranks.json").read_text())
    assert len(found["cells"]) == len(ranks.SHOWN)
    for text in ranks.tables(found).values():
        assert text in printed
