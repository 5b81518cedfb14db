// Recognise: an array of anybody's, by file or pasted, as an expression; and what is wrong with it.

import { add } from "../words.js";
import { base64, dropPlace } from "./drop.js";
import { bytes } from "./numbers.js";
import { complain, fresh, make } from "./parts.js";
import { PasteError, lists } from "./paste.js";

// The server takes a body of 1 MiB; base64 makes four letters of three bytes.
const LARGEST = 760 * 1024;
const EXAMPLE = "0 1 1 1 1\n0 0 1 1 1\n0 0 0 1 1\n0 0 0 0 1\n0 0 0 0 0";

let control = null;
let last = null; // {answer, name}, drawn again when the language changes

function mount(root, ctx) {
  const id = fresh("paste");
  const box = make("textarea", {
    id,
    class: "field mono",
    rows: 5,
    spellcheck: "false",
    autocomplete: "off",
    hint: "recognise.hint",
  });
  const kind = causalBox();
  const complaint = make("div", { class: "panel-complaint", role: "status" });
  const body = make("div", { class: "panel-body" });
  const place = make("div", { class: "grid-place" });

  const ask = async (request, name) => {
    control?.abort();
    control = new AbortController();
    const { signal } = control;
    complaint.replaceChildren();
    body.setAttribute("aria-busy", "true");
    const causal = kind.value();
    try {
      const answer = await ctx.post("recognise", causal === null ? request : { ...request, causal }, signal);
      if (signal.aborted) return;
      last = { answer, name };
      redraw(body, place, ctx);
      ctx.say(answer.expression ? ctx.t("recognise.said", { expression: answer.expression }) : answer.says);
    } catch (error) {
      if (signal.aborted || error.name === "AbortError") return;
      last = null;
      body.replaceChildren();
      complain(complaint, ctx, error);
    } finally {
      if (!signal.aborted) body.removeAttribute("aria-busy");
    }
  };

  let repeat = null;
  const read = () => {
    try {
      const array = lists(box.value);
      repeat = read;
      ask({ array }, null);
    } catch (error) {
      if (!(error instanceof PasteError)) throw error;
      complain(complaint, ctx, { message: ctx.t(error.word, error.values), status: 400 });
    }
  };
  const take = async (file) => {
    if (file.size > LARGEST) {
      const message = ctx.t("recognise.large", {
        name: file.name,
        size: bytes(file.size),
        most: bytes(LARGEST),
      });
      return complain(complaint, ctx, { message, status: 413 });
    }
    repeat = () => take(file);
    ask({ npy: await base64(file) }, file.name);
  };
  kind.element.addEventListener("change", () => repeat?.());

  const example = () => {
    box.value = EXAMPLE;
    read();
  };
  root.append(
    make("p", { class: "note", word: "recognise.intro" }),
    dropPlace({
      word: "recognise.drop",
      button: "recognise.choose",
      accept: ".npy,.npz",
      take,
      around: root,
    }),
    make("div", { class: "labelled" }, make("label", { for: id, word: "recognise.paste" }), box),
    make(
      "div",
      { class: "row" },
      make("button", {
        type: "button",
        class: "button primary",
        word: "recognise.read",
        on: { click: read },
      }),
      make("button", {
        type: "button",
        class: "button quiet",
        word: "recognise.example",
        on: { click: example },
      }),
      kind.element,
    ),
    complaint,
    body,
  );
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) read();
  });
  ctx.subscribe((state, changed) => changed.has("lang") && redraw(body, place, ctx));
  ctx.apply(root);
}

function redraw(body, place, ctx) {
  if (!last) return;
  const { answer, name } = last;
  const use = () => {
    ctx.set(stateOf(answer));
    ctx.say(ctx.t("recognise.used"));
  };
  const facts = [
    ["recognise.shape", `(${(answer.shape ?? []).join(", ")})`],
    ["recognise.dtype", answer.dtype],
    ["recognise.convention", answer.convention],
  ];
  body.replaceChildren(
    make(
      "section",
      { class: "block" },
      make("h3", {}, make("span", name ? { text: name, dir: "auto" } : { word: "recognise.result" })),
      answer.expression
        ? make("p", { class: "formula" }, make("code", { text: answer.expression }))
        : make("p", { class: "says", word: answer.grid ? "recognise.long" : "recognise.nothing" }),
      make(
        "dl",
        { class: "pairs" },
        ...facts
          .filter(([, value]) => value)
          .flatMap(([word, value]) => [make("dt", { word }), make("dd", { text: value })]),
      ),
      answer.expression ? null : make("p", { class: "says", lang: "en", text: answer.says }),
      answer.expression
        ? make("button", { type: "button", class: "button", word: "recognise.use", on: { click: use } })
        : null,
    ),
    findings(answer.lint ?? [], ctx.state.lang),
  );
  if (answer.grid)
    body.append(make("section", { class: "block" }, make("h3", { word: "recognise.grid" }), place));
  ctx.apply(body);
  if (answer.grid) ctx.drawGrid(place, answer.grid, { label: answer.expression ?? ctx.t("recognise.grid") });
}

