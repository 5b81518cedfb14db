"""Loading the kernel, its arguments and errors, and its threads."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.engine.backends.native import span_buffers
from maskwright.engine.native import kernel as bindings
from maskwright.engine.native.kernel import loaded, use_isa
from tests._helpers.native_kernel import needs_kernel
from tests._helpers.run_python import run_python

pytestmark = needs_kernel


PRINT_ISA = """
from maskwright.engine.native.kernel import loaded
print(loaded().isa, loaded().module is not None)
"""


@pytest.mark.parametrize("isa", [*loaded().isas, "none"])
def test_environment_variable_selects_instruction_set(isa: str) -> None:
    expected = ["None", "False"] if isa == "none" else [isa, "True"]
    assert run_python(PRINT_ISA, MASKWRIGHT_ISA=isa).stdout.split() == expected


def test_unknown_instruction_set_is_error() -> None:
    error = run_python(PRINT_ISA, MASKWRIGHT_ISA="mmx").stderr
    assert "mmx" in error
    assert all(name in error for name in (*loaded().isas, "none", "MASKWRIGHT_ISA"))
    with pytest.raises(mw.ArgumentError, match="mmx"):
        use_isa("mmx")


def test_best_instruction_set_is_default() -> None:
    assert loaded().isa == os.environ.get("MASKWRIGHT_ISA", loaded().isas[0])
    assert loaded().isas[-1] == "baseline"


def test_missing_file_and_broken_file_are_reasons(tmp_path: Any) -> None:
    code = "from maskwright.engine.native.kernel import loaded; print(loaded().reason)"
    missing = run_python(code, MASKWRIGHT_KERNEL=str(tmp_path / "none.so")).stdout
    assert "not built" in missing
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    assert "broken.so cannot be loaded" in run_python(code, MASKWRIGHT_KERNEL=str(broken)).stdout


def test_other_interface_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "INTERFACE", bindings.INTERFACE + 1)
    kernel = loaded.__wrapped__()
    assert kernel.module is None
    assert "another version" in kernel.reason


# -- arguments --------------------------------------------------------------------------------

# Fields of the arguments: the number of the argument, and the place in its tuple.
TENSORS = dict(zip(("q", "k", "v", "out"), range(5, 9), strict=True))
GRADIENTS = dict(zip(("dout", "dq", "dk", "dv"), range(10, 14), strict=True))
SIZES = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim")
DROPOUT = ("seed", "p", "q_offset", "q_stride", "k_offset", "k_stride")
FIELDS = {
    **{name: (0, n) for n, name in enumerate(SIZES)},
    **{name: (1, n) for n, name in enumerate(("dtype", "threads", "scale"))},
    **{
        f"spans.{name}": (2, n)
        for n, name in enumerate(("batch", "heads", "offsets", "starts", "stops"))
    },
    **{f"dropout.{name}": (3, n) for n, name in enumerate(DROPOUT)},
    **{f"{x}.data": (n, 0) for x, n in {**TENSORS, **GRADIENTS, "lse": 9, "dlse": 14}.items()},
    **{f"{x}.dim_stride": (n, 4) for x, n in {**TENSORS, **GRADIENTS}.items()},
}


class Call:
    """Valid arguments of both passes, and the arrays behind them."""

    def __init__(self) -> None:
        self.spans = span_buffers(mw.causal().on(4, heads=2).spans)
        self.arrays = [np.ones((1, 2, 4, 8), np.float32) for _ in range(8)]
        self.lse = np.zeros((1, 2, 4), np.float32)
        q, k, v, out, dout, dq, dk, dv = (
            (x.ctypes.data, *(step // 4 for step in x.strides)) for x in self.arrays
        )
        lse = (self.lse.ctypes.data, 8, 4, 1)
        sizes, settings, dropout = (1, 2, 2, 4, 4, 8, 8), (0, 1, 1.0), (0, 0.0, 0, 1, 0, 1)
        self.args: list[Any] = [sizes, settings, self.spans.args, dropout, None]
        self.args += [q, k, v, out, lse, dout, dq, dk, dv, (0, 0, 0, 0)]

    def set(self, field: str, value: Any) -> None:
        argument, place = FIELDS[field]
        values = list(self.args[argument])
        values[place] = value
        self.args[argument] = tuple(values)

    def run(self, name: str) -> None:
        function = getattr(loaded().module, name)
        function(*self.args[: 10 if name == "forward" else 15])


INVALID = [
    ("batch", 0, "batch"),
    ("q_len", 0, "q_len"),
    ("kv_len", -1, "kv_len"),
    ("heads", 0, "heads"),
    ("kv_heads", 0, "kv_heads"),
    ("heads", 3, "kv_heads"),
    ("head_dim", 0, "head_dim"),
    ("head_dim", 257, "head_dim"),
    ("v_head_dim", 0, "v_head_dim"),
    ("v_head_dim", 257, "v_head_dim"),
    ("dtype", -1, "dtype"),
    ("dtype", 3, "dtype"),
    ("threads", 0, "threads"),
    ("spans.batch", 2, "spans.batch"),
    ("spans.heads", 3, "spans.heads"),
    ("spans.offsets", 0, "spans.offsets"),
    ("spans.starts", 0, "spans.starts"),
    ("spans.stops", 0, "spans.stops"),
    ("dropout.p", 1.0, "dropout.p"),
    ("dropout.p", -0.1, "dropout.p"),
    ("dropout.p", float("nan"), "dropout.p"),
    ("dropout.k_stride", 0, "dropout"),
    ("dropout.q_offset", -1, "dropout"),
    ("scale", 1e39, "scale"),
    ("scale", float("nan"), "scale"),
    ("lse.data", 0, "lse"),
    *((f"{name}.data", 4097, f"{name}.data") for name in ("q", "k", "v", "out", "lse")),
    *((f"{name}.data", 0, f"{name}.data") for name in ("q", "k", "v", "out")),
    *((f"{name}.dim_stride", 2, f"{name}.dim_stride") for name in ("q", "k", "v", "out")),
]
INVALID_BACKWARD = [
    *((f"{name}.data", 0, f"{name}.data") for name in ("dout", "dq", "dk", "dv")),
    *((f"{name}.data", 4097, f"{name}.data") for name in ("dout", "dq", "dk", "dv", "dlse")),
    *((f"{name}.dim_stride", 2, f"{name}.dim_stride") for name in ("dout", "dq", "dk", "dv")),
]


@pytest.mark.parametrize(("field", "value", "named"), [*INVALID, *INVALID_BACKWARD])
def test_every_invalid_argument_is_named(field: str, value: Any, named: str) -> None:
    call = Call()
    call.set(field, value)
    passes = ("backward",) if (field, value, named) in INVALID_BACKWARD else ("forward", "backward")
    for name in passes:
        with pytest.raises(RuntimeError, match=named):
            call.run(name)
    assert not any((array != 1).any() for array in call.arrays)  # nothing is written


NO_TERM: Any = ((0, 0, 0, 0, 0, 0), None, None)


@pytest.mark.parametrize(
    "scores", [(-1.0, False, 0, None, ()), (0.0, False, 0, None, (NO_TERM,)), (0.0, 0, 2, None, ())]
)
def test_invalid_score_arguments_are_named(scores: Any) -> None:
    call = Call()
    call.args[4] = scores
    for name in ("forward", "backward"):
        with pytest.raises(RuntimeError, match="scores"):
            call.run(name)


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        *((n, None, TypeError) for n in (0, 1, 2, 3)),
        *((n, (1, 2), TypeError) for n in range(15)),
        *((n, ("a", 1, 1, 1, 1), TypeError) for n in (5, 8, 10)),
        (5, (2**70, 1, 1, 1, 1), OverflowError),
        (4, (0.0, False, 0, None, (NO_TERM,) * 5), ValueError),
        (4, (0.0, False, 0, None, (None,)), TypeError),
        (4, (0.0, False, 0, None, (((0, 0), None, None),)), TypeError),
        (4, (0.0, False, "a", None, ()), TypeError),
    ],
)
def test_arguments_of_other_types_are_errors(argument: int, value: Any, error: Any) -> None:
    call = Call()
    call.args[argument] = value
    with pytest.raises(error):
        call.run("backward")


def test_valid_arguments_and_their_number() -> None:
    call = Call()
    call.run("forward")
    call.run("backward")
    for count in (0, 9, 11, 14):
        with pytest.raises(TypeError):
            loaded().module.forward(*call.args[:count])


@pytest.mark.slow
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="sanitizers reserve address space")
def test_too_little_memory() -> None:
    """In a process whose address space is limited, a large call fails cleanly."""
    code = """
