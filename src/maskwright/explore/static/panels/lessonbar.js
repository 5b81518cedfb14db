// The bar above the panels while a lesson is under way: what to look at, and on to the next.

import { get } from "../api.js";
import { set, state, subscribe } from "../state.js";
import { apply, t } from "../words.js";
import { make, spoken } from "./parts.js";

let lessons = null;

/** Keep the bar right from now on; `show(lesson, set)` puts a lesson on the page. */
export function watchLessons(show) {
  const bar = make("aside", { class: "lesson-bar", label: "lessons.bar", hidden: true });
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
    bar.replaceChildren(...content(index, show));
    apply(bar);
  };
  subscribe((_, changed) => {
    if (["lesson", "lang", "panel"].some((key) => changed.has(key))) draw();
  });
  draw();
}

function content(index, show) {
  const lesson = lessons[index];
  const next = lessons[index + 1];
  const button = (word, click, kind = "") =>
    make("button", { type: "button", class: `button ${kind}`, word, on: { click } });
  return [
    make(
      "p",
      {},
      make("strong", {
        text: `${t("lessons.place", { index: index + 1, count: lessons.length })}: ${spoken(lesson.title, state.lang)}`,
      }),
      " ",
      make("span", { text: spoken(lesson.look, state.lang) }),
    ),
    make(
      "div",
      { class: "row tight" },
      button("lessons.back", () => set({ panel: "lessons" })),
      next ? button("lessons.next", () => show(next, set), "primary") : null,
      button("lessons.end", () => set({ lesson: null }), "quiet"),
    ),
  ];
}
