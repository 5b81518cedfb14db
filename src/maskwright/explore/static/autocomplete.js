// Suggestions at the caret of a text field: arrow keys select, Enter or Tab accepts, Escape closes.

import { h } from "./dom.js";

const MAX_SHOWN = 6;

/**
 * Let `list` (a listbox) suggest completions of the word before the caret of `box`.
 * `find(word)` returns [{label, summary, …}], `accept(item, start, stop)` replaces the word,
 * `position(start)` returns {left, top} below the word, `onOpen(n)` gets the number of suggestions.
 */
export function autocomplete({ box, list, find, accept, position, onOpen }) {
  let items = [];
  let selected = 0;
  let first = 0; // of the rows that are shown: the list scrolls without a scrollbar
  let word = { start: 0, stop: 0 };

  function open(all = false) {
    word = wordBefore(box);
    items = box.selectionStart === box.selectionEnd && (all || word.text) ? find(word.text) : [];
    if (items.length === 0) return close();
    const { left, top } = position(word.start);
    first = 0;
    select(0);
    list.hidden = false;
    list.style.top = `${top}px`;
    list.style.left = `${Math.max(0, Math.min(left, list.parentElement.clientWidth - list.offsetWidth))}px`;
    onOpen(items.length);
  }

  function close() {
    items = [];
    list.hidden = true;
    box.removeAttribute("aria-activedescendant");
  }

  function row(n) {
    const item = items[n];
    return h(
      "li",
      {
        class: "suggestion",
        role: "option",
        id: `suggestion-${n}`,
        "aria-selected": String(n === selected),
        "aria-setsize": items.length,
        "aria-posinset": n + 1,
        onpointerdown: (event) => event.preventDefault(), // the box keeps the focus
        onclick: () => acceptItem(n),
      },
      h("span", { class: "suggestion-name" }, item.label),
      h("span", { class: "suggestion-summary" }, item.summary),
    );
  }

  function select(n) {
    selected = (n + items.length) % items.length;
    first = Math.min(Math.max(first, selected - MAX_SHOWN + 1), selected);
    const shown = Math.min(MAX_SHOWN, items.length - first);
    list.replaceChildren(...Array.from({ length: shown }, (_, i) => row(first + i)));
    box.setAttribute("aria-activedescendant", `suggestion-${selected}`);
  }

  function acceptItem(n) {
    const item = items[n];
    close();
    accept(item, word.start, word.stop);
  }

  const ACTIONS = {
    ArrowDown: () => select(selected + 1),
    ArrowUp: () => select(selected - 1),
    Enter: () => acceptItem(selected),
    Tab: () => acceptItem(selected),
    Escape: close,
  };

  box.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      open(true);
      return;
    }
    if (items.length === 0 || event.shiftKey || !Object.hasOwn(ACTIONS, event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    ACTIONS[event.key]();
  });
  list.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      select(Math.min(Math.max(selected + Math.sign(event.deltaY), 0), items.length - 1));
    },
    { passive: false },
  );
  box.addEventListener("blur", close);
  box.addEventListener("click", close);
  return { open, close };
}

function wordBefore(box) {
  const stop = box.selectionStart;
  const before = box.value.slice(0, stop);
  const text = /[A-Za-z_]\w*$/.exec(before)?.[0] ?? "";
  const inWord = /^\w/.test(box.value.slice(stop));
  return { text: inWord ? "" : text, start: stop - text.length, stop };
}
