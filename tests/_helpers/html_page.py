"""HTML pages as tests read them."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """The elements of a page with their text. Asserts that all elements are closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self._within: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held: list[str] = []
        self.elements.append((tag, {name: value or "" for name, value in attrs}, held))
        if tag not in VOID:
            self.open.append(tag)
            self._within.append(held)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}, []))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._within.pop()

    def handle_data(self, data: str) -> None:
        for held in self._within:
            held.append(data)

    def all(self, tag: str, **attributes: str) -> list[tuple[dict[str, str], str]]:
        """The attributes and the text of the elements with this tag and these attributes."""
        return [
            (own, " ".join("".join(held).split()))
            for name, own, held in self.elements
            if name == tag and all(own.get(key) == value for key, value in attributes.items())
        ]

    def raw(self, tag: str) -> list[str]:
        """The contents of the elements with this tag, with their spaces."""
        return ["".join(held) for name, _, held in self.elements if name == tag]

    def words(self, tag: str) -> list[str]:
        """The text of the elements with this tag."""
        return [text for _, text in self.all(tag)]