import resource, sys
sys.path.insert(0, ".")
from tests.engine.native.test_bindings import Call
call = Call()
call.set("kv_len", 2**40)
resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
for name in ("forward", "backward"):
    try:
        call.run(name)
    except MemoryError as error:
        print(name in str(error))
"""
    done = run_python(code)
    assert done.stdout.split() == ["True", "True"], done.stderr


# -- interrupts, threads and forks ------------------------------------------------------------

# A signal after 0.1 s of processor time, which is spent in the call, however slow the machine is.
INTERRUPT = """
import signal
signal.signal(signal.SIGVTALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_VIRTUAL, 0.1)
"""
FORWARD = """
import numpy as np, maskwright as mw
from maskwright.engine.backends import native
from maskwright.engine.call import AttentionOptions, Mode, read_call
rows, keys = {rows}, {keys}
x = np.ones((1, 1, keys, 64), np.float32)
bound = mw.everything().on(rows, keys)
call = read_call((x[:, :, :rows], x, x), bound, AttentionOptions(1.0), mode=Mode.NUMPY)
{interrupt}
for _ in range({calls}):
    native.forward_numpy(call)
print("completed")
"""
BACKWARD = f"""
import torch, maskwright as mw
from maskwright.engine.backends import native
from maskwright.engine.call import AttentionOptions, Mode, read_call
n = 60_000
x = torch.ones(1, 1, n, 64)
call = read_call((x, x, x), mw.everything(), AttentionOptions(1.0), mode=Mode.EAGER)
{INTERRUPT}
native.backward(call, x, torch.zeros(1, 1, n), x, None)
print("completed")
"""
SCRIPTS = {
    "forward": FORWARD.format(rows=100_000, keys=100_000, calls=1, interrupt=INTERRUPT),
    "decode": FORWARD.format(rows=4, keys=1_000_000, calls=1_000, interrupt=INTERRUPT),
    "backward": BACKWARD,
}


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_one_long_head_can_be_interrupted(script: str, threads: str) -> None:
    done = run_python(SCRIPTS[script], OMP_NUM_THREADS=threads)
    assert "KeyboardInterrupt" in done.stderr
    assert "completed" not in done.stdout
    assert done.returncode != 0


def test_signal_handler_that_returns_does_not_stop_call() -> None:
    code = """
