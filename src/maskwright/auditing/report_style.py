"""How an audit's page looks: by day and by night, on wide windows and narrow ones."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --box: #f3f5f7; --ink: #1c2128; --quiet: #525b66; --line: #8b949e;
  --good: #0f5c27; --bad: #9b1022; --link: #0a4da3;
  --faint: #7991c1; --weak: #5475b2; --strong: #345b9d; --full: #16335f;
  --leak: #b3152a; --wild: #6b3fa0; --aside: #9aa2ab;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0f1419; --box: #1a2129; --ink: #e4e9ee; --quiet: #a9b3bd; --line: #66707b;
    --good: #6fd08c; --bad: #ff9aa5; --link: #8cc0ff;
    --faint: #4a68a0; --weak: #6b8cc9; --strong: #97b5ea; --full: #d3e2ff;
    --leak: #ff8592; --wild: #c9a2f5; --aside: #5d6670;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere;
}
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 2rem; }
h3 { font-size: 1.1rem; } h4 { font-size: 1rem; }
h1, h2, h3, h4 { line-height: 1.3; }
a { color: var(--link); }
.good { color: var(--good); } .bad { color: var(--bad); } .quiet { color: var(--quiet); }
code, pre { font: .9rem/1.45 ui-monospace, monospace; }
pre { background: var(--box); padding: .75rem; overflow-x: auto; overflow-wrap: normal; }
.finding { border-left: .25rem solid var(--bad); background: var(--box); }
.finding { padding: .1rem 1rem .5rem; margin: 1rem 0; }
.finding pre { background: var(--paper); }
.report { border-top: .15rem solid var(--line); margin-top: 2.5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; }
dt { color: var(--quiet); } dd { margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; overflow-wrap: break-word; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem .75rem .3rem 0; }
th, td { border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.pair { display: flex; flex-wrap: wrap; gap: 1rem 2rem; }
figure { margin: 0; flex: 1 1 16rem; max-width: 30rem; }
figcaption { padding-top: .25rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font-family: system-ui, sans-serif; }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; list-style: none; }
.key svg { display: inline-block; width: 1rem; height: 1rem; vertical-align: -.15rem; margin-right: .4rem; }
.s1 { fill: var(--faint); } .s2 { fill: var(--weak); } .s3 { fill: var(--strong); }
.s4 { fill: var(--full); } .s5 { fill: var(--wild); } .s6 { fill: var(--leak); }
.s7 { fill: var(--paper); } .s8 { fill: var(--aside); }
.frame { fill: none; stroke: var(--line); } .rule { fill: none; stroke: var(--paper); stroke-width: .06; }
.cross { fill: none; stroke: var(--paper); stroke-width: .16; }
.diamond { fill: none; stroke: var(--ink); stroke-width: .12; }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; } }
"""
