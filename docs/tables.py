"""Tables of atoms, recipes, targets and functions, and the measured figures of the README."""

from __future__ import annotations

import inspect
import re

import maskwright as mw
from benchmarks import figures, language, ranks, report
from maskwright.core.atoms import ATOMS
from maskwright.recipes.registry import RECIPES

API = {
    "Compute": ("attention", "explain_backend", "top_blocks"),
    "Convert": ("lower", "explain_lowering", "capabilities", "recognize", "from_additive"),
    "Check": ("lint", "trace", "influence", "audit"),
    "Batches": ("pad", "pack"),
    "Show": ("picture", "walkthrough"),
    "Expressions": ("by_head", "by_batch", "simplify", "parse", "to_json", "from_json"),
}
TASKS_ZH = {
    "Compute": "计算",
    "Convert": "转换",
    "Check": "检查",
    "Batches": "批次",
    "Show": "展示",
    "Expressions": "表达式",
}
API_ZH = {
    "attention": "在掩码下精确计算 q 对 k 和 v 的注意力。",
    "explain_backend": "`attention` 对相同参数选择的后端及其原因。",
    "top_blocks": "块稀疏掩码：每个查询块保留分数最高的 `keep` 个键块。",
    "lower": "把掩码精确转换为框架的格式；无法表示时抛出 `Unsupported`。",
    "explain_lowering": "返回在框架中构造该掩码并调用注意力的代码。",
    "capabilities": "返回各目标格式的能力。",
    "recognize": "返回与数组等价的最短掩码表达式，支持任何框架和编码。",
    "from_additive": "把加到注意力分数上的张量读作掩码和偏置。",
    "lint": "检查掩码（表达式、绑定尺寸的掩码、任意框架的数组）或偏置。",
    "trace": "运行一次模型，记录每次注意力调用实际使用的掩码。",
    "influence": "测量模型的哪个输出依赖哪个输入位置。",
    "audit": "以黑盒方式检验模型是否遵守其注意力掩码。",
    "pad": "把长度不同的序列填充为一个数组，并返回其填充掩码。",
    "pack": "把多个序列打包到长度为 `length` 的行中，尽量减少填充。",
    "picture": "把掩码、差异、偏置、逐步计算或矩阵绘制为 SVG、PNG、HTML 或文本。",
    "walkthrough": "对少量词元逐步计算注意力。",
    "by_head": "每个头使用不同的掩码：头 h 使用 `masks[h]`。",
    "by_batch": "每个批次行使用不同的掩码：批次行 b 使用 `masks[b]`。",
    "simplify": "返回按集合与基本掩码的运算律化简后的等价掩码。",
    "parse": "解析掩码表达式的文本。",
    "to_json": "把掩码写为 JSON。",
    "from_json": "读取 `to_json` 写出的掩码。",
}
HEADLINE = """
- **On CPUs it is fast.** With sliding windows, packed documents and other sparse masks (at most {density}
  visible, {long} tokens or more), forward and backward are {sparse_times} times as fast as SDPA with a
  dense mask (geometric mean). The prefill of {tokens} tokens by a model with a window of {window} is
  {prefill_times} times as fast as with SDPA. [Measurements](docs/performance.md), and
  [every configuration in which a baseline is faster]({losses}).
"""
HEADLINE_ZH = """
- **在 CPU 上很快。** 在滑动窗口、打包文档等稀疏掩码下（可见比例不超过 {density}，
长度不小于 {long} 个词元），
前向加反向的速度是使用稠密掩码的 SDPA 的 {sparse_times} 倍（几何平均）；
窗口为 {window} 的模型预填充 {tokens} 个词元的速度是 SDPA 的 {prefill_times} 倍。
[测量结果](docs/performance.md)（英文），
包括[所有基线更快的配置]({losses})。
"""
PERFORMANCE = """
Relative to the fastest of SDPA, compiled FlexAttention and a textbook implementation in the same run
(geometric means):

- forward {forward} ({forward_count} configurations), forward + backward {both} ({both_count});
- sparse masks (at most {density} visible, {long} tokens or more), forward + backward: {sparse}, against
  SDPA with a dense mask, since FlexAttention has no backward pass on the CPU.

{where}
[docs/performance.md](docs/performance.md) lists all {total} configurations and further measurements, and
names those in which a baseline is faster.
"""
PERFORMANCE_ZH = """
与同一次运行中 SDPA、编译后的 FlexAttention、朴素实现中最快者相比（几何平均）：

- 前向 {forward}（{forward_count} 组配置），前向加反向 {both}（{both_count} 组）；
- 稀疏掩码（可见比例不超过 {density}，长度不小于 {long} 个词元）前向加反向 {sparse}，
对比使用稠密掩码的 SDPA：FlexAttention 在 CPU 上没有反向传播。

{where_zh}[docs/performance.md](docs/performance.md)（英文）列出全部 {total} 组配置和其他测量，
并标出基线更快的配置。
"""
TARGET_FIELDS = {
    "returns": "Returns",
    "polarity": "Polarity",
    "shape": "Shape",
    "alignment": "Alignment",
    "empty_rows": "Fully masked row",
    "tested": "Tested",
}


