"""Audit every fault of the zoo and its healthy twin, print the table, and write it into the docs."""

from __future__ import annotations

import sys

import torch

from docs.generate import HERE, filled
from tests.zoo.census import all_faults, census, run, summary, table


def main(words: list[str]) -> int:
    """Audit the faults whose names hold all the words; without words, all of them."""
    torch.set_num_threads(1)  # models this small are slower on several
    faults = [f for f in all_faults() if all(word in f.name for word in words)]
    entries = census(faults)
    for entry in entries:
        if not (entry.found and entry.named and entry.placed is not False):
            fault, report = entry.fault, entry.report
            what = "not found" if not entry.found else f"{report.cause} in {report.layer}"
            print(f"{fault.name}: {what}; it is {' or '.join(fault.causes)} in {fault.layer}")
    alarms = [(f.name, report) for f in faults if not (report := run(f.healthy)).ok]
    for name, report in alarms:
        print(f"false alarm, {name}:\n{report}")
    counts = {
        what: f"{some} of {whole} ({some / max(whole, 1):.0%})"
        for what, (some, whole) in summary(entries).items()
    }
    counts["false alarms on healthy twins"] = f"{len(alarms)} of {len(faults)}"
    counts["most passes"] = str(max((e.report.passes for e in entries), default=0))
    told = "\n".join(f"- {what}: {count}" for what, count in counts.items())
    print(f"{table(entries)}\n\n{told}")
    if not words:
        page = HERE / "audit.md"
        page.write_text(filled(page.read_text(), "zoo", f"{table(entries)}\n\n{told}", "audit-zoo"))
    return 1 if alarms else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
