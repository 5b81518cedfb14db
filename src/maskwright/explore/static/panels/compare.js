// Compare: this mask next to one or two others; cells that differ are marked.

import { decodeGrid, swatch } from "../grid_render.js";
import { addMessages, formatNumber } from "../i18n.js";
import { hasAny, definePanel, el, fetchWhileShown, showError, uniqueId } from "./panel.js";

const MAX_SQUARES = 64; // per side
const KINDS = [
  [2, "compare.both"],
  [1, "compare.some"],
  [3, "compare.onlyfirst"],
  [4, "compare.onlysecond"],
  [5, "compare.mixed"],
  [0, "compare.neither"],
];
const SUGGESTIONS = ["everything()", "causal()", "window(back=2)", "causal() | prefix(2)"];

function build(root, ctx) {
  const boxes = [0, 1].map((place) => box(ctx, place));
  const body = el("div", { class: "panel-body" });
  // One container per picture, which is drawn again in place.
  const places = [0, 1, 2].map(() => el("div", { class: "grid-place" }));
  root.append(
    el("p", { class: "note", msg: "compare.intro" }),
    ...boxes.map((box) => box.element),
    ideas(ctx),
    body,
  );
  return fetchWhileShown(ctx, root, {
    body,
    mayFail: (name) => name !== "first",
    request: () => requests(ctx),
    draw(answers) {
      boxes.forEach(({ setError }, place) => {
        const failed = answers[`other${place}`]?.failed;
        setError(failed ?? null);
      });
      body.replaceChildren(...drawn(answers, places, ctx));
    },
  });
}

function texts(ctx) {
  return [0, 1].map((place) => (ctx.state.others?.[place] ?? "").trim());
}

/** One request per mask, so that an error in one does not affect the others. */
function requests(ctx) {
  const { state } = ctx;
  const common = {
    subject: ctx.subject(),
    batch: state.batch ?? 0,
    head: state.head ?? 0,
    view: state.view ?? null,
    most: MAX_SQUARES,
  };
  const result = { first: ["mask", common] };
  texts(ctx).forEach((text, place) => {
    if (text) result[`other${place}`] = ["compare", { ...common, others: [text] }];
  });
  return result;
}

function drawn(answers, places, ctx) {
  const differences = [0, 1].map((place) => answers[`other${place}`]?.others?.[0]).filter(Boolean);
  const row = el(
    "div",
    { class: "columns close" },
    figure(ctx, places[0], ctx.t("compare.first"), answers.first),
  );
  differences.forEach((other, index) => {
    const title = ctx.t("compare.other", { number: index + 1 });
    row.append(figure(ctx, places[index + 1], title, other, verdict(other, ctx)));
  });
  return differences.length ? [legend(differences.map((other) => other.grid)), row] : [row];
}

function figure(ctx, place, title, { expression, grid }, ...more) {
  const element = el(
    "section",
    { class: "block" },
    el("h3", { text: title }),
    el("p", { class: "formula" }, el("code", { text: expression })),
    place,
    ...more,
  );
  // The grid measures its container, which must be on the page first.
  queueMicrotask(() =>
    ctx.drawGrid(place, grid, { label: `${title}: ${expression}`, maxHeight: 320 }),
  );
  return element;
}

function verdict(other, ctx) {
  if (other.equal) return el("p", {}, el("span", { class: "verdict good", msg: "compare.equal" }));
  const counts = ctx.t("compare.counts", {
    first: formatNumber(other.only_first),
    second: formatNumber(other.only_second),
  });
  return el(
    "div",
    {},
    el("p", {}, el("span", { class: "verdict bad", msg: "compare.differ" }), " ", counts),
    el("p", { class: "prose", lang: "en", text: other.sentence }),
  );
}

