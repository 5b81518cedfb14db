"""Verbs that show: a mask, the difference of two, why a cell is hidden, and the calculation."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

from maskwright.cli.app import app
from maskwright.cli.front import typer
from maskwright.cli.options import (
    Batch,
    BatchRow,
    Expression,
    Form,
    HeadNumber,
    Heads,
    Keys,
    Lang,
    Output,
    QStart,
    Seed,
    Size,
    TextForm,
    Tokens,
    flags_in_errors,
)
from maskwright.cli.output import as_text, chosen_form, emit, give
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maskwright.core.bound import BoundMask
    from maskwright.core.explain import Why
    from maskwright.draw.walkthrough import Walkthrough

USUAL_SIZE = 8
MOST_ROWS_LISTED = 4096  # of which JSON tells the intervals


@app.command(
    epilog="""Examples:

    maskwright show "causal()"

    maskwright show "causal() & padding(lengths=[3, 5])" --size 5

    maskwright show "causal()" --tokens "我 喜欢 喝 茶"

    maskwright show "window(back=255) | keys(range(4))" --size 65536 -o mask.svg"""
)
def show(
    expression: Expression,
    size: Size = None,
    keys: Keys = None,
    batch: Batch = None,
    heads: Heads = None,
    q_start: QStart = None,
    tokens: Tokens = None,
    batch_row: BatchRow = None,
    head: HeadNumber = None,
    form: Form = None,
    output: Output = None,
) -> None:
    """Draw a mask: a row for each query, a column for each key.

    Atoms: everything, nothing, causal, window, padding, documents, prefix, chunks, stride, keys,
    queries, tree, graph, image, blocks, dense; and by_head, by_batch.
    """
    from maskwright import parse
    from maskwright.draw.masks import scene_of

    words = None if tokens is None else tokens.split()
    with flags_in_errors():
        count = _size(size, words)
        bound = parse(expression).on(count, keys, batch, heads, q_start)
        give(
            lambda: scene_of(bound, tokens=words, batch=batch_row, head=head),
            lambda: _as_data(bound),
            form,
            output,
        )


@app.command(
    epilog="""Examples:

    maskwright diff "causal()" "window(back=3)"

    maskwright diff "causal()" mask.npy -o difference.svg"""
)
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A mask, or a file that holds one.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    size: Size = None,
    keys: Keys = None,
    batch: Batch = None,
    heads: Heads = None,
    q_start: QStart = None,
    form: Form = None,
    output: Output = None,
) -> None:
    """Show where two masks differ: code 0 if nowhere, 1 if somewhere.

    A file's sizes are the sizes, unless they are given.
    """
    from maskwright.cli.files import read_mask
    from maskwright.core.compare import only
    from maskwright.draw.masks import difference_of

    with flags_in_errors():
        read = [read_mask(text) for text in (first, second)]
        frame = next((frame for _, frame in read if frame is not None), None)
        if size is None and frame is not None:
            size, keys = frame.q_len, frame.kv_len if keys is None else keys
            q_start = frame.q_start if q_start is None else q_start
        sizes = (_size(size, None), keys, batch, heads, q_start)
        both = [mask.on(*sizes) for mask, _ in read]
        planes = (max(b.frame.batch for b in both), max(b.frame.heads for b in both))
        one, other = (mask.on(*sizes[:2], *planes, q_start) for mask, _ in read)
        found = one.equals(other)

        def data() -> dict[str, Any]:
            return {
                "equal": bool(found),
                "says": str(found),
                "cell": found.cell,
                "only_first": only(one, other).count(),
                "only_second": only(other, one).count(),
            }

        def text() -> str:
            if found:
                return f"equal: {one.mask} and {other.mask} allow the same cells"
            return f"{as_text(difference_of(one, other), output)}\n\n{found}"

        give(lambda: difference_of(one, other), data, form, output, text)
    if not found:
        raise typer.Exit(1)


@app.command(
    epilog="""Examples:

    maskwright explain "causal()" --cell 0,2 --size 4

    maskwright explain "causal()" --cell 0,2 --size 4 --lang zh

    maskwright explain "causal()" --tokens "I like tea"

    maskwright explain "padding(lengths=[3])" --tokens "a b c D" --beside

    maskwright explain --scaling"""
)
def explain(
    expression: Annotated[str, typer.Argument(help="A mask.")] = "causal()",
    cell: Annotated[
        str | None, typer.Option(help="QUERY,KEY: why this query attends to this key, or not.")
    ] = None,
    size: Size = None,
    keys: Keys = None,
    batch_row: BatchRow = None,
    head: HeadNumber = None,
    tokens: Tokens = None,
    scores: Annotated[
        str | None, typer.Option(help="Begin with these scores: [[0.8, 0.2], [0.4, 0.7]].")
    ] = None,
    width: Annotated[int, typer.Option(help="Numbers of a token.")] = 3,
    head_size: Annotated[int, typer.Option(help="Numbers of a query, key and value.")] = 2,
    unscaled: Annotated[bool, typer.Option(help="Leave out the scaling by √head_size.")] = False,
    fill: Annotated[float, typer.Option(help="What a hidden score becomes.")] = -math.inf,
    rows_too: Annotated[
        bool, typer.Option(help="Hide also the rows of tokens that nobody sees.")
    ] = False,
    beside: Annotated[
        bool, typer.Option(help="The weights under no mask, this mask and the look-ahead mask.")
    ] = False,
    scaling: Annotated[bool, typer.Option(help="What scaling does, by head size.")] = False,
    seed: Seed = 0,
    lang: Lang = "en",
    form: Form = None,
    output: Output = None,
) -> None:
    """Explain why a cell is visible or masked, or show the calculation of attention with numbers."""
    from maskwright import causal, parse, walkthrough

    if scaling:
        _scaling(seed, form, output)
        return
    with flags_in_errors():
        mask = parse(expression)
        if cell is not None:
            found = _why(mask.on(_size(size, None), keys), cell, batch_row or 0, head or 0)
            if chosen_form(form, output) == "json":
                query, key = (found.reason.params[name] for name in ("query", "key"))
                data = {"query": query, "key": key, "visible": found.visible}
                emit(json.dumps(data | {"reason": found.text(lang)}, indent=2), output)
            else:
                emit(found.text(lang), output)
            return
        words = (tokens or "I like green tea").split()
        given: dict[str, Any] = {
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
        if beside:
            masks = {"no mask": None, expression: mask, "look-ahead mask": causal()}
            _beside(
                {name: walkthrough(words, m, **given) for name, m in masks.items()}, form, output
            )
            return
        walk = walkthrough(words, mask, **given)
        give(walk.scene, walk.as_dict, form, output, lambda: str(walk))


@app.command(
    epilog="""Examples:

    maskwright recipes

    maskwright recipes longformer"""
)
def recipes(
    name: Annotated[
        str | None, typer.Argument(help="One recipe, with its paper and a picture.")
    ] = None,
    form: TextForm = None,
) -> None:
    """List the named masks of the literature, each with the expression that it is."""
    from maskwright.explore.vocabulary import vocabulary

    every = vocabulary()["recipes"]
    chosen = [one for one in every if name is None or name in (one["name"], _function(one))]
    if not chosen:
        raise ArgumentError(f"There is no recipe {name}. Run: maskwright recipes")
    if form == "json":
        emit(json.dumps(chosen, indent=2), None)
    elif name is not None:
        emit("\n\n".join(_one_recipe(chosen)), None)
    else:
        for one in chosen:
            typer.echo(f"{one['name']:<20} {one['summary']}")


def _function(recipe: dict[str, Any]) -> str:
    """The name of the function that makes it, perhaps beside others."""
    return str(recipe["name"].partition(".")[0])


def _one_recipe(chosen: list[dict[str, Any]]) -> Iterator[str]:
    import inspect

    from maskwright import parse, recipes
    from maskwright.draw.masks import scene_of
    from maskwright.explore.vocabulary import bare_signature

    name = _function(chosen[0])
    recipe = getattr(recipes, name)
    words = (inspect.getdoc(recipe) or "").partition("\n\n>>>")[0]
    yield f"maskwright.recipes.{name}{bare_signature(recipe)}"
    yield words
    for one in chosen:
        yield f"For example, as an expression ({one['name']}):"
        yield as_text(scene_of(parse(one["expression"]).on(one["size"] or USUAL_SIZE)))


def _size(size: int | None, tokens: list[str] | None) -> int:
    if size is None:
        return USUAL_SIZE if tokens is None else len(tokens)
    return size


def _as_data(bound: BoundMask) -> dict[str, Any]:
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
    if batch * heads * rows <= MOST_ROWS_LISTED:
        data["rows"] = [
            [[bound.spans.row(r, b, h) for r in range(rows)] for h in range(heads)]
            for b in range(batch)
        ]
    return data


def _why(bound: BoundMask, cell: str, batch: int, head: int) -> Why:
    try:
        query, key = (int(number) for number in cell.split(","))
    except ValueError:
        raise ArgumentError(f"--cell {cell} is not a cell. Write QUERY,KEY, such as 3,5.") from None
    return bound.why(query, key, batch, head)


def _beside(walks: dict[str, Walkthrough], form: str | None, output: Path | None) -> None:
    from maskwright.draw.walkthrough import weights_scene

    give(
        lambda: weights_scene(walks),
        lambda: {name: walk.as_dict() for name, walk in walks.items()},
        form,
        output,
    )


def _scaling(seed: int, form: str | None, output: Path | None) -> None:
    from maskwright.draw.walkthrough import scaling

    rows = scaling(seed=seed)
    if chosen_form(form, output) == "json":
        emit(json.dumps([row._asdict() for row in rows], indent=2), output)
        return
    lines = [
        "Scores of random queries and keys, and how much of a row's weight the largest of 16 takes:",
        "",
        f"{'head size':>9}  {'variance':>9}  {'weight':>6}  {'scaled variance':>16}  {'weight':>6}",
    ]
    lines += [
        f"{row.head_size:>9}  {row.variance:>9.2f}  {row.sharpness:>6.2f}  "
        f"{row.scaled_variance:>16.2f}  {row.scaled_sharpness:>6.2f}"
        for row in rows
    ]
    emit("\n".join(lines), output)


def _numbers(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise ArgumentError(
            f"--scores {text[:40]} is no table of numbers. Write it as [[0.8, 0.2], [0.4, 0.7]]."
        ) from None
