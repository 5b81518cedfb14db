// What every panel is built from: elements, words in the chosen language, and asking the server.

import { add } from "../words.js";
import { h } from "../dom.js";

/** An element. `word`, `label` and `hint` are keys of words: its text, its name, its placeholder. */
export function make(tag, given = {}, ...children) {
  const { word, label, hint, text, on = {}, ...attributes } = given;
  const listeners = Object.fromEntries(
    Object.entries(on).map(([event, listener]) => [`on${event}`, listener]),
  );
  const words = { "data-t": word, "data-t-label": label, "data-t-placeholder": hint };
  return h(tag, { ...attributes, ...words, ...listeners }, text ?? null, ...children);
}

/** What the server says in several languages, in the chosen one, or in English. */
export function spoken(said, lang) {
  if (said === null || said === undefined || typeof said === "string") return said ?? "";
  return said[lang] ?? said.en ?? "";
}

const PATIENCE = 500; // milliseconds before the page says that it waits

/** Is one of these keys among those that changed? */
export function changedAny(changed, ...keys) {
  return keys.some((key) => changed.has(key));
}

/**
 * Ask the server while a panel is shown, and again when what it would ask has changed.
 *
 * `request()` gives {name: [endpoint, body]}, or null when there is nothing to ask; `draw(answers)`
 * gets {name: answer}, or {name: {failed: error}} for the names that `mayFail(name)`. `look()` is
 * what else the drawing depends on. A late answer to an earlier question is dropped. What is drawn
 * stays, greyed, while it is old.
 */
export function follow(ctx, root, { body, request, draw, look = () => null, mayFail = () => false }) {
  const complaint = make("div", { class: "panel-complaint", role: "status" });
  const waiting = make("p", { class: "note", role: "status" });
  body.before(complaint, waiting);
  let shown = false;
  let timer = 0;
  let asked = null;
  let seen = null;
  let answers = null;
  let answered = null; // what `asked` was when the answers came
  let control = null;

  const drawn = () => {
    seen = JSON.stringify([look(), ctx.state.lang]);
    draw(answers);
    ctx.apply(root);
  };

  const ask = async (wanted) => {
    control?.abort();
    control = new AbortController();
    const { signal } = control;
    body.setAttribute("aria-busy", "true");
    const patience = setTimeout(() => (waiting.textContent = ctx.t("parts.waiting")), PATIENCE);
    try {
      const names = Object.keys(wanted);
      const found = await Promise.all(
        names.map((name) => {
          const answer = ctx.post(...wanted[name], signal);
          return mayFail(name) ? answer.catch((failed) => ({ failed })) : answer;
        }),
      );
      if (signal.aborted) return;
      answered = asked;
      answers = Object.fromEntries(names.map((name, index) => [name, found[index]]));
      complaint.replaceChildren();
      body.classList.remove("old");
      drawn();
    } catch (error) {
      if (signal.aborted || error.name === "AbortError") return;
      complain(complaint, ctx, error, () => check(true));
      body.classList.add("old");
    } finally {
      clearTimeout(patience);
      if (!signal.aborted) quiet();
    }
  };

  const quiet = () => {
    waiting.textContent = "";
    body.removeAttribute("aria-busy");
  };

  const check = (again = false) => {
    clearTimeout(timer);
    if (!shown) return;
    const wanted = request();
    const key = JSON.stringify(wanted);
    if (wanted !== null && (again || key !== asked)) {
      asked = key;
      ask(wanted);
    } else if (wanted === null) {
      control?.abort();
      asked = answered = answers = null;
      complaint.replaceChildren();
      body.classList.remove("old");
      quiet();
      drawn();
    } else if (answers !== null && answered === asked && JSON.stringify([look(), ctx.state.lang]) !== seen) {
      drawn();
    }
  };

  ctx.subscribe((state, changed) => {
    clearTimeout(timer);
    // A little patience, so that typing does not ask at every letter; looking on is at once.
    const same = shown && JSON.stringify(request()) === asked;
    if (same) check();
    else timer = setTimeout(check, 150);
  });
  ctx.apply(root);
  return {
    show() {
      shown = true;
      check();
    },
    hide() {
      shown = false;
      clearTimeout(timer);
      if (body.hasAttribute("aria-busy")) {
        control?.abort();
        asked = null;
        quiet();
      }
    },
  };
}

/** Say what went wrong; trying again helps only when the expression is not at fault. */
export function complain(place, ctx, error, again = null) {
  const line = make("p", { class: "error", text: error.message });
  place.replaceChildren(line);
  const transient = !error.status || error.status >= 500 || error.status === 429;
  if (again && transient) {
    const button = make("button", {
      type: "button",
      class: "button quiet",
      text: ctx.t("parts.again"),
      on: { click: again },
    });
    place.append(button);
  }
}

let copies = 0;

/** An id that is used once on the page. */
export function fresh(name) {
  copies += 1;
  return `${name}-${copies}`;
}

add({
  en: { "parts.again": "Try again", "parts.hidden": "hidden", "parts.waiting": "Computing …" },
  zh: { "parts.again": "重试", "parts.hidden": "被遮住", "parts.waiting": "计算中……" },
});
