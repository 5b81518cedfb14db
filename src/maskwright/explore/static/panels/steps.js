// Steps: the whole calculation of attention with its numbers, from X to the output.

import { add } from "../words.js";
import { choiceBox, numberBox, pressOne, tickBox } from "./controls.js";
import { follow, make } from "./parts.js";
import { player } from "./player.js";
import { MOST, editor, sized } from "./scores.js";
import { all, one, strip } from "./stages.js";
import { scalingTable, threeMasks, threeRequests } from "./views.js";

const SIZES = [1, 4, 16, 64, 256];

let following = null;
let playback = null;

/** The numbers that attention is computed with, as the server takes them. */
export function valuesOf(state) {
  return { seed: state.seed ?? 0, width: state.width ?? 3, head_size: state.head_size ?? 2 };
}

function mount(root, ctx) {
  let steps = [];
  const body = make("div", { class: "panel-body" });
  const typed = make("div", { class: "typed-place" });
  playback = player(ctx, {
    key: "step",
    label: "steps.player",
    count: () => steps.length,
    says: (index) => steps[index]?.name ?? "",
    all: true,
    pause: 2400,
  });
  const settings = controls(ctx, () => steps);
  root.append(
    make("p", { class: "note", word: "steps.intro" }),
    pressOne(
      ctx,
      "steps_view",
      "steps.view",
      [
        ["steps", "steps.view.steps"],
        ["masks", "steps.view.masks"],
        ["scaling", "steps.view.scaling"],
      ],
      "steps",
    ),
    settings.element,
    typed,
    playback.element,
    body,
  );
  root.addEventListener("keydown", (event) => view(ctx) === "steps" && playback.onKey(event));

  following = follow(ctx, root, {
    body,
    request: () => wanted(ctx),
    look: () => [ctx.state.step, view(ctx)],
    draw(answers) {
      const now = view(ctx);
      settings.show(now);
      playback.element.hidden = now !== "steps";
      steps = now === "steps" ? answers.steps.steps : [];
      drawTyped(typed, steps, ctx, now);
      playback.show();
      body.replaceChildren(...drawn(now, answers, steps, ctx));
    },
  });
}

function view(ctx) {
  const { steps_view: wished } = ctx.state;
  return wished === "masks" || wished === "scaling" ? wished : "steps";
}

function wanted(ctx) {
  const { state } = ctx;
  const subject = ctx.subject();
  const rest = {
    batch: state.batch ?? 0,
    head: state.head ?? 0,
    values: valuesOf(state),
    scaled: state.scaled ?? true,
    fill: state.fill ?? "-inf",
    rows_too: state.rows_too ?? false,
  };
  if (view(ctx) === "scaling") return { scaling: ["scaling", { sizes: SIZES, seed: state.seed ?? 0 }] };
  if (view(ctx) === "masks") return threeRequests(subject, rest);
  const size = subject.tokens?.[0]?.length ?? subject.size;
  if (state.scores && size <= MOST) rest.values = { scores: sized(state.scores, size) };
  return { steps: ["steps", { ...rest, subject }] };
}

function drawn(now, answers, steps, ctx) {
  if (now === "scaling") return [scalingTable(answers.scaling.rows, ctx)];
  if (now === "masks") return [threeMasks(answers, ctx.subject(), ctx)];
  const index = playback.at();
  const choose = (chosen) => {
    playback.stop();
    ctx.set({ step: chosen });
  };
  return [strip(steps, index, ctx, choose), index < 0 ? all(steps, ctx) : one(steps, index, ctx)];
}

function drawTyped(place, steps, ctx, now) {
  const scores = steps.find((step) => step.name === "scores");
  const own = Boolean(ctx.state.scores) && now === "steps" && scores !== undefined;
  if (!own || scores.values.length > MOST) {
    place.replaceChildren(...(own ? [make("p", { class: "note", word: "steps.toomany" })] : []));
    delete place.dataset.of;
    return;
  }
  const values = sized(ctx.state.scores, scores.values.length);
  const tokens = scores.rows ?? values.map((_, index) => String(index));
  // The boxes stay while they show what the state holds, so that the focus stays as well.
  const key = JSON.stringify([tokens, ctx.state.lang]);
  const typedNow = [...place.querySelectorAll("input")].map((box) => Number(box.value));
  if (place.dataset.of === key && JSON.stringify(typedNow) === JSON.stringify(values.flat())) return;
  place.dataset.of = key;
  place.replaceChildren(...editor(values, tokens, ctx, (next) => ctx.set({ scores: next })));
  ctx.apply(place);
}

