// Lessons: texts that set the state of the page and say what to look at.

import { byId } from "../dom.js";
import { checkpoint } from "../history.js";
import { addMessages, t } from "../i18n.js";
import { set, state } from "../state.js";
import { replaceState } from "../toast.js";
import { startLessonBar } from "./lesson_bar.js";
import { definePanel, el, localized, showError } from "./panel.js";

function build(root, ctx) {
  const errorPlace = el("div", { class: "panel-error", role: "status" });
  const body = el("div", { class: "panel-body" });
  root.append(el("p", { class: "note", msg: "lessons.intro" }), errorPlace, body);
  let lessons = [];

  const draw = () => {
    if (lessons.length) body.replaceChildren(page(lessons, ctx), contents(lessons, ctx));
    ctx.translate(root);
  };
  const load = async () => {
    try {
      ({ lessons } = await ctx.get("lessons"));
      errorPlace.replaceChildren();
      draw();
    } catch (error) {
      showError(errorPlace, ctx, error, load);
    }
  };
  ctx.subscribe((state, changed) => {
    if (changed.has("lesson") || changed.has("lang")) draw();
  });
  return { show: () => lessons.length || load() };
}

/** Set the state of a lesson, and open its panel. */
function showLesson(lesson) {
  const changes = {
    step: null,
    row: 0,
    view: null,
    query: null,
    key: null,
    batch: 0,
    head: 0,
    ...lesson.state,
    lesson: lesson.id,
  };
  if (state.panel === "lessons") {
    replaceState(changes, t("lessons.replaced"));
    byId(`tab-${state.panel}`)?.focus({ preventScroll: true }); // the button is hidden now
  } else {
    checkpoint();
    set(changes); // from lesson to lesson
  }
}

function place(lessons, ctx) {
  return Math.max(
    0,
    lessons.findIndex((lesson) => lesson.id === ctx.state.lesson),
  );
}

function contents(lessons, ctx) {
  const list = el("ol", { class: "contents" });
  const now = place(lessons, ctx);
  lessons.forEach((lesson, index) => {
    const choose = () => ctx.set({ lesson: lesson.id });
    const button = el("button", {
      type: "button",
      class: index < now && ctx.state.lesson ? "done" : null,
      "aria-current": index === now ? "step" : null,
      text: localized(lesson.title, ctx.state.lang),
      on: { click: choose },
    });
    list.append(el("li", {}, button));
  });
  return el("nav", { class: "block", label: "lessons.list" }, el("h3", { msg: "lessons.list" }), list);
}

function page(lessons, ctx) {
  const { lang } = ctx.state;
  const index = place(lessons, ctx);
  const lesson = lessons[index];
  const go = (step) => {
    ctx.set({ lesson: lessons[index + step].id });
    ctx.announce(localized(lessons[index + step].title, lang));
  };
  const paragraphs = [localized(lesson.text, lang)].flat();
  return el(
    "article",
    { class: "block lesson" },
    el("h3", { text: `${index + 1}. ${localized(lesson.title, lang)}` }),
    ...paragraphs.map((text) => el("p", { text })),
    lesson.look
      ? el("p", { class: "look" }, el("strong", { msg: "lessons.look" }), " ", localized(lesson.look, lang))
      : null,
    el(
      "div",
      { class: "row" },
      el("button", {
        type: "button",
        class: "button",
        msg: "lessons.previous",
        disabled: index === 0,
        on: { click: () => go(-1) },
      }),
      el("button", {
        type: "button",
        class: "button primary",
        msg: "lessons.show",
        on: { click: () => showLesson(lesson) },
      }),
      el("button", {
        type: "button",
        class: "button",
        msg: "lessons.next",
        disabled: index === lessons.length - 1,
        on: { click: () => go(1) },
      }),
    ),
  );
}

export const panel = definePanel("lessons", build);

addMessages({
  en: {
    "lessons.title": "Lessons",
    "lessons.intro":
      "A short introduction to masks. “Show me” sets the mask and the tokens of the page.",
    "lessons.list": "All lessons",
    "lessons.look": "Look at:",
    "lessons.previous": "Previous",
    "lessons.next": "Next",
    "lessons.show": "Show me",
    "lessons.back": "Read",
    "lessons.end": "Close",
    "lessons.bar": "Current lesson",
    "lessons.replaced": "The lesson replaced the mask and the tokens.",
    "lessons.place": "Lesson {index} of {count}",
  },
  zh: {
    "lessons.title": "课程",
    "lessons.intro": "掩码入门。点“演示”会设置页面上的掩码和词元。",
    "lessons.list": "全部课程",
    "lessons.look": "注意看：",
    "lessons.previous": "上一课",
    "lessons.next": "下一课",
    "lessons.show": "演示",
    "lessons.back": "看讲解",
    "lessons.end": "退出",
    "lessons.bar": "当前课程",
    "lessons.replaced": "课程替换了掩码和词元。",
    "lessons.place": "第 {index} 课，共 {count} 课",
  },
});

startLessonBar(showLesson);