def atoms() -> str:
    """One row per atom."""
    names = [*ATOMS, "where", "by_head", "by_batch"]
    return _calls({name: getattr(mw, name) for name in names}, "atom")


def recipes() -> str:
    """One row per recipe."""
    return _calls({f"recipes.{name}": RECIPES[name] for name in sorted(RECIPES)}, "recipe")


def api() -> str:
    """One row per public function, grouped by task; atoms and recipes have their own page."""
    rows = ["| task | function | meaning | 含义 |", "|---|---|---|---|"]
    for task, names in API.items():
        label = f"{task} · {TASKS_ZH[task]}"
        for name in names:
            rows.append(f"| {label} | `{name}` | {_summary(getattr(mw, name))} | {API_ZH[name]} |")
            label = ""
    return "\n".join(rows)


def target_overview() -> str:
    """One row per target: what it supports, and the format."""
    rows = ["| target | supports | scores | returns |", "|---|---|---|---|"]
    for name, target in mw.capabilities().items():
        link = f"[`{name}`](#target-{name.replace('.', '')})"
        scores = ", ".join(f"`{score}`" for score in target.scores)
        rows.append(f"| {link} | {target.supports} | {scores} | {target.returns} |")
    return "\n".join(rows)


def target_sections() -> str:
    """One section per target with its conventions."""
    parts = []
    for name, target in mw.capabilities().items():
        lines = [f"### Target `{name}`", "", f"Supports {target.supports}.", ""]
        lines += [f"- {title}: {getattr(target, field)}" for field, title in TARGET_FIELDS.items()]
        lines += [f"- `{name}`: {how}" for name, how in target.scores.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def headline() -> str:
    """The speed in one sentence, in English."""
    return HEADLINE.strip().format_map(_figures())


def headline_zh() -> str:
    """The speed in one sentence, in Chinese."""
    return _joined(HEADLINE_ZH).format_map(_figures())


def performance() -> str:
    """The measured figures of the README, in English."""
    return PERFORMANCE.strip().format_map(_figures())


def performance_zh() -> str:
    """The measured figures of the README, in Chinese."""
    return _joined(PERFORMANCE_ZH).format_map(_figures())


def _joined(text: str) -> str:
    """Chinese text without the line breaks within a paragraph, which would be shown as spaces."""
    return re.sub(r"(?<=[；，。])\n(?=[^\n-])", "", text.strip())


def training() -> str:
    """One row per measured training step of the GPT."""
    result = figures.load("training")
    rows = [
        "| batch × tokens | mask | tokens/s | tokens/s with SDPA | ratio |",
        "|---|---|---|---|---|",
    ]
    for cell in result["cells"]:
        ours, sdpa = (cell["tokens_per_second"][name] for name in (figures.OURS, "sdpa"))
        shape = f"{cell['batch']} × {cell['tokens']:,}"
        rows.append(
            f"| {shape} | `{cell['mask']}` | {ours:,.0f} | {sdpa:,.0f} | {cell['ratio']:.2f} |"
        )
    size = result["size"]
    note = (
        f"`n_embd={size['width']}`, {size['heads']} heads, {size['layers']} layers, float32; SDPA uses "
        f"`is_causal`, or a dense mask for the window. Measured on {report.where(result)}."
    )
    return "\n".join([*rows, "", note])


def without_kernel() -> str:
    """The time of the `blocks` backend relative to that of the C kernel, forward."""
    cells = figures.load("variants")["cells"]
    one = [cell for cell in cells if (cell["threads"], cell["mode"]) == (1, figures.FORWARD)]
    ratios = [
        f"{cell['seconds']['blocks'] / cell['seconds'][next(iter(cell['shares']))]:.1f} ({cell['mask']})"
        for cell in one
        if "blocks" in cell["seconds"]
    ]
    if not ratios:
        return "The slowdown was not measured."
    return (
        "With one thread, `blocks` takes the following multiples of the kernel's time (forward, "
        f"{one[0]['tokens']:,} tokens, 8 heads, head_dim 64, float32): {', '.join(ratios)} "
        "([instruction sets](performance.md#instruction-sets))."
    )


def layouts(part: str) -> str:
    """A part of the page on distributed attention; the measured time with its machine."""
    found = figures.load("ranks")
    text = ranks.tables(found)[part]
    return text if part != "large" else f"{text} Measured on {report.where(found)}."


def extrapolation(labels: dict[str, str], head: str) -> str:
    """The loss of each kind of position in contexts that are longer than in training."""
    nats = figures.load("extrapolation")["nats"]
    first, *longer = next(iter(nats.values()))
    rows = [f"| {' | '.join([head.format(first), *longer])} |", "|---" * (len(longer) + 2) + "|"]
    for position, losses in nats.items():
        cells = " | ".join(f"{loss:.3f}" for loss in losses.values())
        rows.append(f"| {labels.get(position, position)} | {cells} |")
    return "\n".join(rows)


def extrapolation_en() -> str:
    """The table in English."""
    labels = {"alibi": "ALiBi", "t5": "T5"}
    return extrapolation(labels, "position | {} characters")


def extrapolation_zh() -> str:
    """The table in Chinese."""
    labels = {"learned": "学习式", "alibi": "ALiBi", "t5": "T5"}
    return extrapolation(labels, "位置编码 | {} 个字符")


def language_en() -> str:
    """Losses and samples of the app `language`, in English."""
    versions = figures.load("language")["versions"]
    labels = {name: f", {heads}" for name, heads in language.VERSIONS.items()}
    bigram = next(iter(versions.values()))["bigram"]
    return (
        f"{language.losses({'versions': versions}, labels, 'step')}\n\n"
        f"A bigram model, which only counts which character follows which, has {bigram:.3f}. Samples:\n\n"
        f"{language.samples(versions)}"
    )


def language_zh() -> str:
    """Losses and samples of the app `language`, in Chinese."""
    versions = figures.load("language")["versions"]
    bigram = next(iter(versions.values()))["bigram"]
    labels = {"v3": "，1 个头", "v4": "，8 个头"}
    return (
        f"{language.losses({'versions': versions}, labels, '步数')}\n\n"
        f"二元（bigram）模型只统计哪个字符跟在哪个字符之后，损失为 {bigram:.3f}。生成样例：\n\n"
        f"{language.samples(versions)}"
    )


def language_results() -> str:
    """The best held-out loss of each version of the app `language`."""
    rows = ["| command | best loss on held-out text | bigram model |", "|---|---|---|"]
    for version, run in figures.load("language")["versions"].items():
        command = f"`maskwright train language --version {version}`"
        rows.append(f"| {command} | {run['best']:.3f} nats/character | {run['bigram']:.3f} |")
    return "\n".join(rows)


def _figures() -> dict[str, str]:
    """Ratios from the last measurement, as text."""
    result, prefill = figures.load("attention"), figures.load("prefill")
    cells, machine = result["cells"], result["machine"]
    modes = {
        mode: [r for cell in cells if cell["mode"] == mode and (r := figures.ratio(cell))]
        for mode in (figures.FORWARD, figures.BOTH)
    }
    sparse = [
        figures.ratio(cell)
        for cell in cells
        if cell["mode"] == figures.BOTH
        and figures.is_long(cell)
        and cell["density"] <= figures.SPARSE
    ]
    threads, measured = result["threads"], result.get("measured", {})
    kernel, kernel_zh = (
        report.kernel(machine) or none for none in (report.NO_KERNEL, report.NO_KERNEL_ZH)
    )
    when, when_zh = report.when(measured), report.when_zh(measured)
    return {
        "where": f"Measured on {machine['cpu']}, {threads} threads, {kernel}; {when}.",
        "where_zh": f"测量环境：{machine['cpu']}，{threads} 个线程，{kernel_zh}；{when_zh}。",
        "forward": f"{figures.geomean(modes[figures.FORWARD]):.1f}×",
        "forward_count": str(len(modes[figures.FORWARD])),
        "both": f"{figures.geomean(modes[figures.BOTH]):.1f}×",
        "both_count": str(len(modes[figures.BOTH])),
        "sparse": f"{figures.geomean(sparse):.0f}×",
        "losses": "docs/performance.md#configurations-in-which-a-baseline-is-faster",
        "sparse_times": f"{figures.geomean(sparse):.0f}",
        "prefill_times": f"{prefill['ratio']['sdpa']:.1f}",
        "density": figures.percent(figures.SPARSE),
        "long": f"{figures.LONG:,}",
        "window": str(prefill["config"]["sliding_window"]),
        "tokens": f"{prefill['tokens']:,}",
        "total": str(len(cells)),
    }


def _calls(functions: dict[str, object], title: str) -> str:
    """One row per function: its signature, and the first line of its docstring."""
    rows = [f"| {title} | meaning |", "|---|---|"]
    for name, function in functions.items():
        assert callable(function)
        arguments = ", ".join(
            name if kind.default is inspect.Parameter.empty else f"{name}={_default(kind)}"
            for name, kind in inspect.signature(function).parameters.items()
        )
        rows.append(f"| `{name}({arguments})` | {_summary(function)} |")
    return "\n".join(rows)


def _summary(function: object) -> str:
    """The first line of a docstring, fit for a table."""
    return (inspect.getdoc(function) or "").splitlines()[0].replace("|", "\\|")


def _default(parameter: inspect.Parameter) -> str:
    """A default value; None is shown as an ellipsis."""
    return "…" if parameter.default is None else repr(parameter.default)


def audit_cost() -> str:
    """The cost of an audit of models with 110 million weights."""
    found = figures.load("audit")
    return (
        f"The probes {', '.join(f'`{name}`' for name in found['probes'])} on two sequences of "
        f"{found['tokens']} tokens, one of them padded; random weights, float32, {found['threads']} "
        "threads. Memory is relative to one forward and backward pass. `python -m benchmarks audit` "
        f"repeats the measurement. Measured on {report.where(found)}.\n\n"
        + figures.audit_table(found["models"])
    )