function controls(ctx, steps) {
  const seed = numberBox(ctx, "seed", "steps.seed", { least: 0, most: 9999, usual: 0 });
  const size = numberBox(ctx, "head_size", "steps.size", { least: 1, most: 8, usual: 2 });
  const width = numberBox(ctx, "width", "steps.width", { least: 1, most: 8, usual: 3 });
  const scaled = tickBox(ctx, "scaled", "steps.scaled", true);
  const hidden = choiceBox(
    ctx,
    "fill",
    "steps.fill",
    [
      ["-inf", "−∞"],
      [-1e9, "−1e9"],
      [0, "0"],
    ],
    "-inf",
  );
  const rows = tickBox(ctx, "rows_too", "steps.rows", false);
  const own = ownScores(ctx, steps);
  const element = make("div", { class: "controls" }, seed, width, size, hidden, scaled, rows, own);
  const show = (now) => {
    for (const control of [size, width, hidden, scaled, rows]) control.hidden = now === "scaling";
    own.hidden = now !== "steps";
    const given = now === "steps" && Boolean(ctx.state.scores);
    for (const control of [seed, size, width, scaled]) control.querySelector("input").disabled = given;
  };
  return { element, show };
}

/** A tick box that puts the scores of the moment into boxes, rounded, to be changed by hand. */
function ownScores(ctx, steps) {
  const input = make("input", { type: "checkbox", role: "switch" });
  input.addEventListener("change", () => {
    const found = steps().find((step) => step.name === (ctx.state.scaled === false ? "scores" : "scaled"));
    const rounded = found?.values.map((line) => line.map((value) => Math.round(value * 10) / 10));
    ctx.set({ scores: input.checked ? (rounded ?? [[0]]) : null, step: null });
  });
  const show = () => (input.checked = Boolean(ctx.state.scores));
  ctx.subscribe(show);
  show();
  return make("label", { class: "switch" }, input, " ", make("span", { word: "steps.own" }));
}

export const panel = {
  id: "steps",
  title: "steps.title",
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
    "steps.title": "Steps",
    "steps.intro":
      "One head of attention with real numbers: (T, C) → (T, hs) → (T, T) → (T, hs). T tokens, C numbers a token, hs the head size.",
    "steps.view": "What to look at",
    "steps.view.steps": "Calculation",
    "steps.view.masks": "Three masks side by side",
    "steps.view.scaling": "Why scale",
    "steps.player": "Go through the stages",
    "steps.seed": "Seed",
    "steps.width": "Width C",
    "steps.size": "Head size hs",
    "steps.fill": "Hidden scores become",
    "steps.scaled": "Divide by √hs",
    "steps.rows": "Hide padded rows too",
    "steps.own": "Type my own scores",
    "steps.toomany": "Own scores can be typed for up to 10 tokens; with more, the computed ones are used.",
  },
  zh: {
    "steps.title": "计算步骤",
    "steps.intro":
      "用真实的数走一遍单头注意力：(T, C) → (T, hs) → (T, T) → (T, hs)。T 是词元数，C 是每个词元的维度，hs 是头维度。",
    "steps.view": "看什么",
    "steps.view.steps": "完整计算",
    "steps.view.masks": "三种掩码并排",
    "steps.view.scaling": "为什么要缩放",
    "steps.player": "逐步查看各阶段",
    "steps.seed": "随机种子",
    "steps.width": "维度 C",
    "steps.size": "头维度 hs",
    "steps.fill": "被遮住的分数改为",
    "steps.scaled": "除以 √hs",
    "steps.rows": "填充词元的行也遮住",
    "steps.own": "自己填写分数",
    "steps.toomany": "最多可为 10 个词元填写分数；词元更多时使用算出的分数。",
  },
});
