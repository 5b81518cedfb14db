// The base of all panels: definition, elements with translated text, and requests while shown.

import { ERROR_DELAY } from "../mask_loader.js";
import { h, sleep } from "../dom.js";
import { addMessages } from "../i18n.js";

const REQUEST_DELAY = 150; // milliseconds without a change before a request
const BUSY_DELAY = 500; // milliseconds before the panel shows that it waits

/**
 * A panel for the tab `id`. `build(root, ctx)` fills it when it is first opened, and returns
 * {show, hide}, which are called when the tab is opened and left. Both are optional.
 */
export function definePanel(id, build) {
  let built = null;
  return {
    id,
    title: `${id}.title`, // key of the message
    mount(root, ctx) {
      built = build(root, ctx);
      ctx.translate(root);
    },
    show: () => built?.show?.(),
    hide: () => built?.hide?.(),
  };
}

/** Create an element. `msg`, `label` and `hint` are keys of its text, aria-label and placeholder. */
export function el(tag, options = {}, ...children) {
  const { msg, label, hint, text, on = {}, ...attributes } = options;
  const listeners = Object.fromEntries(
    Object.entries(on).map(([event, listener]) => [`on${event}`, listener]),
  );
  const keys = { "data-t": msg, "data-t-label": label, "data-t-placeholder": hint };
  return h(tag, { ...attributes, ...keys, ...listeners }, text ?? null, ...children);
}

/** A text of the server ({en, zh} or a string) in the given language, or in English. */
export function localized(text, lang) {
  if (text === null || text === undefined || typeof text === "string") return text ?? "";
  return text[lang] ?? text.en ?? "";
}

/** Whether one of the keys changed. */
export function hasAny(changed, ...keys) {
  return keys.some((key) => changed.has(key));
}

/**
 * Send requests while a panel is shown, and again when they change.
 *
 * `request()` returns {name: [endpoint, body]}; `draw(answers)` gets {name: answer}, or
 * {name: {failed: error}} for the names for which `mayFail(name)`. `viewState()` returns what else
 * the drawing depends on. A player is stopped when the panel is left. Answers to earlier requests
 * are dropped; what was drawn is dimmed while it is out of date.
 */
export function fetchWhileShown(ctx, root, options) {
  const { body, request, draw, viewState = () => null, mayFail = () => false, player } = options;
  const errorPlace = el("div", { class: "panel-error", role: "status" });
  const busyText = el("p", { class: "note", role: "status" });
  body.before(errorPlace, busyText);
  let isShown = false;
  let timer = 0;
  let requested = null; // the last request, as JSON
  let answered = null; // the request of the current answers
  let answers = null;
  let drawnView = null;
  let controller = null;

  const currentView = () => JSON.stringify([viewState(), ctx.state.lang]);

  const redraw = () => {
    drawnView = currentView();
    draw(answers);
    ctx.translate(root);
  };

  const setIdle = () => {
    busyText.textContent = "";
    body.removeAttribute("aria-busy");
  };

  const send = async (requests) => {
    controller?.abort();
    controller = new AbortController();
    const { signal } = controller;
    const key = requested;
    body.setAttribute("aria-busy", "true");
    const busyTimer = setTimeout(() => (busyText.textContent = ctx.t("panel.busy")), BUSY_DELAY);
    try {
      const names = Object.keys(requests);
      const results = await Promise.all(
        names.map((name) => {
          const answer = ctx.post(...requests[name], signal);
          return mayFail(name) ? answer.catch((failed) => ({ failed })) : answer;
        }),
      );
      if (signal.aborted) return;
      if (results.some(({ failed }) => failed)) await sleep(ERROR_DELAY); // the user may be typing
      if (signal.aborted || isOutdated(key)) return;
      answered = key;
      answers = Object.fromEntries(names.map((name, index) => [name, results[index]]));
      errorPlace.replaceChildren();
      body.classList.remove("stale");
      redraw();
    } catch (error) {
      if (signal.aborted || ctx.isAbort(error)) return;
      await sleep(ERROR_DELAY);
      if (signal.aborted || isOutdated(key)) return;
      showError(errorPlace, ctx, error, () => update(true));
      body.classList.add("stale");
    } finally {
      clearTimeout(busyTimer);
      if (!signal.aborted) setIdle();
    }
  };

  const isOutdated = (key) => !isShown || JSON.stringify(request()) !== key;

  const update = (force = false) => {
    clearTimeout(timer);
    if (!isShown) return;
    const requests = request();
    const key = JSON.stringify(requests);
    if (force || key !== requested) {
      requested = key;
      send(requests);
    } else if (answers !== null && answered === requested && currentView() !== drawnView) {
      redraw();
    }
  };

  ctx.subscribe(() => {
    clearTimeout(timer);
    if (!isShown) return;
    // Another view of the same answers is shown at once.
    if (JSON.stringify(request()) === requested) update();
    else timer = setTimeout(update, REQUEST_DELAY);
  });
  return {
    show() {
      isShown = true;
      update();
    },
    hide() {
      player?.stop();
      isShown = false;
      clearTimeout(timer);
      if (body.hasAttribute("aria-busy")) {
        controller?.abort();
        requested = null;
        setIdle();
      }
    },
  };
}

/** Show an error; `retry` is offered unless the request itself is invalid. */
export function showError(place, ctx, error, retry = null) {
  place.replaceChildren(el("p", { class: "error", text: error.message }));
  const isTransient = !error.status || error.status >= 500 || error.status === 429;
  if (retry && isTransient) {
    const text = ctx.t("panel.retry");
    const options = { type: "button", class: "button quiet", text, on: { click: retry } };
    place.append(el("button", options));
  }
}

let numIds = 0;

/** An id that is unique on the page. */
export function uniqueId(name) {
  numIds += 1;
  return `${name}-${numIds}`;
}

addMessages({
  en: { "panel.retry": "Try again", "panel.masked": "masked", "panel.busy": "Computing …" },
  zh: { "panel.retry": "重试", "panel.masked": "被屏蔽", "panel.busy": "计算中……" },
});
