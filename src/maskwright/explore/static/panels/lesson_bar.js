// The bar above the panels during a lesson: what to look at, and the next lesson.

import { get } from "../api.js";
import { set, state, subscribe } from "../state.js";
import { t, translate } from "../i18n.js";
import { el, localized } from "./panel.js";

let lessons = null;

/** Start the bar; `show(lesson)` sets the page to a lesson. */
export function startLessonBar(show) {
  const bar = el("aside", { class: "lesson-bar", label: "lessons.bar", hidden: true });
  const draw = async () => {
    bar.hidden = !state.lesson || state.panel === "lessons";
    if (bar.hidden) return;
    if (!bar.isConnected) document.getElementById("panels-body")?.before(bar);
    lessons ??= await get("lessons").then(
      (answer) => answer.lessons,
      () => null,
    );
    const index = lessons?.findIndex((lesson) => lesson.id === state.lesson) ?? -1;
    if (index < 0) {
      bar.hidden = true;
      return;
    }
    const hadFocus = bar.contains(document.activeElement);
    bar.replaceChildren(...content(index, show));
    translate(bar);
    if (hadFocus) bar.querySelector(".primary, button").focus({ preventScroll: true });
  };
  subscribe((_, changed) => {
    if (["lesson", "lang", "panel"].some((key) => changed.has(key))) draw();
  });
  draw();
}

function content(index, show) {
  const lesson = lessons[index];
  const next = lessons[index + 1];
  const place = t("lessons.place", { index: index + 1, count: lessons.length });
  const button = (msg, click, kind = "") =>
    el("button", { type: "button", class: `button ${kind}`, msg, on: { click } });
  return [
    el(
      "p",
      {},
      el("strong", {
        text: `${place}: ${localized(lesson.title, state.lang)}`,
      }),
      " ",
      el("span", { text: localized(lesson.look, state.lang) }),
    ),
    el(
      "div",
      { class: "row tight" },
      button("lessons.back", () => set({ panel: "lessons" })),
      next ? button("lessons.next", () => show(next), "primary") : null,
      button("lessons.end", () => set({ lesson: null }), "quiet"),
    ),
  ];
}
