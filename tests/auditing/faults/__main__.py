"""Audit every fault and its healthy twin in float32, bfloat16 and float16, and record the results.

`python -m tests.auditing.faults [--dtype bfloat16] [WORD ...]`: with words, only faults whose names
contain them. All faults in all dtypes are recorded in census.jsonl, from which docs/audit.md is made.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
import transformers

import maskwright as mw
from docs.generate import HERE, filled
from maskwright._atomic_write import write_atomic
from tests.auditing.faults.census import (
    DTYPES,
    RECORDS,
    Record,
    all_faults,
    examine,
    page,
    read_records,
    summary,
)


def show(record: Record) -> None:
    """Prints what is wrong about a record."""
    fault = next(f for f in all_faults() if f.name == record.fault)
    if record.exists and not (record.found and record.named and record.placed is not False):
        said = f"{record.cause}, layer named: {record.placed}" if record.found else "not found"
        print(
            f"{record.fault}: {said}; it is {' or '.join(fault.causes)} in {fault.layer}",
            flush=True,
        )
    for alarm in record.alarms:
        print(f"false positive, {record.fault}:\n{alarm}", flush=True)


def main() -> int:
    """Runs the audits that the command line selects."""
    parser = argparse.ArgumentParser(prog="python -m tests.auditing.faults", description=__doc__)
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--record", type=Path, help="append to this file")
    parser.add_argument("words", nargs="*", metavar="WORD", help="in the names of the faults")
    given = parser.parse_args()
    torch.set_num_threads(1)  # faster for models this small
    faults = [f for f in all_faults() if all(word in f.name for word in given.words)]
    dtypes = [given.dtype] if given.dtype else ["float32"] if given.words else [*DTYPES]
    whole = len(dtypes) == len(DTYPES) and not given.words
    path = given.record or (RECORDS.with_suffix(".new") if whole else None)
    if path is not None and not path.exists():
        versions = {m.__name__: m.__version__ for m in (mw, torch, transformers)}
        path.write_text(json.dumps(versions) + "\n")
    records = []
    for dtype in dtypes:
        for fault in faults:
            record = examine(fault, dtype)
            records.append(record)
            show(record)
            if path is not None:
                with path.open("a") as file:
                    file.write(json.dumps(asdict(record)) + "\n")
        lines = [f"{what}: {n}" for what, n in summary(records[-len(faults) :]).items()]
        print(f"{dtype}:\n" + "\n".join(lines), flush=True)
    if whole and given.record is None:
        assert path is not None
        path.replace(RECORDS)
        text = HERE / "audit.md"
        content = filled(text.read_text(), "faults", page(read_records()), "audit-faults")
        write_atomic(text, content)
    return 1 if any(record.alarms for record in records) else 0


if __name__ == "__main__":
    raise SystemExit(main())
