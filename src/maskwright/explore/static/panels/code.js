// Code: how this mask is written for every framework, or why it can't be.

import { add } from "../words.js";
import { follow, make } from "./parts.js";

let following = null;

function mount(root, ctx) {
  const filter = make("input", {
    id: "code-filter",
    type: "search",
    class: "field",
    hint: "code.hint",
    autocomplete: "off",
  });
  const count = make("p", { class: "note", role: "status" });
  const body = make("div", { class: "panel-body targets" });
  root.append(
    make("p", { class: "note", word: "code.intro" }),
    make("div", { class: "labelled" }, make("label", { for: "code-filter", word: "code.filter" }), filter),
    count,
    body,
  );
  const sift = () => {
    const wanted = filter.value.trim().toLowerCase();
    let left = 0;
    for (const card of body.children) {
      card.hidden = !card.dataset.text.includes(wanted);
      if (!card.hidden) left += 1;
    }
    count.textContent = ctx.t("code.count", { count: left, all: body.children.length });
  };
  filter.addEventListener("input", sift);
  following = follow(ctx, root, {
    body,
    request: () => ({ code: ["code", { subject: ctx.subject() }] }),
    draw(answers) {
      const able = [...answers.code.targets].sort((one, other) => Number(other.ok) - Number(one.ok));
      body.replaceChildren(...able.map((target) => card(target, ctx)));
      sift();
    },
  });
}

function card(target, ctx) {
  const element = make(
    "section",
    { class: "block target" },
    make(
      "h3",
      {},
      make("span", { text: target.name }),
      target.ok ? copy(target, ctx) : make("span", { class: "verdict bad", word: "code.refused" }),
    ),
    make(
      "p",
      { class: "facts" },
      make("span", { class: "polarity", text: polarity(target.polarity, ctx) }),
      target.gives ? make("span", { lang: "en", text: target.gives }) : null,
    ),
    target.ok ? listing(target) : make("p", { class: "refusal", lang: "en", text: target.refusal }),
  );
  element.dataset.text = [target.name, target.gives, target.polarity, target.code ?? ""]
    .join(" ")
    .toLowerCase();
  return element;
}

function listing(target) {
  const code = make("pre", { class: "code" }, make("code", { text: target.code }));
  code.setAttribute("role", "region"); // wide or not, it can be reached and scrolled by the keyboard
  code.setAttribute("aria-label", target.name);
  code.tabIndex = 0;
  return code;
}

/** The polarity as the server says it, and what that means in the reader's language. */
function polarity(said, ctx) {
  if (!said) return "";
  const known = {
    "True keeps": "code.keeps",
    "True drops": "code.drops",
    "0 keeps, -inf hides": "code.adds",
  }[said];
  return known ? ctx.t(known) : said;
}

function copy(target, ctx) {
  const button = make("button", {
    type: "button",
    class: "button quiet",
    "aria-label": `${ctx.t("code.copy")}: ${target.name}`,
    text: ctx.t("code.copy"),
  });
  button.addEventListener("click", async () => {
    const done = await copied(target.code);
    ctx.say(ctx.t(done ? "code.copied" : "code.failed", { name: target.name }));
    button.textContent = ctx.t(done ? "code.done" : "code.nope");
    setTimeout(() => (button.textContent = ctx.t("code.copy")), 1600);
  });
  return button;
}

/** Put a text into the clipboard; by a hidden box where the browser keeps the clipboard closed. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focused = document.activeElement;
    const box = make("textarea", { class: "hidden-label", "aria-hidden": "true", tabindex: -1 });
    box.value = text;
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    focused?.focus();
    return done;
  }
}

export const panel = {
  id: "code",
  title: "code.title",
  mount,
  show: () => following?.show(),
  hide: () => following?.hide(),
};

// Added when the module loads, since the tab needs its title before the panel is shown.
add({
  en: {
    "code.title": "Code",
    "code.intro":
      "Exactly this mask in the form that each framework takes, or the reason why it can't be said there.",
    "code.filter": "Find a target",
    "code.hint": "torch, jax, flash …",
    "code.count": "{count} of {all} targets",
    "code.refused": "refused",
    "code.keeps": "True keeps: the query may see the key",
    "code.drops": "True drops: the key is hidden",
    "code.adds": "added to the scores: 0 keeps, −∞ hides",
    "code.copy": "Copy",
    "code.done": "Copied",
    "code.nope": "Not copied",
    "code.copied": "The code for {name} is in the clipboard.",
    "code.failed": "The clipboard is closed; select the code for {name} and copy it by hand.",
  },
  zh: {
    "code.title": "代码",
    "code.intro": "把当前掩码原样写成各框架接受的形式；写不出来的，说明原因。",
    "code.filter": "查找目标框架",
    "code.hint": "torch、jax、flash……",
    "code.count": "共 {all} 个目标，显示 {count} 个",
    "code.refused": "无法表达",
    "code.keeps": "True 表示保留：查询可以看到该键",
    "code.drops": "True 表示丢弃：该键被遮住",
    "code.adds": "加到分数上：0 保留，−∞ 遮住",
    "code.copy": "复制",
    "code.done": "已复制",
    "code.nope": "未能复制",
    "code.copied": "{name} 的代码已复制到剪贴板。",
    "code.failed": "无法使用剪贴板，请手动选中 {name} 的代码复制。",
  },
});
