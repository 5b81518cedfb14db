// Compare: this mask beside one or two others, with the cells marked in which they differ.

import { decoded, swatch } from "../paint.js";
import { add, number } from "../words.js";
import { changedAny, complain, follow, fresh, make } from "./parts.js";

const SIGNS = 64;
const KINDS = [
  [2, "compare.both"],
  [1, "compare.some"],
  [3, "compare.onlyfirst"],
  [4, "compare.onlysecond"],
  [5, "compare.mixed"],
  [0, "compare.neither"],
];
const IDEAS = ["everything()", "causal()", "window(back=2)", "causal() | prefix(2)"];

let following = null;

function mount(root, ctx) {
  const boxes = [0, 1].map((place) => box(ctx, place));
  const body = make("div", { class: "panel-body" });
  // One place for each picture, for good: a picture is drawn again where it was.
  const places = [0, 1, 2].map(() => make("div", { class: "grid-place" }));
  root.append(
    make("p", { class: "note", word: "compare.intro" }),
    ...boxes.map((each) => each.element),
    ideas(ctx),
    body,
  );
  following = follow(ctx, root, {
    body,
    mayFail: (name) => name !== "first",
    request: () => wanted(ctx),
    draw(answers) {
      boxes.forEach(({ fault }, place) => {
        const failed = answers[`other${place}`]?.failed;
        fault(failed ?? null);
      });
      body.replaceChildren(...drawn(answers, places, ctx));
    },
  });
}

function texts(ctx) {
  return [0, 1].map((place) => (ctx.state.others?.[place] ?? "").trim());
}

/** Each other mask is asked for by itself, so that a fault in one does not take away the rest. */
function wanted(ctx) {
  const { state } = ctx;
  const common = {
    subject: ctx.subject(),
    batch: state.batch ?? 0,
    head: state.head ?? 0,
    view: state.view ?? null,
    most: SIGNS,
  };
  const requests = { first: ["mask", common] };
  texts(ctx).forEach((text, place) => {
    if (text) requests[`other${place}`] = ["compare", { ...common, others: [text] }];
  });
  return requests;
}

function drawn(answers, places, ctx) {
  const found = [0, 1].map((place) => answers[`other${place}`]?.others?.[0]).filter(Boolean);
  const row = make(
    "div",
    { class: "abreast close" },
    figure(ctx, places[0], ctx.t("compare.first"), answers.first),
  );
  found.forEach((other, index) => {
    const title = ctx.t("compare.other", { number: index + 1 });
    row.append(figure(ctx, places[index + 1], title, other, verdict(other, ctx)));
  });
  return found.length ? [legend(found.map((other) => other.grid)), row] : [row];
}

function figure(ctx, place, title, { said, grid }, ...more) {
  const element = make(
    "section",
    { class: "block" },
    make("h3", { text: title }),
    make("p", { class: "formula" }, make("code", { text: said })),
    place,
    ...more,
  );
  // The grid measures its place, so it is drawn when that is on the page.
  queueMicrotask(() => ctx.drawGrid(place, grid, { label: `${title}: ${said}`, most: 320 }));
  return element;
}

function verdict(other, ctx) {
  if (other.equal) return make("p", {}, make("span", { class: "verdict good", word: "compare.equal" }));
  const counts = ctx.t("compare.counts", {
    first: number(other.only_first),
    second: number(other.only_second),
  });
  return make(
    "div",
    {},
    make("p", {}, make("span", { class: "verdict bad", word: "compare.differ" }), " ", counts),
    make("p", { class: "says", lang: "en", text: other.sentence }),
  );
}

/** An entry for every kind of cell that occurs. */
function legend(grids) {
  const found = new Set(grids.flatMap((grid) => [...decoded(grid).kindAt]));
  const entries = KINDS.filter(([kind]) => found.has(kind));
  return make(
    "ul",
    { class: "legend" },
    ...entries.map(([kind, word]) =>
      make("li", { class: "legend-entry" }, swatch(kind), make("span", { word })),
    ),
  );
}

