"""Audit every fault and its healthy twin, print the table, and write it into docs/audit.md.

`python -m tests.auditing.faults [--dtype bfloat16] [WORD ...]`: without words, all faults in float32,
and then in bfloat16 and float16.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import torch

from docs.generate import HERE, filled
from tests.auditing.faults.census import (
    DTYPES,
    Entry,
    all_faults,
    audit,
    in_dtype,
    shows_symptom,
    summary,
    table,
)

if TYPE_CHECKING:
    from tests.auditing.faults.registry import Fault


def run(faults: list[Fault], dtype: torch.dtype | None) -> tuple[list[Entry], int, dict[str, str]]:
    """Audits faults and twins in a dtype; prints what is wrong. Returns entries, alarms, counts."""
    if dtype is not None:
        faults = [fault for fault in faults if shows_symptom(fault, dtype)]
    entries, alarms, silent = [], 0, 0
    for fault in faults:
        entry = Entry(fault, audit(in_dtype(fault.build(True), dtype)))
        entries.append(entry)
        if not (entry.found and entry.named and entry.placed is not False):
            what = f"{entry.report.cause} in {entry.report.layer}" if entry.found else "not found"
            print(
                f"{fault.name}: {what}; it is {' or '.join(fault.causes)} in {fault.layer}",
                flush=True,
            )
        twin = audit(in_dtype(fault.build(False), dtype))
        if twin.findings:
            alarms += 1
            print(f"false positive, {fault.name}:\n{twin}", flush=True)
        silent += not entry.found and entry.report.ok
    counts = {
        what: f"{some} of {whole} ({some / max(whole, 1):.1%})"
        for what, (some, whole) in summary(entries).items()
    }
    counts["not found, and reported as passed"] = str(silent)
    counts["false positives on healthy twins"] = f"{alarms} of {len(faults)}"
    counts["largest number of passes"] = str(max((e.report.passes for e in entries), default=0))
    return entries, alarms, counts


def main() -> int:
    """Runs the audits that the command line selects."""
    parser = argparse.ArgumentParser(prog="python -m tests.auditing.faults", description=__doc__)
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("words", nargs="*", metavar="WORD", help="in the names of the faults")
    given = parser.parse_args()
    torch.set_num_threads(1)  # faster for models this small
    faults = [f for f in all_faults() if all(word in f.name for word in given.words)]
    names = [given.dtype] if given.dtype else ["float32"] if given.words else [*DTYPES]
    texts, alarms = [], 0
    for name in names:
        entries, found, counts = run(faults, DTYPES[name])
        alarms += found
        lines = "\n".join(f"- {what}: {count}" for what, count in counts.items())
        texts.append(f"**{name}**\n\n{lines}")
        if name == names[0]:
            texts.insert(0, table(entries))
    text = "\n\n".join(texts)
    print(text)
    if len(names) == len(DTYPES) and not given.words:
        page = HERE / "audit.md"
        page.write_text(filled(page.read_text(), "faults", text, "audit-faults"))
    return 1 if alarms else 0


if __name__ == "__main__":
    raise SystemExit(main())
