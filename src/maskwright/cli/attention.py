"""Commands about running attention: `plan`, `bench` and `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from maskwright.cli import options as opt
from maskwright.cli.main import command
from maskwright.cli.output import status
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.engine.api import BackendChoice
    from maskwright.parallel.cost_model import Prediction

HeadDim = Annotated[int, opt.option("Head dimension.", min=1)]


@command(
    'maskwright plan "window(back=255)" --size 4096 --heads 8',
    'maskwright plan "causal() & chunks(512)" --size 2048 --dtype bfloat16 --backward',
    'maskwright plan "window(back=63)" --size 256 -o plan.svg',
    'maskwright plan "causal()" --size 4m --ranks 256 --link 50GB/s --flops 400T',
)
def plan(
    expression: opt.Expression,
    *,
    size: Annotated[
        str, opt.option("Number of queries; 4k is 4,096, 4m is 4,194,304.", *opt.SIZE_FLAGS)
    ] = "4096",
    sizes: opt.Sizes,
    head_dim: HeadDim = 128,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "float64"],
        opt.option("Data type of q, k and v."),
    ] = "float32",
    backward: Annotated[bool, opt.option("Estimate the backward pass.")] = False,
    ranks: Annotated[
        int | None, opt.option("Shard the sequence over this many ranks instead.", min=1)
    ] = None,
    link: Annotated[str, opt.option("Bandwidth between ranks, for --ranks.")] = "50GB/s",
    flops: Annotated[str, opt.option("FLOP/s of one rank, for --ranks.")] = "400T",
    form: opt.PictureFormat = None,
    output: opt.PictureFile = None,
) -> None:
    """Show how attention under a mask is computed on this machine.

    Prints the backend and the reason for it, the instruction set of the C kernel, the number of
    tiles that are visited, the share of computed scores that are visible, and an estimated time.
    A picture shows the tiles, which are visible, partly visible or skipped. Does not need PyTorch. With
    --ranks: the rows, work and communication of each rank under context parallelism.
    """
    from maskwright import explain_backend, parse
    from maskwright.draw.masks import tiles_scene
    from maskwright.engine.native.kernel import loaded

    result = opt.Output(form, output, opt.PICTURE if ranks is None else opt.TEXT)
    bound = parse(expression).on(_parse_size(size), **vars(sizes))
    if ranks is not None:
        prediction = _over_ranks(bound, ranks, link, flops, head_dim)
        result.write(str(prediction), prediction.as_dict())
        return
    frame = bound.frame
    q, k = ((frame.batch, frame.heads, length, head_dim) for length in (frame.q_len, frame.kv_len))
    choice = explain_backend(
        q, k, mask=bound, dtype=dtype, requires_grad=backward, backward=backward
    )
    axes = ("batch", "heads", "q_len", "kv_len")
    facts: dict[str, Any] = {
        "mask": repr(bound.mask),
        "shape": {name: getattr(frame, name) for name in axes} | {"head_dim": head_dim},
        "dtype": dtype,
        "pass": "backward" if backward else "forward",
        "backend": choice.backend,
        "reason": choice.reason,
        "instruction_set": loaded().isa if choice.backend == "native" else None,
        "work": choice.work.as_dict(),
    }
    result.write_scene(
        lambda: tiles_scene(bound, choice.work), lambda: facts, lambda: _plan_text(facts, choice)
    )


def _plan_text(facts: dict[str, Any], choice: BackendChoice) -> str:
    from maskwright.engine.cost import format_time
    from maskwright.engine.select import DESCRIPTIONS

    shape, work = facts["shape"], choice.work
    lines = {
        "mask": facts["mask"],
        "shape": ", ".join(f"{name} {size:,}" for name, size in shape.items()),
        "pass": f"{facts['pass']}, {facts['dtype']}",
        "backend": f"{choice.backend} ({DESCRIPTIONS[choice.backend]})",
        "reason": choice.reason,
        "instruction set": facts["instruction_set"],
        "tiles visited": f"{work.tiles_visited:,} of {work.tiles:,}, "
        f"{work.block_q} × {work.block_kv} cells each",
        "scores computed": f"{work.cells_computed:,}, {work.useful_share:.0%} of them visible",
        "estimated time": f"{format_time(work.milliseconds)} on one CPU thread",
    }
    return "\n".join(f"{name}: {value}" for name, value in lines.items() if value is not None)


def _parse_size(text: str) -> int:
    """A number of tokens, where k and m are powers of two."""
    factor = {"k": 2**10, "m": 2**20}.get(text[-1:].lower(), 1)
    number = text[:-1] if factor > 1 else text
    if not number.isdecimal():
        raise ArgumentError(f"--size {text}: expected an integer, such as 4096, 4k or 4m.")
    return int(number) * factor


def _over_ranks(bound: BoundMask, ranks: int, link: str, flops: str, head_dim: int) -> Prediction:
    from maskwright.parallel.cost_model import parse_quantity, predict
    from maskwright.parallel.layout import balance

    frame = bound.frame
    key_bytes = frame.batch * frame.heads * 2 * head_dim * 2  # keys and values, in half precision
    shards = balance(bound, ranks, key_bytes=key_bytes)
    speeds = parse_quantity(link, "--link"), parse_quantity(flops, "--flops")
    return predict(shards, *speeds, head_dim)


@command(
    'maskwright bench "window(back=255)" --size 4096',
    'maskwright bench "window(back=99)" --size 4096 --profile',
)
def bench(
    expression: opt.Expression = "window(back=255)",
    *,
    size: Annotated[
        int, opt.option("Number of queries and of keys.", "--size", "-n", min=1)
    ] = 2048,
    heads: Annotated[int, opt.option("Number of heads.", min=1)] = 8,
    head_dim: HeadDim = 64,
    profile: Annotated[
        bool, opt.option("Also show the cycles of each phase of the C kernel.", "--profile")
    ] = False,
    output: opt.TextOutput,
) -> None:
    """Time attention under a mask and SDPA with the same mask as a dense tensor."""
    from maskwright import parse

    mask = parse(expression)
    with status("Timing attention ..."):
        from maskwright.engine.doctor import compare_with_sdpa

        comparison = compare_with_sdpa(mask, size, heads, head_dim, profile=profile)
    output.write(str(comparison), comparison.as_dict())


@command(
    "maskwright doctor",
    "maskwright doctor --format json",
    "maskwright doctor --device cuda --verify",
)
def doctor(
    *,
    device: Annotated[
        str | None, opt.option("The device that --verify runs on: cuda, also for ROCm.")
    ] = None,
    verify: Annotated[
        bool,
        opt.option(
            "Compare the Triton kernels with the reference on the device, time them, and store "
            "the faster backend for it.",
            "--verify",
        ),
    ] = False,
    output: opt.TextOutput,
) -> None:
    """Show the C kernel, threads and backend that attention uses; if the kernel is missing, the fix."""
    from maskwright import __version__
    from maskwright.engine.doctor import facts

    if verify:
        from maskwright.engine import gpu_verify

        with status("Comparing the Triton kernels with the reference ..."):
            verified = gpu_verify.verify(device or "cuda")
        output.write(str(verified), verified.as_dict())
        return
    if device is not None:
        raise ArgumentError(f"doctor: --device {device} needs --verify. Pass both, or neither.")
    state = {"maskwright": __version__, **facts()}
    output.write("\n".join(f"{name}: {fact}" for name, fact in state.items()), state)
