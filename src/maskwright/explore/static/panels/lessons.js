// Lessons: a guided path through the page; each one sets what is shown and says what to look at.

import { add } from "../words.js";
import { complain, make, spoken } from "./parts.js";
import { watchLessons } from "./lessonbar.js";

let shownOnce = null;

function mount(root, ctx) {
  const complaint = make("div", { class: "panel-complaint", role: "status" });
  const body = make("div", { class: "panel-body" });
  root.append(make("p", { class: "note", word: "lessons.intro" }), complaint, body);
  let lessons = [];

  const draw = () => {
    if (lessons.length) body.replaceChildren(page(lessons, ctx), contents(lessons, ctx));
    ctx.apply(root);
  };
  const load = async () => {
    try {
      ({ lessons } = await ctx.get("lessons"));
      complaint.replaceChildren();
      draw();
    } catch (error) {
      complain(complaint, ctx, error, load);
    }
  };
  shownOnce = () => {
    if (!lessons.length) load();
  };
  ctx.subscribe((state, changed) => {
    if (changed.has("lesson") || changed.has("lang")) draw();
  });
  ctx.apply(root);
}

/** Set the state of a lesson, and open the panel that it names. */
export function showLesson(lesson, set) {
  set({
    step: null,
    row: 0,
    view: null,
    query: null,
    key: null,
    batch: 0,
    head: 0,
    ...lesson.state,
    lesson: lesson.id,
  });
}

function place(lessons, ctx) {
  return Math.max(
    0,
    lessons.findIndex((lesson) => lesson.id === ctx.state.lesson),
  );
}

function contents(lessons, ctx) {
  const list = make("ol", { class: "contents" });
  const now = place(lessons, ctx);
  lessons.forEach((lesson, index) => {
    const choose = () => ctx.set({ lesson: lesson.id });
    const button = make("button", {
      type: "button",
      class: index < now && ctx.state.lesson ? "done" : null,
      "aria-current": index === now ? "step" : null,
      text: spoken(lesson.title, ctx.state.lang),
      on: { click: choose },
    });
    list.append(make("li", {}, button));
  });
  return make("nav", { class: "block", label: "lessons.list" }, make("h3", { word: "lessons.list" }), list);
}

function page(lessons, ctx) {
  const { lang } = ctx.state;
  const index = place(lessons, ctx);
  const lesson = lessons[index];
  const go = (step) => {
    ctx.set({ lesson: lessons[index + step].id });
    ctx.say(spoken(lessons[index + step].title, lang));
  };
  const paragraphs = [spoken(lesson.text, lang)].flat();
  return make(
    "article",
    { class: "block lesson" },
    make("h3", { text: `${index + 1}. ${spoken(lesson.title, lang)}` }),
    ...paragraphs.map((text) => make("p", { text })),
    lesson.look
      ? make("p", { class: "look" }, make("strong", { word: "lessons.look" }), " ", spoken(lesson.look, lang))
      : null,
    make(
      "div",
      { class: "row" },
      make("button", {
        type: "button",
        class: "button",
        word: "lessons.previous",
        disabled: index === 0,
        on: { click: () => go(-1) },
      }),
      make("button", {
        type: "button",
        class: "button primary",
        word: "lessons.show",
        on: { click: () => showLesson(lesson, ctx.set) },
      }),
      make("button", {
        type: "button",
        class: "button",
        word: "lessons.next",
        disabled: index === lessons.length - 1,
        on: { click: () => go(1) },
      }),
    ),
  );
}

export const panel = {
  id: "lessons",
  title: "lessons.title",
  mount,
  show: () => shownOnce?.(),
  hide() {},
};

add({
  en: {
    "lessons.title": "Lessons",
    "lessons.intro":
      "A short path through masks. “Show me” sets the page; change it as you like and come back.",
    "lessons.list": "All lessons",
    "lessons.look": "Look at:",
    "lessons.previous": "Previous",
    "lessons.next": "Next",
    "lessons.show": "Show me",
    "lessons.back": "Read",
    "lessons.end": "Leave",
    "lessons.bar": "Lesson under way",
    "lessons.place": "Lesson {index} of {count}",
  },
  zh: {
    "lessons.title": "教程",
    "lessons.intro": "由浅入深认识掩码。点“演示”会设置好整个页面，可以随意改动，再回来继续。",
    "lessons.list": "全部课程",
    "lessons.look": "注意看：",
    "lessons.previous": "上一课",
    "lessons.next": "下一课",
    "lessons.show": "演示",
    "lessons.back": "看讲解",
    "lessons.end": "退出",
    "lessons.bar": "正在学习的课程",
    "lessons.place": "第 {index} 课，共 {count} 课",
  },
});

watchLessons(showLesson);
