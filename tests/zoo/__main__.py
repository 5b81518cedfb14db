"""Audit every fault of the zoo and its healthy twin, and print the table."""

from __future__ import annotations

import sys

from tests.zoo.census import all_faults, census, run, summary, table


def main(words: list[str]) -> int:
    """Audit the faults whose names hold all the words; without words, all of them."""
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
    print(table(entries))
    for what, (some, all_) in summary(entries).items():
        print(f"{what}: {some} of {all_} ({some / max(all_, 1):.0%})")
    print(f"false alarms: {len(alarms)} of {len(faults)}")
    passes = max((e.report.passes for e in entries), default=0)
    print(f"most passes: {passes}; {sum(e.seconds for e in entries):.0f} s for the sick ones")
    return 1 if alarms else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