function findings(lint, lang) {
  const list = make("ul", { class: "findings" });
  for (const { code, message, message_zh: chinese, severity } of lint) {
    const zh = lang === "zh" && chinese;
    list.append(
      make(
        "li",
        { class: severity ?? "" },
        make("code", { text: code }),
        " ",
        make("span", zh ? { lang: "zh", text: chinese } : { lang: "en", text: message }),
      ),
    );
  }
  const none = make("p", { class: "says", word: "recognise.clean" });
  return make(
    "section",
    { class: "block" },
    make("h3", { word: "recognise.lint" }),
    lint.length ? list : none,
  );
}

/** The state in which the page shows the recognised mask at its own size. */
function stateOf({ expression, frame, grid }) {
  const [queries, keys] = grid.extent;
  const start = frame && frame.q_start !== keys - queries ? frame.q_start : null;
  const batches = frame?.batch > 1 ? frame.batch : null;
  const heads = frame?.heads > 1 ? frame.heads : null;
  const nothingChosen = { batch: 0, head: 0, view: null, query: null, key: null };
  return {
    expression,
    text: null,
    size: queries,
    keys: keys === queries ? null : keys,
    q_start: start,
    batches,
    heads,
    ...nothingChosen,
  };
}

function causalBox() {
  const choices = [
    ["", "recognise.causal.unknown"],
    ["true", "recognise.causal.yes"],
    ["false", "recognise.causal.no"],
  ];
  const select = make(
    "select",
    { class: "select" },
    ...choices.map(([value, word]) => make("option", { value, word })),
  );
  const element = make(
    "label",
    { class: "inline" },
    make("span", { class: "note", word: "recognise.causal" }),
    " ",
    select,
  );
  return { element, value: () => (select.value ? select.value === "true" : null) };
}

export const panel = {
  id: "recognise",
  title: "recognise.title",
  mount,
  show() {},
  hide() {},
};

add({
  en: {
    "recognise.title": "Recognise",
    "recognise.intro":
      "Have a mask as an array? See which one it is, in which convention, and what may be wrong with it. Nothing leaves this machine.",
    "recognise.drop": "Drop an .npy or .npz file here, or",
    "recognise.choose": "Choose a file",
    "recognise.paste": "Or paste an array",
    "recognise.hint": "[[1, 0], [1, 1]], rows of 0 and 1, or what numpy prints",
    "recognise.read": "Recognise",
    "recognise.example": "Try an example",
    "recognise.causal": "Meant to be causal?",
    "recognise.causal.unknown": "not said",
    "recognise.causal.yes": "yes",
    "recognise.causal.no": "no",
    "recognise.result": "This is",
    "recognise.long": "No short expression says this mask; it is what the picture shows.",
    "recognise.nothing": "This array can't be read as one mask.",
    "recognise.shape": "shape",
    "recognise.dtype": "dtype",
    "recognise.convention": "convention",
    "recognise.use": "Use this expression",
    "recognise.used": "The expression is in the mask box.",
    "recognise.said": "Recognised as {expression}",
    "recognise.lint": "Findings",
    "recognise.clean": "Nothing wrong was found.",
    "recognise.grid": "What may be seen",
    "recognise.large":
      "{name} has {size}, more than the {most} that fit here. Save a part of the array, or run maskwright lint on the file.",
    "paste.empty": "There is no number here. Paste an array.",
    "paste.brackets": "The brackets do not pair. Paste the whole array.",
    "paste.short":
      "The print leaves cells out (…). Print the whole array, or save it by np.save and drop the file.",
    "paste.ragged": "The rows are of different length. Paste a full array.",
    "paste.cell": "“{part}” is no number and no truth value. Paste numbers, True, False or -inf.",
  },
  zh: {
    "recognise.title": "识别",
    "recognise.intro":
      "手头有一个数组形式的掩码？看看它是哪种掩码、用的什么约定、有没有问题。数据不会离开本机。",
    "recognise.drop": "把 .npy 或 .npz 文件拖到这里，或者",
    "recognise.choose": "选择文件",
    "recognise.paste": "也可以粘贴数组",
    "recognise.hint": "[[1, 0], [1, 1]]、由 0 和 1 组成的行，或 numpy 打印的内容",
    "recognise.read": "识别",
    "recognise.example": "试一个例子",
    "recognise.causal": "本应是因果掩码吗？",
    "recognise.causal.unknown": "不说明",
    "recognise.causal.yes": "是",
    "recognise.causal.no": "不是",
    "recognise.result": "识别结果",
    "recognise.long": "没有简短的表达式能写出这个掩码，内容见下图。",
    "recognise.nothing": "无法把这个数组读成一个掩码。",
    "recognise.shape": "形状",
    "recognise.dtype": "数据类型",
    "recognise.convention": "约定",
    "recognise.use": "使用这个表达式",
    "recognise.used": "表达式已填入掩码框。",
    "recognise.said": "识别为 {expression}",
    "recognise.lint": "检查结果",
    "recognise.clean": "没有发现问题。",
    "recognise.grid": "哪些格子可见",
    "recognise.large":
      "{name} 有 {size}，超过了这里的上限 {most}。请只保存数组的一部分，或对该文件运行 maskwright lint。",
    "paste.empty": "这里没有数字，请粘贴一个数组。",
    "paste.brackets": "括号不配对，请粘贴完整的数组。",
    "paste.short": "打印内容有省略（…）。请打印完整数组，或用 np.save 保存后把文件拖进来。",
    "paste.ragged": "各行长度不一，请粘贴完整的数组。",
    "paste.cell": "“{part}”既不是数字也不是布尔值，请粘贴数字、True、False 或 -inf。",
  },
});