/** The kinds of cells that occur. */
function legend(grids) {
  const present = new Set(grids.flatMap((grid) => [...decodeGrid(grid).kindAt]));
  const entries = KINDS.filter(([kind]) => present.has(kind));
  return el(
    "ul",
    { class: "legend" },
    ...entries.map(([kind, word]) =>
      el("li", { class: "legend-entry" }, swatch(kind), el("span", { msg: word })),
    ),
  );
}

function box(ctx, place) {
  const id = uniqueId("other");
  const input = el("input", {
    id,
    type: "text",
    class: "field mono",
    spellcheck: "false",
    autocomplete: "off",
    autocapitalize: "off",
    maxlength: 20000,
    placeholder: SUGGESTIONS[place + 1],
    "aria-describedby": `${id}-error`,
  });
  const errorPlace = el("div", { id: `${id}-error`, role: "status" });
  input.addEventListener("input", () => put(ctx, place, input.value));
  const show = () => {
    const text = ctx.state.others?.[place] ?? "";
    if (input.value !== text) input.value = text;
  };
  ctx.subscribe((state, changed) => hasAny(changed, "others") && show());
  show();
  const setError = (error) => {
    if (error) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
    if (!error) return errorPlace.replaceChildren();
    showError(errorPlace, ctx, error);
    if (error.at) errorPlace.append(excerpt(input.value.trim(), error.at));
  };
  const name = el("label", { for: id, msg: place ? "compare.box2" : "compare.box1" });
  return { element: el("div", { class: "labelled" }, name, input, errorPlace), setError };
}

/** The expression with the invalid part marked; `at` counts code points. */
function excerpt(text, [start, stop]) {
  const letters = [...text];
  const part = (from, to) => letters.slice(from, to).join("");
  return el(
    "p",
    { class: "formula" },
    el("code", {}, part(0, start), el("mark", { text: part(start, stop) || "‸" }), part(stop)),
  );
}

function ideas(ctx) {
  const row = el("div", { class: "chips", role: "group", label: "compare.ideas" });
  for (const text of SUGGESTIONS) {
    const click = () => put(ctx, texts(ctx)[0] && texts(ctx)[0] !== text ? 1 : 0, text);
    row.append(el("button", { type: "button", class: "chip code-chip", text, on: { click } }));
  }
  return row;
}

function put(ctx, place, text) {
  const others = [0, 1].map((index) => ctx.state.others?.[index] ?? "");
  others[place] = text;
  while (others.length && !others.at(-1).trim()) others.pop();
  ctx.set({ others });
}

export const panel = definePanel("compare", build);

addMessages({
  en: {
    "compare.title": "Compare",
    "compare.intro": "Enter one or two other masks to compare with this one on the same tokens.",
    "compare.box1": "Other mask",
    "compare.box2": "Second mask",
    "compare.ideas": "Masks to compare with",
    "compare.first": "This mask",
    "compare.other": "Other mask {number}",
    "compare.equal": "equal",
    "compare.differ": "differs",
    "compare.counts": "{first} cells visible only in this mask, {second} only in the other.",
    "compare.both": "visible in both",
    "compare.some": "partly visible in both",
    "compare.onlyfirst": "only this mask",
    "compare.onlysecond": "only the other",
    "compare.mixed": "some of each",
    "compare.neither": "masked in both",
  },
  zh: {
    "compare.title": "比较",
    "compare.intro": "输入一两个其他掩码，在同样的词元上与当前掩码比较。",
    "compare.box1": "另一个掩码",
    "compare.box2": "第二个掩码",
    "compare.ideas": "可供比较的掩码",
    "compare.first": "当前掩码",
    "compare.other": "另一个掩码 {number}",
    "compare.equal": "相等",
    "compare.differ": "不同",
    "compare.counts": "仅当前掩码可见 {first} 格，仅对方可见 {second} 格。",
    "compare.both": "两者都可见",
    "compare.some": "两者都部分可见",
    "compare.onlyfirst": "仅当前掩码可见",
    "compare.onlysecond": "仅对方可见",
    "compare.mixed": "两者各有一些",
    "compare.neither": "都被屏蔽",
  },
});