function box(ctx, place) {
  const id = fresh("other");
  const input = make("input", {
    id,
    type: "text",
    class: "field mono",
    spellcheck: "false",
    autocomplete: "off",
    autocapitalize: "off",
    maxlength: 20000,
    placeholder: IDEAS[place + 1],
    "aria-describedby": `${id}-fault`,
  });
  const wrong = make("div", { id: `${id}-fault`, class: "fault", role: "status" });
  input.addEventListener("input", () => put(ctx, place, input.value));
  const show = () => {
    const text = ctx.state.others?.[place] ?? "";
    if (input.value !== text) input.value = text;
  };
  ctx.subscribe((state, changed) => changedAny(changed, "others") && show());
  show();
  const fault = (error) => {
    if (error) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
    if (!error) return wrong.replaceChildren();
    complain(wrong, ctx, error);
    if (error.at) wrong.append(excerpt(input.value.trim(), error.at));
  };
  const name = make("label", { for: id, word: place ? "compare.box2" : "compare.box1" });
  return { element: make("div", { class: "labelled" }, name, input, wrong), fault };
}

/** The faulty part of an expression, marked; `at` counts code points. */
function excerpt(text, [start, stop]) {
  const letters = [...text];
  const part = (from, to) => letters.slice(from, to).join("");
  return make(
    "p",
    { class: "formula" },
    make("code", {}, part(0, start), make("mark", { text: part(start, stop) || "‸" }), part(stop)),
  );
}

function ideas(ctx) {
  const row = make("div", { class: "chips", role: "group", label: "compare.ideas" });
  for (const text of IDEAS) {
    const click = () => put(ctx, texts(ctx)[0] && texts(ctx)[0] !== text ? 1 : 0, text);
    row.append(make("button", { type: "button", class: "chip code-chip", text, on: { click } }));
  }
  return row;
}

function put(ctx, place, text) {
  const others = [0, 1].map((each) => ctx.state.others?.[each] ?? "");
  others[place] = text;
  while (others.length && !others.at(-1).trim()) others.pop();
  ctx.set({ others });
}

export const panel = {
  id: "compare",
  title: "compare.title",
  mount,
  show: () => following?.show(),
  hide: () => following?.hide(),
};

// Added when the module loads, since the tab needs its title before the panel is shown.
add({
  en: {
    "compare.title": "Compare",
    "compare.intro": "Write one or two other masks; they are put beside this one, on the same tokens.",
    "compare.box1": "Other mask",
    "compare.box2": "One more",
    "compare.ideas": "Masks to compare with",
    "compare.first": "This mask",
    "compare.other": "Other mask {number}",
    "compare.equal": "equal",
    "compare.differ": "differs",
    "compare.counts": "{first} cells only this mask lets through, {second} only the other.",
    "compare.both": "both see it",
    "compare.some": "both see a part",
    "compare.onlyfirst": "only this mask",
    "compare.onlysecond": "only the other",
    "compare.mixed": "some of each",
    "compare.neither": "neither",
  },
  zh: {
    "compare.title": "比较",
    "compare.intro": "写一两个别的掩码，用同样的词元与当前掩码并排比较。",
    "compare.box1": "另一个掩码",
    "compare.box2": "再加一个",
    "compare.ideas": "可供比较的掩码",
    "compare.first": "当前掩码",
    "compare.other": "另一个掩码 {number}",
    "compare.equal": "相等",
    "compare.differ": "不同",
    "compare.counts": "只有当前掩码放行的有 {first} 格，只有对方放行的有 {second} 格。",
    "compare.both": "两者都可见",
    "compare.some": "两者都部分可见",
    "compare.onlyfirst": "仅当前掩码可见",
    "compare.onlysecond": "仅对方可见",
    "compare.mixed": "两者各有一些",
    "compare.neither": "都被遮住",
  },
});
