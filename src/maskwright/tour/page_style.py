"""How the page looks: light or dark as the reader's system is, and narrow where the window is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maskwright.draw.palette import DARK, LIGHT

if TYPE_CHECKING:
    from maskwright.draw.palette import Theme


def _colours(theme: Theme, code: dict[str, str]) -> str:
    own = "".join(f"--{name}:{colour};" for name, colour in code.items())
    return (
        f":root{{--ground:{theme.ground};--ink:{theme.text};--faint:{theme.faint};"
        f"--line:{theme.line};--mark:{theme.outline};{own}}}\n"
    )


_LIGHT: Final = {
    "box": "#f3f5f7",
    "link": "#0a4da3",
    "keyword": "#6b2fa0",
    "text": "#8a4b08",
    "number": "#1d5a96",
}
_DARK: Final = {
    "box": "#1a2129",
    "link": "#8cc0ff",
    "keyword": "#c69cf0",
    "text": "#f5a742",
    "number": "#6cb2f5",
}

STYLE: Final = (
    _colours(LIGHT, _LIGHT)
    + f"@media (prefers-color-scheme:dark){{{_colours(DARK, _DARK)}}}"
    + """
*{box-sizing:border-box}
html{scroll-padding-top:1rem}
body{margin:0 auto;padding:1rem;max-width:54rem;background:var(--ground);color:var(--ink);
font:1.0625rem/1.6 system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,"Noto Sans",
"PingFang SC","Microsoft YaHei","Noto Sans CJK SC",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.9rem;line-height:1.25;margin:1rem 0 .5rem}
h2{font-size:1.35rem;line-height:1.3;margin:0 0 .75rem}
a{color:var(--link)}
.skip{position:absolute;left:-999rem}
.skip:focus{position:static}
.theory{font-size:1.15rem;border-left:.25rem solid var(--line);padding-left:1rem;margin-left:0}
nav{border:1px solid var(--line);border-radius:8px;padding:1rem 1rem .5rem}
nav h2{font-size:1.1rem;margin:0}
nav ol{columns:2 16rem;padding-left:2rem;margin:.5rem 0}
nav li{padding:.2rem 0}
section{border-top:1px solid var(--line);margin-top:2.5rem;padding-top:1.75rem}
pre,.picture{margin:1rem 0;overflow-x:auto;border-radius:8px}
pre{padding:.8rem 1rem;font:.875rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,
"DejaVu Sans Mono",monospace;overflow-wrap:normal}
pre code,pre samp,dd code{font:inherit}
.code{background:var(--box)}
.output{white-space:pre-wrap;border:1px solid var(--line);border-left:.3rem solid var(--link)}
.picture{border:1px solid var(--line)}
.picture svg{display:block}
.keyword{color:var(--keyword)}.text{color:var(--text)}.number{color:var(--number)}
.comment{color:var(--faint)}
.missing{border-left:.3rem solid var(--mark);padding-left:1rem}
details{margin:-.5rem 0 1rem;color:var(--faint);font-size:.95rem}
summary{cursor:pointer;padding:.25rem 0}
dl{margin:1rem 0}
dt{margin-top:1rem}
dd{margin:.25rem 0 0;padding:.5rem .8rem;background:var(--box);border-radius:8px;
font:.875rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.back{margin:1.5rem 0 0;font-size:.95rem}
footer{border-top:1px solid var(--line);margin-top:2.5rem;color:var(--faint);font-size:.95rem}
:focus-visible{outline:2px solid var(--mark);outline-offset:2px}
main:focus{outline:none}
@media print{.skip,.back,details{display:none}}
"""
)
