"""Loading the kernel, the layout of its arguments, its error codes, and its threads."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.engine import native as bindings
from maskwright.engine.backends.native import run, span_buffers
from maskwright.engine.native import KernelArgs, ScoreArgs, loaded, use_isa
from tests._helpers.native_kernel import needs_kernel
from tests._helpers.run_python import run_python

pytestmark = needs_kernel


PRINT_ISA = """
from maskwright.engine.native import loaded
print(loaded().isa, loaded().library is not None)
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
    code = "from maskwright.engine.native import loaded; print(loaded().reason)"
    missing = run_python(code, MASKWRIGHT_KERNEL=str(tmp_path / "none.so")).stdout
    assert "not built" in missing
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    assert "broken.so cannot be loaded" in run_python(code, MASKWRIGHT_KERNEL=str(broken)).stdout


def test_python_and_c_agree_on_every_field() -> None:
    fields = bindings._library_fields(loaded().library.maskwright_field)
    assert fields[:-1] == list(bindings.leaf_fields(KernelArgs))
    assert fields[-1] == ("", 0, ctypes.sizeof(KernelArgs))
    assert ("dropout.k_stride", KernelArgs.dropout.offset + 40, 8) in fields


def test_packed_arguments_are_structure() -> None:
    values = [
        float(i) if name in ("scale", "dropout.p") else i
        for i, (name, *_) in enumerate(bindings.leaf_fields(KernelArgs))
    ]
    args = KernelArgs.from_buffer_copy(bindings.pack_args(*values))
    assert (args.threads, args.scale, args.dropout.seed, args.dlse.row_stride) == (
        8,
        9.0,
        15,
        len(values) - 1,
    )
    forward_only = [name for name, *_ in bindings.leaf_fields(KernelArgs)].index("dout.data")
    assert len(values) - forward_only == len(bindings.NO_BACKWARD)


def test_two_swapped_fields_are_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name, _ in KernelArgs._fields_]
    first, second = names.index("q_len"), names.index("kv_len")
    fields = list(KernelArgs._fields_)
    fields[first], fields[second] = fields[second], fields[first]
    swapped = type("KernelArgs", (ctypes.Structure,), {"_fields_": fields})
    monkeypatch.setattr(bindings, "KernelArgs", swapped)
    monkeypatch.setattr(bindings, "_declare", lambda library: library)
    monkeypatch.setattr(bindings, "_library_fields", lambda _: bindings_fields)
    bindings_fields = [*bindings.leaf_fields(KernelArgs), ("", 0, ctypes.sizeof(KernelArgs))]
    kernel = loaded.__wrapped__()
    assert kernel.library is None
    assert "another version" in kernel.reason


# -- arguments --------------------------------------------------------------------------------


class Call:
    """Valid arguments of both passes, and the arrays behind them."""

    def __init__(self) -> None:
        self.bound = mw.causal().on(4, heads=2)
        self.spans = span_buffers(self.bound.spans)
        self.arrays = [np.ones((1, 2, 4, 8), np.float32) for _ in range(8)]
        self.lse = np.zeros((1, 2, 4), np.float32)
        q, k, v, out, dout, dq, dk, dv = (
            (x.ctypes.data, *(step // 4 for step in x.strides)) for x in self.arrays
        )
        rows = (self.lse.ctypes.data, 8, 4, 1)
        sizes = (1, 2, 2, 4, 4, 8, 8, bindings.FLOAT32, 1, 1.0)
        dropout = (0, 0.0, 0, 1, 0, 1)
        self.args = KernelArgs(
            *(*sizes, self.spans.args, dropout, None),
            *(q, k, v, out, rows, dout, dq, dk, dv, (0, 0, 0, 0)),
        )


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
    ("spans.offsets", None, "spans.offsets"),
    ("spans.starts", None, "spans.starts"),
    ("spans.stops", None, "spans.stops"),
    ("dropout.p", 1.0, "dropout.p"),
    ("dropout.p", -0.1, "dropout.p"),
    ("dropout.p", float("nan"), "dropout.p"),
    ("dropout.k_stride", 0, "dropout"),
    ("dropout.q_offset", -1, "dropout"),
    ("scale", 1e39, "scale"),
    ("scale", float("nan"), "scale"),
    ("lse.data", None, "lse"),
    *((f"{name}.data", 4097, f"{name}.data") for name in ("q", "k", "v", "out", "lse")),
    *((f"{name}.data", None, f"{name}.data") for name in ("q", "k", "v", "out")),
    *((f"{name}.dim_stride", 2, f"{name}.dim_stride") for name in ("q", "k", "v", "out")),
]
INVALID_BACKWARD = [
    *((f"{name}.data", None, f"{name}.data") for name in ("dout", "dq", "dk", "dv")),
    *((f"{name}.data", 4097, f"{name}.data") for name in ("dout", "dq", "dk", "dv", "dlse")),
    *((f"{name}.dim_stride", 2, f"{name}.dim_stride") for name in ("dout", "dq", "dk", "dv")),
]


def set_field(args: KernelArgs, name: str, value: Any) -> None:
    *path, last = name.split(".")
    for part in path:
        args = getattr(args, part)
    setattr(args, last, value)


@pytest.mark.parametrize(("field", "value", "named"), [*INVALID, *INVALID_BACKWARD])
def test_every_invalid_argument_is_named(field: str, value: Any, named: str) -> None:
    call = Call()
    set_field(call.args, field, value)
    passes = ("backward",) if (field, value, named) in INVALID_BACKWARD else ("forward", "backward")
    for name in passes:
        with pytest.raises(RuntimeError, match=named):
            run(name, bytes(call.args))
    assert not any((array != 1).any() for array in call.arrays)  # nothing is written


@pytest.mark.parametrize(
    ("field", "value"), [("softcap", -1.0), ("num_terms", 5), ("num_terms", -1), ("num_terms", 1)]
)
def test_invalid_score_arguments_are_named(field: str, value: Any) -> None:
    call, scores = Call(), ScoreArgs()
    setattr(scores, field, value)
    call.args.scores = ctypes.addressof(scores)
    for name in ("forward", "backward"):
        with pytest.raises(RuntimeError, match="scores"):
            run(name, bytes(call.args))


def test_every_error_code_has_own_text() -> None:
    texts = []
    for code in range(16, 64):
        if (text := loaded().library.maskwright_error(code)) is None:
            break
        texts.append(text)
    assert len(texts) == len(set(texts)) == 21
    assert loaded().library.maskwright_error(0) is None


def test_valid_arguments_and_unknown_codes() -> None:
    call = Call()
    run("forward", bytes(call.args))
    run("backward", bytes(call.args))
    with pytest.raises(RuntimeError, match="error code 999"):
        bindings.raise_error("forward", 999)


@pytest.mark.slow
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="sanitizers reserve address space")
def test_too_little_memory() -> None:
    """In a process whose address space is limited, a large call fails cleanly."""
    code = """
import resource, numpy as np
from maskwright.engine.backends.native import run
from maskwright.engine.native import KernelArgs
import sys; sys.path.insert(0, ".")
from tests.engine.native.test_bindings import Call
call = Call()
call.args.kv_len = 2**40
resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
for name in ("forward", "backward"):
    try:
        run(name, bytes(call.args))
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
from maskwright.engine import native as bindings
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
from maskwright.engine.native import loaded
before = loaded().borrows_threads
q = torch.ones(1, 1, 4, 2)
mw.attention(q, q, q)
print(before, loaded().borrows_threads)
"""
    expected = ["False", str("linux" in sys.platform)]
    assert run_python(code).stdout.split() == expected
