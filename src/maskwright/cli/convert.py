"""Commands between masks, frameworks and arrays: `lower`, `targets`, `recognize` and `lint`.

Also reads arrays from files.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from maskwright.cli import options as opt
from maskwright.cli.errors import UsageError
from maskwright.cli.main import command
from maskwright.cli.output import scene_text, table, write
from maskwright.errors import MissingError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maskwright.core.expr import Mask
    from maskwright.core.frame import Frame

ARRAY_SUFFIXES: Final = (".npy", ".npz", ".safetensors", ".json", ".csv")
MAX_ARRAY_BYTES: Final = 2**30  # of an array that is read; recognition takes four times as much
MAX_ROWS: Final = 2**24  # query rows whose spans are computed; `lower` takes 250 bytes of each
MAX_WHOLE: Final = 2.0**53  # of a float that stands for an integer
MAX_TEXT_BYTES: Final = 2**26  # of a .json or .csv file, whose numbers take many times as much
TARGET_LABELS: Final = {  # fields of a target that its description shows
    "returns": "lower() returns",
    "polarity": "values",
    "shape": "shape",
    "supports": "supported masks",
    "alternatives": "other masks",
    "alignment": "query alignment",
    "empty_rows": "fully masked rows",
    "requires": "requires",
    "tested": "tested by",
}

QLen = Annotated[
    int | None,
    opt.option(
        "Number of queries. Default: that of the mask.", *opt.SIZE_FLAGS, min=1, max=MAX_ROWS
    ),
]
ArrayName = Annotated[
    str | None, opt.option("Name of the array in a file that has several.", "--name")
]


@command(
    'maskwright lower "causal() & padding(lengths=[3, 5])" --to torch.mha',
    'maskwright lower "causal()" --to torch.sdpa --size 128',
    'maskwright lower "padding(lengths=[3])" "causal()" "everything()" --to torch.transformer -n 4',
)
def lower(
    expression: Annotated[
        list[str],
        typer.Argument(help="A mask; for torch.transformer three: encoder, decoder, cross."),
    ],
    *,
    to: Annotated[str, opt.option("The target; `maskwright targets` lists them.")],
    size: QLen = None,
    sizes: opt.Sizes,
) -> None:
    """Print code that builds a mask in a framework, or the term that it cannot represent."""
    from maskwright import explain_lowering, parse

    masks = tuple(parse(text) for text in expression)
    mask = masks[0] if len(masks) == 1 else masks
    write(explain_lowering(mask, to, size, **vars(sizes)))


@command("maskwright targets", "maskwright targets torch.mha", "maskwright targets --format json")
def targets(
    name: Annotated[str | None, typer.Argument(help="One target, with its mask format.")] = None,
    *,
    output: opt.TextOutput,
) -> None:
    """List the targets of `lower` and the mask format of each."""
    from maskwright import capabilities
    from maskwright.targets.lower import TARGETS

    known = capabilities()
    names = [TARGETS.resolve(name, "targets")] if name else list(known)
    data = [asdict(known[key]) for key in names]
    text = table((target["name"], f"{target['returns']}; {target['polarity']}") for target in data)
    if name is not None:
        (target,) = data
        shown = target | {"alternatives": " or ".join(target["alternatives"])}
        rows = [(label, shown[field]) for field, label in TARGET_LABELS.items() if shown[field]]
        text = f"{target['name']}\n\n{table(rows)}"
    output.write(text, data)


@command(
    "maskwright recognize mask.npy",
    "maskwright recognize batch.safetensors --name attention_mask --axes bk",
    "maskwright recognize mask.csv -o mask.svg",
)
def recognize(
    file: Annotated[
        Path, typer.Argument(help="A mask array: .npy, .npz, .safetensors, .json or .csv.")
    ],
    *,
    name: ArrayName = None,
    axes: Annotated[
        str | None, opt.option("Axes of the array, from b, h, q and k: such as qk, bk or bhqk.")
    ] = None,
    polarity: Annotated[
        Literal["keep", "drop"] | None,
        opt.option("What True or 1 means, if the array does not tell."),
    ] = None,
    q_start: opt.QStart = None,
    output: opt.PictureOutput,
) -> None:
    """Print the expression of a mask array, its encoding, and what is unusual about it."""
    import maskwright
    from maskwright.draw.masks import scene_of

    array = read_array(file, name)
    recognition = maskwright.recognize(array, axes=axes, polarity=polarity, q_start=q_start)
    frame = recognition.frame
    bound = recognition.mask.on(frame.q_len, frame.kv_len, frame.batch, frame.heads, frame.q_start)

    def data() -> dict[str, Any]:
        return {
            "expression": repr(recognition.mask),
            "convention": str(recognition.convention),
            "shape": recognition.convention.shape,
            "notes": recognition.notes,
            "otherwise": None if recognition.other is None else repr(recognition.other.mask),
        }

    def text() -> str:
        return f"{recognition}\n\n{scene_text(scene_of(bound), output.file)}"

    output.write_scene(lambda: scene_of(bound), data, text)


@command(
    "maskwright lint mask.npy --causal",
    "maskwright lint mask.npy --to torch.mha --size 128",
    'maskwright lint "causal() & padding(lengths=[3, 5])" --size 5',
    "maskwright lint mask.npy --causal --lang zh",
)
def lint(
    mask: Annotated[
        str, typer.Argument(help="A mask expression, or a file that contains a mask array.")
    ],
    *,
    size: QLen = None,
    sizes: opt.Sizes,
    to: Annotated[
        str | None,
        opt.option(
            "Encoding of an array: keep (True keeps), drop (True masks), additive, or a "
            "target such as torch.mha."
        ),
    ] = None,
    axes: Annotated[
        str | None, opt.option("Axes of an array: k, qk, bk, bqk, hqk or bhqk.")
    ] = None,
    causal: Annotated[bool, opt.option("The mask should be causal.")] = False,
    window: Annotated[
        int | None, opt.option("The mask should be a sliding window of this many keys.")
    ] = None,
    expects: Annotated[
        str | None,
        opt.option("The mask should be this mask.", autocompletion=opt.complete_expression),
    ] = None,
    name: ArrayName = None,
    lang: opt.Lang = "en",
    output: opt.TextOutput,
) -> None:
    """Check a mask. Exit code 0 without findings, 1 with findings, 2 for invalid arguments."""
    import maskwright

    report = maskwright.lint(
        read_array(Path(mask), name) if _is_file(mask) else maskwright.parse(mask),
        q_len=size,
        **vars(sizes),
        to=to,
        axes=axes,
        causal=causal,
        window=window,
        expects=None if expects is None else maskwright.parse(expects),
    )
    output.write(report.text(lang), report.as_dict(lang))
    if not report.ok:
        raise typer.Exit(1)


# ── arrays in files ───────────────────────────────────────────────────────────────────────────


def read_mask(text: str) -> tuple[Mask, Frame | None]:
    """Returns the mask of an expression or of an array file, and the sizes of the latter."""
    from maskwright import parse, recognize

    if not _is_file(text):
        return parse(text), None
    recognition = recognize(read_array(Path(text)))
    return recognition.mask, recognition.frame


def read_array(path: Path, name: str | None = None) -> Any:
    """Returns the array of a file that has one, else the array called `name`.

    Raises:
        UsageError: If the file or the array does not exist, or cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix not in ARRAY_SUFFIXES:
        raise UsageError("not_an_array", path=path, known=", ".join(ARRAY_SUFFIXES))
    if not path.is_file():
        raise UsageError("no_file", path=path)
    try:
        return _read(path, suffix, name)
    except (UsageError, MissingError, MemoryError):
        raise
    except RecursionError:
        raise UsageError("nested", path=path) from None
    except Exception as error:  # of numpy, json or safetensors
        reason = str(error).partition("\n")[0][:120] or type(error).__name__
        raise UsageError("not_readable", path=path, suffix=suffix, error=reason) from error


