// Suggestions under the caret of a text box: arrow keys choose, Enter or Tab takes, Escape closes.

import { h } from "./dom.js";

const SHOWN = 6;

/**
 * Let `list` (a listbox) suggest names for the word before the caret of `box`.
 * `find(word)` gives [{name, says, …}], `take(item, start, stop)` puts one in place of the word,
 * `place(start)` gives {left, top} under the word, `opened(n)` hears how many there are.
 */
export function completion({ box, list, find, take, place, opened }) {
  let items = [];
  let chosen = 0;
  let first = 0; // of those that are shown: the list has no scrollbar, it moves along
  let word = { start: 0, stop: 0 };

  function open(all = false) {
    word = wordBefore(box);
    items = box.selectionStart === box.selectionEnd && (all || word.text) ? find(word.text) : [];
    if (items.length === 0) return close();
    const { left, top } = place(word.start);
    first = 0;
    choose(0);
    list.hidden = false;
    list.style.top = `${top}px`;
    list.style.left = `${Math.max(0, Math.min(left, list.parentElement.clientWidth - list.offsetWidth))}px`;
    opened(items.length);
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
        "aria-selected": String(n === chosen),
        "aria-setsize": items.length,
        "aria-posinset": n + 1,
        onpointerdown: (event) => event.preventDefault(), // the box keeps the focus
        onclick: () => accept(n),
      },
      h("span", { class: "suggestion-name" }, item.name),
      h("span", { class: "suggestion-says" }, item.says),
    );
  }

  function choose(n) {
    chosen = (n + items.length) % items.length;
    first = Math.min(Math.max(first, chosen - SHOWN + 1), chosen);
    const shown = Math.min(SHOWN, items.length - first);
    list.replaceChildren(...Array.from({ length: shown }, (_, i) => row(first + i)));
    box.setAttribute("aria-activedescendant", `suggestion-${chosen}`);
  }

  function accept(n) {
    const item = items[n];
    close();
    take(item, word.start, word.stop);
  }

  const ACTIONS = {
    ArrowDown: () => choose(chosen + 1),
    ArrowUp: () => choose(chosen - 1),
    Enter: () => accept(chosen),
    Tab: () => accept(chosen),
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
      choose(Math.min(Math.max(chosen + Math.sign(event.deltaY), 0), items.length - 1));
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