import signal, numpy as np
seen = []
signal.signal(signal.SIGVTALRM, lambda *_: seen.append(1))
import maskwright as mw
from maskwright.engine.backends import native
from maskwright.engine.call import AttentionOptions, Mode, read_call
n = 12_000
x = np.ones((1, 1, n, 64), np.float32)
call = read_call((x, x, x), mw.everything(), AttentionOptions(1.0), mode=Mode.NUMPY)
signal.setitimer(signal.ITIMER_VIRTUAL, 0.05)
while not seen:
    out, _ = native.forward_numpy(call)
print(np.allclose(out, 1.0), len(seen))
"""
    assert run_python(code, OMP_NUM_THREADS="1").stdout.split() == ["True", "1"]


# The handler runs in a call of the kernel, which checks for signals every 0.1 s: a call takes longer.
HANDLER_THAT_ATTENDS = """
import itertools, os, signal, sys, threading, torch, maskwright as mw
threads, backward = int(sys.argv[1]), sys.argv[2] == "backward"
torch.set_num_threads(threads)
nested, busy = [], False

@torch.enable_grad()  # which a backward pass disables
def attend(length):
    q = torch.linspace(-1, 1, length * 64).reshape(1, 1, length, 64).requires_grad_(backward)
    out = mw.attention(q, q, q, mw.causal())
    return torch.autograd.grad(out.square().sum(), q)[0] if backward else out

def handler(*_):
    global busy
    if not busy:
        busy = True
        nested.append(attend(300))
        busy = False

small, large = attend(300), attend(6000)
signal.signal(signal.SIGUSR1, handler)
done = threading.Event()

def send():
    while not done.wait(0.02):
        os.kill(os.getpid(), signal.SIGUSR1)

sender = threading.Thread(target=send, daemon=True)
sender.start()
while len(nested) < 3:
    assert torch.equal(attend(6000), large)
done.set()
sender.join()
assert all(torch.equal(x, small) for x in nested)
print("equal")
"""


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_signal_handler_may_call_attention(name: str, threads: str) -> None:
    done = run_python(HANDLER_THAT_ATTENDS, threads, name)
    assert done.stdout.strip() == "equal", (done.returncode, done.stderr)


FORK = """
import os, torch, maskwright as mw
from maskwright.engine.backends import native
from maskwright.engine.native import kernel as bindings
from maskwright.engine.call import AttentionOptions, Mode, read_call
torch.set_num_threads(2)
q = torch.randn(1, 4, 500, 16)
call = read_call((q, q, q), mw.causal(), AttentionOptions(), mode=Mode.EAGER)
before, _ = native.forward(call)
borrows = bindings.loaded().borrows_threads
child = os.fork()
if not child:
    bindings.borrow_threads.cache_clear()
    bindings.borrow_threads()  # must not enable the pool of the parent
    after, _ = native.forward(call)
    os._exit(0 if torch.equal(before, after) and not bindings.loaded().borrows_threads else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert bindings.loaded().borrows_threads == borrows
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_forked_child_uses_its_own_threads() -> None:
    done = run_python(FORK)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_threads_are_borrowed_from_pytorch_on_first_use() -> None:
    code = """
import maskwright as mw, torch
from maskwright.engine.native.kernel import loaded
before = loaded().borrows_threads
q = torch.ones(1, 1, 4, 2)
mw.attention(q, q, q)
print(before, loaded().borrows_threads)
"""
    expected = ["False", str("linux" in sys.platform)]
    assert run_python(code).stdout.split() == expected
