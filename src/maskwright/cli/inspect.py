"""Commands that show masks: `show`, `diff`, `explain` and `recipes`."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskwright.cli import options as opt
from maskwright.cli.errors import UsageError
from maskwright.cli.main import command
from maskwright.cli.output import scene_text, table
from maskwright.messages import Reason, render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.core.bound import BoundMask

DEFAULT_SIZE = 8
MAX_JSON_ROWS = 4096  # rows whose spans `show --format json` lists


@command(
    'maskwright show "causal()"',
    'maskwright show "causal() & padding(lengths=[3, 5])" --size 5',
    'maskwright show "causal()" --tokens "我 喜欢 喝 茶"',
    'maskwright show "window(back=255) | keys(range(4)) & causal()" --size 65536 -o mask.svg',
)
def show(
    expression: opt.Expression,
    *,
    size: opt.Size = None,
    sizes: opt.Sizes,
    tokens: opt.Tokens = None,
    batch_row: opt.BatchRow = None,
    head: opt.HeadIndex = None,
    output: opt.PictureOutput,
) -> None:
    """Draw a mask: a row for each query, a column for each key.

    Atoms: everything, nothing, causal, window, padding, documents, prefix, chunks, stride, keys,
    queries, tree, graph, image, blocks, dense; and by_head, by_batch.
    """
    from maskwright import parse
    from maskwright.draw.masks import scene_of

    labels = None if tokens is None else _split(tokens)
    default = DEFAULT_SIZE if labels is None else len(labels)
    bound = parse(expression).on(size or default, **vars(sizes))
    output.write_scene(
        lambda: scene_of(bound, tokens=labels, batch=batch_row, head=head),
        lambda: _mask_data(bound),
    )


@command(
    'maskwright diff "causal()" "window(back=3)"',
    'maskwright diff "causal()" mask.npy -o difference.svg',
)
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A mask, or a file that contains one.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another mask.")],
    *,
    size: opt.Size = None,
    sizes: opt.Sizes,
    output: opt.PictureOutput,
) -> None:
    """Show where two masks differ. Exit code 0 if they are equal, 1 if they differ.

    The default sizes are those of the file, if one is given.
    """
    from maskwright.cli.convert import read_mask
    from maskwright.core.compare import only
    from maskwright.draw.masks import difference_of

    masks = [read_mask(text) for text in (first, second)]
    frame = next((frame for _, frame in masks if frame is not None), None)
    if size is None and frame is not None:
        size = frame.q_len
        sizes = sizes.with_defaults(kv_len=frame.kv_len, q_start=frame.q_start)
    size = size or DEFAULT_SIZE
    frames = [mask.on(size, **vars(sizes)).frame for mask, _ in masks]
    planes = {"batch": max(f.batch for f in frames), "heads": max(f.heads for f in frames)}
    left, right = (mask.on(size, **{**vars(sizes), **planes}) for mask, _ in masks)
    comparison = left.equals(right)
    text = f"equal: {first} and {second} attend to the same cells"
    if comparison.cell is not None:
        visible_in = first if comparison.left else second
        place = "batch {}, head {}, query {}, key {}".format(*comparison.cell)
        text = f"The first difference is at {place}: visible only in {visible_in}."

    def data() -> dict[str, Any]:
        return {
            "equal": bool(comparison),
            "text": text,
            "cell": comparison.cell,
            "only_first": only(left, right).count(),
            "only_second": only(right, left).count(),
        }

    def picture() -> str:
        return (
            text
            if comparison
            else f"{scene_text(difference_of(left, right), output.file)}\n\n{text}"
        )

    output.write_scene(lambda: difference_of(left, right), data, picture)
    if not comparison:
        raise typer.Exit(1)


@command(
    'maskwright explain "causal()" --cell 0,2 --size 4',
    'maskwright explain "causal()" --cell 0,2 --size 4 --lang zh',
    'maskwright explain "causal()" --tokens "I like tea"',
    'maskwright explain "padding(lengths=[3])" --tokens "a b c D" --compare',
    "maskwright explain --scaling",
)
def explain(
    expression: opt.Expression = "causal()",
    cell: Annotated[
        str | None,
        opt.option("Explain why the query attends to the key, or does not.", metavar="QUERY,KEY"),
    ] = None,
    size: opt.Size = None,
    kv_len: opt.KvLen = None,
    batch_row: opt.BatchRow = None,
    head: opt.HeadIndex = None,
    tokens: opt.Tokens = None,
    scores: Annotated[
        str | None, opt.option("Start from these scores: [[0.8, 0.2], [0.4, 0.7]].")
    ] = None,
    width: Annotated[int, opt.option("Embedding size.")] = 3,
    head_size: Annotated[int, opt.option("Head dimension of query, key and value.")] = 2,
    unscaled: Annotated[bool, opt.option("Do not scale by 1/√head_size.")] = False,
    fill: Annotated[float, opt.option("Score of a masked cell.")] = -math.inf,
    rows_too: Annotated[
        bool, opt.option("Mask also the query rows of keys that are fully masked.")
    ] = False,
    compare: Annotated[
        bool, opt.option("Show the weights with no mask, this mask and the causal mask.")
    ] = False,
    scaling: Annotated[bool, opt.option("Show the effect of scaling by 1/√head_size.")] = False,
    seed: opt.Seed = 0,
    lang: opt.Lang = "en",
    form: opt.PictureFormat = None,
    output: opt.PictureFile = None,
) -> None:
    """Explain why a cell is visible or masked, or show the calculation of attention with numbers."""
    from maskwright import causal, parse, walkthrough
    from maskwright.draw.walkthrough import weights_scene

    result = opt.Output(form, output, opt.TEXT if scaling or cell else opt.PICTURE)
    if scaling:
        _explain_scaling(seed, result, lang)
        return
    mask = parse(expression)
    if cell is not None:
        bound = mask.on(size or DEFAULT_SIZE, kv_len)
        query, key = _cell(cell)
        why = bound.why(query, key, batch_row or 0, head or 0)
        reason = why.text(lang)
        data = {"query": query, "key": key, "visible": why.visible, "reason": reason}
        result.write(reason, data)
        return
    sentence = _split("I like green tea" if tokens is None else tokens)
    options: dict[str, Any] = {
        "width": width,
        "head_size": head_size,
        "seed": seed,
        "scaled": not unscaled,
        "fill": fill,
        "rows_too": rows_too,
        "batch": batch_row or 0,
        "head": head or 0,
        "scores": None if scores is None else _numbers(scores),
    }
    if compare:
        masks = {"no mask": None, expression: mask, "causal mask": causal()}
        walks = {name: walkthrough(sentence, m, **options) for name, m in masks.items()}
        codes = {"no mask": "none", "causal mask": "causal"}  # of names that are no expressions
        titles = {
            name: render(Reason(f"walkthrough.compare.{code}"), lang)
            for name, code in codes.items()
        }
        result.write_scene(
            lambda: weights_scene({titles.get(n, n): walk for n, walk in walks.items()}, lang=lang),
            lambda: {name: walk.as_dict() for name, walk in walks.items()},
        )
    else:
        walk = walkthrough(sentence, mask, **options)
        result.write_scene(lambda: walk.scene(lang=lang), walk.as_dict, lambda: walk.text(lang))


@command("maskwright recipes", "maskwright recipes longformer")
def recipes(
    name: Annotated[
        str | None, typer.Argument(help="One recipe, with its paper and a picture.")
    ] = None,
    *,
    output: opt.TextOutput,
) -> None:
    """List the masks of well-known models and papers, with the expression of each."""
    from maskwright.recipes.registry import RECIPES, recipe_table

    rows = recipe_table()
    if name is None:
        text = table((row.name, row.summary) for row in rows)
    else:
        recipe = RECIPES.resolve(name.partition(".")[0], "recipes")
        rows = [row for row in rows if row.name.partition(".")[0] == recipe]
        text = "\n\n".join(_describe_recipe(recipe))
    fields = ("name", "summary", "expression")
    output.write(text, [{key: getattr(row, key) for key in fields} for row in rows])


def _describe_recipe(name: str) -> Iterator[str]:
    from inspect import getdoc

    from maskwright.draw.masks import scene_of
    from maskwright.recipes.registry import EXAMPLES, RECIPES, example_masks

    example = EXAMPLES[name]
    arguments = ", ".join(f"{key}={value!r}" for key, value in example.arguments.items())
    yield f"maskwright.recipes.{name}({arguments})"
    yield (getdoc(RECIPES[name]) or "").partition("\n\n>>>")[0]
    for call, mask in example_masks(name):
        yield f"{call} = {mask}"
        yield scene_text(scene_of(mask.on(example.size or DEFAULT_SIZE)))


def _split(tokens: str) -> list[str]:
    from maskwright.draw.text import split_tokens

    words = split_tokens(tokens)
    if not words:
        raise UsageError("tokens_empty")
    return words


def _mask_data(bound: BoundMask) -> dict[str, Any]:
    from dataclasses import asdict

    from maskwright import to_json

    data = {
        "mask": json.loads(to_json(bound.mask)),
        "frame": asdict(bound.frame),
        "shape": bound.shape,
        "count": bound.count(),
        "density": bound.density,
        "empty_rows": int(bound.empty_rows().sum()),
        "unseen_keys": int(bound.unseen_keys().sum()),
    }
    batch, heads, rows, _ = bound.shape
    if batch * heads * rows <= MAX_JSON_ROWS:
        data["rows"] = [
            [[bound.spans.row(r, b, h) for r in range(rows)] for h in range(heads)]
            for b in range(batch)
        ]
    return data


def _cell(text: str) -> tuple[int, int]:
    try:
        query, key = (int(number) for number in text.split(","))
    except ValueError:
        raise UsageError("cell", text=text) from None
    return query, key


def _explain_scaling(seed: int, result: opt.Output, lang: str) -> None:
    from maskwright.draw.walkthrough import NUM_KEYS, scaling

    measured = scaling(seed=seed)
    rows = [row._asdict() for row in measured]
    header = [render(Reason(f"walkthrough.scaling.{name}"), lang) for name in rows[0]]
    cells = [[str(size), *(f"{value:.2f}" for value in values)] for size, *values in measured]
    title = render(Reason("walkthrough.scaling.title", {"keys": NUM_KEYS}), lang)
    result.write(f"{title}\n\n{table(cells, header)}", rows)


def _numbers(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError("scores", text=text[:40]) from None
