"""Audit every fault and its healthy twin, print the table, and write it into docs/audit.md."""

from __future__ import annotations

import sys

import torch

from docs.generate import HERE, filled
from tests.auditing.faults.census import Entry, all_faults, audit, summary, table


def main(words: list[str]) -> int:
    """Audit the faults whose names contain all the words; without words, all of them."""
    torch.set_num_threads(1)  # faster for models this small
    faults = [f for f in all_faults() if all(word in f.name for word in words)]
    entries = [Entry(fault, audit(fault.build(True))) for fault in faults]
    for entry in entries:
        if not (entry.found and entry.named and entry.placed is not False):
            fault, report = entry.fault, entry.report
            what = f"{report.cause} in {report.layer}" if entry.found else "not found"
            print(f"{fault.name}: {what}; it is {' or '.join(fault.causes)} in {fault.layer}")
    false = [(f.name, report) for f in faults if not (report := audit(f.build(False))).ok]
    for name, report in false:
        print(f"false positive, {name}:\n{report}")
    counts = {
        what: f"{some} of {whole} ({some / max(whole, 1):.0%})"
        for what, (some, whole) in summary(entries).items()
    }
    counts["false positives on healthy twins"] = f"{len(false)} of {len(faults)}"
    counts["largest number of passes"] = str(max((e.report.passes for e in entries), default=0))
    lines = "\n".join(f"- {what}: {count}" for what, count in counts.items())
    print(f"{table(entries)}\n\n{lines}")
    if not words:
        page = HERE / "audit.md"
        text = filled(page.read_text(), "faults", f"{table(entries)}\n\n{lines}", "audit-faults")
        page.write_text(text)
    return 1 if false else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
