"""Makes the fonts of PNG pictures: a subset of DejaVu Sans, renamed as its license asks for.

Usage: python scripts/subset_fonts.py FOLDER-OF-DEJAVU-FONTS, with fontTools installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont

TARGET = Path(__file__).parents[1] / "src" / "maskwright" / "draw" / "fonts"
NAMES = (1, 3, 4, 6, 16)  # entries of the name table that contain the name of the font
BOLD = [  # titles: Latin, punctuation, superscripts, arrows, mathematics
    *((0x20, 0x7E), (0xA0, 0x17F), (0x218, 0x21B), (0x300, 0x30C), (0x327, 0x328)),
    *((0x1D40, 0x1D40), (0x2010, 0x2027), (0x2070, 0x209C), (0x2190, 0x21FF), (0x2200, 0x22FF)),
    (0xFFFD, 0xFFFD),
]
REGULAR = [  # also Greek, Cyrillic, letter-like characters, shapes
    *BOLD,
    *((0x370, 0x3FF), (0x400, 0x45F), (0x1E80, 0x1E85), (0x2030, 0x203A), (0x2044, 0x2044)),
    *((0x20AC, 0x20AC), (0x2102, 0x2102), (0x2115, 0x2115), (0x211D, 0x211D), (0x2122, 0x2122)),
    *((0x2308, 0x230B), (0x2422, 0x2423), (0x2580, 0x25FF), (0x2713, 0x2718)),
]


def main(folder: Path) -> None:
    """Writes the subsets of the DejaVu fonts in `folder`."""
    for name, ranges in (("DejaVuSans", REGULAR), ("DejaVuSans-Bold", BOLD)):
        font = TTFont(folder / f"{name}.ttf", recalcTimestamp=False)
        options = subset.Options(
            hinting=False,
            notdef_outline=True,  # the box for missing characters
            layout_features=["mark", "mkmk", "ccmp"],
            name_IDs=[*NAMES, 0, 2, 5, 13, 14],
        )
        options.drop_tables += ["FFTM", "kern"]
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=[c for low, high in ranges for c in range(low, high + 1)])
        subsetter.subset(font)
        for record in font["name"].names:
            if record.nameID in NAMES:
                text = record.toUnicode().replace("DejaVu Sans", "Maskwright Sans")
                record.string = text.replace("DejaVuSans", "MaskwrightSans")
        font.save(TARGET / f"{name.replace('DejaVu', 'Maskwright')}.ttf")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