def _is_file(text: str) -> bool:
    return text.lower().endswith(ARRAY_SUFFIXES)


def _read(path: Path, suffix: str, name: str | None) -> Any:
    import numpy as np

    if suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            chosen = _choose(path, arrays.files, name)
            member = chosen if chosen in arrays.zip.namelist() else f"{chosen}.npy"
            with arrays.zip.open(member) as file:
                _check_header(path, file)
            return arrays[chosen]
    if suffix == ".safetensors":
        try:
            from safetensors import safe_open
        except ModuleNotFoundError as error:
            fix = "Run: pip install safetensors"
            raise MissingError(f"{path}: safetensors is not installed. {fix}") from error
        with safe_open(path, framework="numpy") as tensors:
            chosen = _choose(path, list(tensors.keys()), name)
            with path.open("rb") as file:  # 8 bytes of length, then JSON, which is read and valid
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            entry = header[chosen]
            start, stop = entry["data_offsets"]
            _check_size(path, stop - start or _num_values(entry["shape"]), MAX_ARRAY_BYTES)
            return tensors.get_tensor(chosen)
    if suffix != ".npy":
        _check_size(path, path.stat().st_size, MAX_TEXT_BYTES)
    data = json.loads(path.read_text(encoding="utf-8")) if suffix == ".json" else None
    if isinstance(data, dict):
        return np.array(data[_choose(path, list(data), name)])
    if name is not None:
        raise UsageError("no_name", path=path)
    if suffix == ".json":
        return np.array(data)
    if suffix == ".csv":
        return _read_csv(path)
    with path.open("rb") as file:
        _check_header(path, file)
    return np.load(path, allow_pickle=False)


def _check_header(path: Path, file: Any) -> None:
    """Checks the size that the header of a .npy file states, before the array is allocated."""
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    _check_size(path, _num_values(shape) * dtype.itemsize, MAX_ARRAY_BYTES)


def _num_values(shape: Iterable[int]) -> int:
    """The number of values; without the axes of size 0, so that no other axis is huge either."""
    return math.prod(size for size in shape if size)


def _check_size(path: Path, size: int, limit: int) -> None:
    if size > limit:
        raise UsageError("too_large", path=path, size=f"{size:,}", limit=f"{limit:,}")


def _choose(path: Path, names: list[str], name: str | None) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name in names:
        return name
    if not names:
        raise UsageError("no_arrays", path=path)
    code = "several_arrays" if name is None else "unknown_name"
    raise UsageError(code, path=path, name=name, known=", ".join(sorted(names)[:20]))


def _read_csv(path: Path) -> Any:
    import numpy as np

    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    rows = [[cell.strip().lower() for cell in line.split(",")] for line in lines]
    if len({len(row) for row in rows}) != 1:
        raise UsageError("ragged", path=path)
    values = np.array(
        [[{"true": 1.0, "false": 0.0}.get(cell, cell) for cell in row] for row in rows], np.float64
    )
    whole = (values == values.round()).all() and (abs(values) < MAX_WHOLE).all()
    return values.astype(np.int64) if whole else values
