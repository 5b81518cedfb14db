// Generate: one row at a time, from the tokens so far alone, beside the same row of the one pass.

import { add, percent } from "../words.js";
import { numberBox } from "./controls.js";
import { light, matrix } from "./matrix.js";
import { brief } from "./numbers.js";
import { follow, make } from "./parts.js";
import { player } from "./player.js";
import { valuesOf } from "./steps.js";

let following = null;
let playback = null;

function mount(root, ctx) {
  let rows = [];
  const body = make("div", { class: "panel-body" });
  playback = player(ctx, {
    key: "row",
    label: "generate.player",
    count: () => rows.length,
    says: (index) => sentence(rows, index, ctx),
    pause: 1400,
  });
  root.append(
    make("p", { class: "note", word: "generate.intro" }),
    make(
      "div",
      { class: "controls" },
      numberBox(ctx, "seed", "generate.seed", { least: 0, most: 9999, usual: 0 }),
    ),
    playback.element,
    body,
  );
  root.addEventListener("keydown", playback.onKey);
  following = follow(ctx, root, {
    body,
    request: () => ({
      generate: [
        "generate",
        {
          subject: ctx.subject(),
          values: valuesOf(ctx.state),
          batch: ctx.state.batch ?? 0,
          head: ctx.state.head ?? 0,
        },
      ],
    }),
    look: () => ctx.state.row,
    draw(answers) {
      rows = answers.generate.rows;
      playback.show();
      body.replaceChildren(...(rows.length ? drawn(rows, playback.at(), ctx) : []));
    },
  });
}

function drawn(rows, index, ctx) {
  const row = rows[index];
  return [
    line(rows, index),
    make("p", { class: "says", text: sentence(rows, index, ctx) }),
    make(
      "div",
      { class: "abreast close" },
      make("section", { class: "block" }, make("h3", { word: "generate.matrix" }), sofar(rows, index, ctx)),
      make("section", { class: "block" }, make("h3", { word: "generate.weights" }), bars(rows, index, ctx)),
    ),
    make(
      "section",
      { class: "block pass" },
      make("h3", {}, make("span", { word: "generate.output" }), verdict(row)),
      make("p", { class: "says", word: row.equal ? "generate.equal.says" : "generate.unequal.says" }),
      matrix({
        values: [row.alone, row.output],
        rows: [ctx.t("generate.alone"), ctx.t("generate.pass")],
        columns: row.output.map((_, place) => String(place)),
        name: ctx.t("generate.output"),
        t: ctx.t,
      }),
    ),
  ];
}

/** The tokens, those that are not there yet pale. */
function line(rows, index) {
  const list = make("ol", { class: "tokens-so-far", label: "generate.tokens" });
  rows.forEach((row, place) => {
    const when = place < index ? "past" : place === index ? "now" : "later";
    list.append(
      make("li", {
        class: when,
        dir: "auto",
        "aria-current": when === "now" ? "step" : null,
        text: row.token,
      }),
    );
  });
  return list;
}

/** The weights so far: the matrix has grown by a row and a column with every token. */
function sofar(rows, index, ctx) {
  const upTo = rows.slice(0, index + 1);
  const keys = rows.slice(0, reach(upTo)).map((row) => row.token);
  const frame = matrix({
    values: upTo.map((row) => keys.map((_, key) => row.weights[key] ?? 0)),
    hidden: upTo.map((row) => keys.map((_, key) => !row.weights[key])),
    rows: upTo.map((row) => row.token),
    columns: keys,
    name: ctx.t("generate.matrix"),
    heat: "share",
    write: brief,
    t: ctx.t,
  });
  light(frame, index, null);
  return frame;
}

function bars(rows, index, ctx) {
  const { weights } = rows[index];
  const list = make("ul", { class: "bars" });
  rows.slice(0, Math.max(index + 1, reach([rows[index]]))).forEach((row, key) => {
    const weight = weights[key] ?? 0;
    const later = key > index;
    const bar = make("span", { class: later ? "bar first" : "bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", weight.toFixed(4));
    const name = later ? `${row.token} (${ctx.t("generate.later")})` : row.token;
    list.append(
      make(
        "li",
        {},
        make("span", { class: "word", dir: "auto", text: name }),
        make("span", { class: "track" }, bar),
        make("span", { class: "value", text: percent(weight) }),
      ),
    );
  });
  return list;
}

/** How many keys these rows look at: more than there are rows, if the mask lets them look ahead. */
function reach(rows) {
  const last = rows.map((row) => row.weights.findLastIndex((weight) => weight > 0));
  return Math.max(rows.length, ...last.map((key) => key + 1));
}

function verdict(row) {
  return make("span", {
    class: `verdict ${row.equal ? "good" : "bad"}`,
    word: row.equal ? "generate.equal" : "generate.unequal",
  });
}

function sentence(rows, index, ctx) {
  const row = rows[index];
  return row
    ? ctx.t(index ? "generate.row" : "generate.row0", {
        row: row.position,
        token: row.token,
        count: index + 1,
      })
    : "";
}

export const panel = {
  id: "generate",
  title: "generate.title",
  mount,
  show: () => following?.show(),
  hide() {
    playback?.stop();
    following?.hide();
  },
};

// Added when the module loads, since the tab needs its title before the panel is shown.
add({
  en: {
    "generate.title": "Generate",
    "generate.intro":
      "A model that writes computes one row at a time, from the tokens so far. In training all rows are computed in one pass. Under a look-ahead mask both give the same.",
    "generate.player": "Go from token to token",
    "generate.seed": "Seed",
    "generate.tokens": "Tokens so far",
    "generate.matrix": "Rows computed so far",
    "generate.weights": "Weights of this row",
    "generate.output": "Output of this row",
    "generate.later": "later",
    "generate.alone": "from these tokens alone",
    "generate.pass": "same row of the one pass",
    "generate.equal": "equal",
    "generate.unequal": "not equal",
    "generate.equal.says":
      "Nothing later was needed: the row is the same without the tokens that are not there yet.",
    "generate.unequal.says":
      "This mask lets the row see what comes later, so it can't be computed one token at a time.",
    "generate.row": "Row {row}, “{token}”: computed from the first {count} tokens.",
    "generate.row0": "Row {row}, “{token}”: computed from this token alone.",
  },
  zh: {
    "generate.title": "逐步生成",
    "generate.intro":
      "生成时，模型每次只算一行，只用到目前为止的词元；训练时，所有行一次算完。用了前瞻掩码，两者结果相同。",
    "generate.player": "逐个词元查看",
    "generate.seed": "随机种子",
    "generate.tokens": "目前的词元",
    "generate.matrix": "目前算出的行",
    "generate.weights": "这一行的权重",
    "generate.output": "这一行的输出",
    "generate.later": "在后面",
    "generate.alone": "只用这些词元",
    "generate.pass": "一次算完的同一行",
    "generate.equal": "相等",
    "generate.unequal": "不相等",
    "generate.equal.says": "用不到后面的词元：后面的还没出现，这一行也是同样的结果。",
    "generate.unequal.says": "这个掩码让这一行看到了后面的词元，所以无法逐个词元地算出来。",
    "generate.row": "第 {row} 行“{token}”：由前 {count} 个词元算出。",
    "generate.row0": "第 {row} 行“{token}”：只由这一个词元算出。",
  },
});
