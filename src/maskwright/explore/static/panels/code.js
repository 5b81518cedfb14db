// Code: the mask as code per target, or the reason why a target cannot represent it.

import { addMessages } from "../i18n.js";
import { definePanel, fetchWhileShown, el } from "./panel.js";

function build(root, ctx) {
  const filter = el("input", {
    id: "code-filter",
    type: "search",
    class: "field",
    hint: "code.hint",
    autocomplete: "off",
  });
  const count = el("p", { class: "note", role: "status" });
  const body = el("div", { class: "panel-body targets" });
  root.append(
    el("p", { class: "note", msg: "code.intro" }),
    el("div", { class: "labelled" }, el("label", { for: "code-filter", msg: "code.filter" }), filter),
    count,
    body,
  );
  const filterCards = () => {
    const wanted = filter.value.trim().toLowerCase();
    let left = 0;
    for (const card of body.children) {
      card.hidden = !card.dataset.text.includes(wanted);
      if (!card.hidden) left += 1;
    }
    count.textContent = ctx.t("code.count", { count: left, all: body.children.length });
  };
  filter.addEventListener("input", filterCards);
  return fetchWhileShown(ctx, root, {
    body,
    request: () => ({ code: ["code", { subject: ctx.subject() }] }),
    draw(answers) {
      const sorted = [...answers.code.targets].sort((a, b) => Number(b.ok) - Number(a.ok));
      body.replaceChildren(...sorted.map((target) => card(target, ctx)));
      filterCards();
    },
  });
}

function card(target, ctx) {
  const element = el(
    "section",
    { class: "block target" },
    el(
      "h3",
      {},
      el("span", { text: target.name }),
      target.ok ? copy(target, ctx) : el("span", { class: "verdict bad", msg: "code.refused" }),
    ),
    el(
      "p",
      { class: "facts" },
      el("span", { class: "polarity", text: polarity(target.polarity, ctx) }),
      target.gives ? el("span", { lang: "en", text: target.gives }) : null,
    ),
    target.ok ? listing(target) : el("p", { class: "refusal", lang: "en", text: target.refusal }),
  );
  element.dataset.text = [target.name, target.gives, target.polarity, target.code ?? ""]
    .join(" ")
    .toLowerCase();
  return element;
}

function listing(target) {
  const code = el("pre", { class: "code" }, el("code", { text: target.code }));
  code.setAttribute("role", "region"); // so that it can be scrolled with the keyboard
  code.setAttribute("aria-label", target.name);
  code.tabIndex = 0;
  return code;
}

/** The polarity, translated. */
function polarity(text, ctx) {
  if (!text) return "";
  const known = {
    "True keeps": "code.keeps",
    "True masks": "code.drops",
    "0 keeps, -inf masks": "code.adds",
  }[text];
  return known ? ctx.t(known) : text;
}

function copy(target, ctx) {
  const button = el("button", {
    type: "button",
    class: "button quiet",
    "aria-label": `${ctx.t("code.copy")}: ${target.name}`,
    text: ctx.t("code.copy"),
  });
  button.addEventListener("click", async () => {
    const done = await copyText(target.code);
    ctx.announce(ctx.t(done ? "code.copied" : "code.failed", { name: target.name }));
    button.textContent = ctx.t(done ? "code.done" : "code.nope");
    setTimeout(() => (button.textContent = ctx.t("code.copy")), 1600);
  });
  return button;
}

/** Copy a text; by a hidden text field if the clipboard API is not available. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focused = document.activeElement;
    const box = el("textarea", { class: "hidden-label", "aria-hidden": "true", tabindex: -1 });
    box.value = text;
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    focused?.focus();
    return done;
  }
}

export const panel = definePanel("code", build);

addMessages({
  en: {
    "code.title": "Code",
    "code.intro":
      "This mask as code for each framework, or the reason why the framework cannot represent it.",
    "code.filter": "Find a target",
    "code.hint": "torch, jax, flash …",
    "code.count": "{count} of {all} targets",
    "code.refused": "not available",
    "code.keeps": "True keeps the key: the query attends to it",
    "code.drops": "True masks the key",
    "code.adds": "added to the scores: 0 keeps, −∞ masks",
    "code.copy": "Copy",
    "code.done": "Copied",
    "code.nope": "Not copied",
    "code.copied": "Code for {name} copied.",
    "code.failed": "The clipboard is not available. Select the code for {name} and copy it.",
  },
  zh: {
    "code.title": "代码",
    "code.intro": "当前掩码在各框架中的代码；无法表示时给出原因。",
    "code.filter": "查找目标框架",
    "code.hint": "torch、jax、flash……",
    "code.count": "共 {all} 个目标，显示 {count} 个",
    "code.refused": "不可用",
    "code.keeps": "True 表示保留：查询关注该键",
    "code.drops": "True 表示屏蔽该键",
    "code.adds": "加到分数上：0 保留，−∞ 屏蔽",
    "code.copy": "复制",
    "code.done": "已复制",
    "code.nope": "未能复制",
    "code.copied": "{name} 的代码已复制到剪贴板。",
    "code.failed": "无法使用剪贴板，请手动选中 {name} 的代码复制。",
  },
});
