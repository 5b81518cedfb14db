// Player controls: first, previous, play, next, by buttons or arrow keys.

import { addMessages } from "../i18n.js";
import { hasAny, el } from "./panel.js";

/**
 * The controls. `key` is the key of the state with the index, `count()` the number of items,
 * `describe(index)` the announcement of an item. Without an index all items are shown if `all`,
 * else the first.
 */
export function player(ctx, { key, label, count, describe = null, all = false, pause = 1800 }) {
  let timer = 0;
  const go = (index) => {
    const last = count() - 1;
    if (last < 0) return;
    ctx.set({ [key]: Math.max(0, Math.min(last, index)) });
  };
  const at = () => {
    const index = ctx.state[key];
    return Number.isInteger(index) ? Math.max(0, Math.min(index, count() - 1)) : all ? -1 : 0;
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    show();
  };
  const play = () => {
    if (timer) return stop();
    if (at() < 0 || at() >= count() - 1) go(0); // from the start
    timer = setInterval(() => {
      go(at() + 1);
      if (at() >= count() - 1) stop();
    }, pause);
    show();
  };
  const goByHand = (index) => {
    if (timer) stop();
    go(index);
    if (describe) ctx.announce(describe(at()));
  };

  const first = button("«", "player.first", () => goByHand(0));
  const previous = button("‹", "player.previous", () => goByHand(at() - 1));
  const playing = el("button", { type: "button", class: "button play", on: { click: play } });
  playing.textContent = ctx.t("player.play");
  const next = button("›", "player.next", () => goByHand(at() + 1));
  const whole = el("button", {
    type: "button",
    class: "button",
    msg: "player.all",
    on: { click: () => (stop(), ctx.set({ [key]: null })) },
  });
  const place = el("span", { class: "place" });
  const element = el("div", { class: "player", role: "group", label }, first, previous, playing, next);
  if (all) element.append(whole);
  element.append(place);

  const show = () => {
    const index = at();
    const last = count() - 1;
    first.disabled = previous.disabled = index <= 0;
    next.disabled = index >= last;
    playing.textContent = ctx.t(timer ? "player.pause" : "player.play");
    whole.setAttribute("aria-pressed", String(index < 0));
    place.textContent = index < 0 ? "" : ctx.t("player.place", { index: index + 1, count: last + 1 });
  };
  ctx.subscribe((state, changed) => hasAny(changed, key, "lang") && show());

  const moves = {
    ArrowLeft: () => at() - 1,
    ArrowRight: () => at() + 1,
    Home: () => 0,
    End: () => count() - 1,
  };
  const onKey = (event) => {
    const move = moves[event.key];
    if (!move || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
    // Elsewhere, Home and End scroll the page.
    if (!event.key.startsWith("Arrow") && !event.target.closest(".player, .strip")) return;
    if (event.key === "ArrowLeft" && at() < 0) return;
    if (event.target.closest("input, select, textarea, [role=region], [role=grid], [role=tab]")) return;
    event.preventDefault();
    goByHand(move());
  };
  return { element, at, stop, show, onKey };
}

function button(sign, label, click) {
  return el("button", { type: "button", class: "button square", label, text: sign, on: { click } });
}

addMessages({
  en: {
    "player.first": "First",
    "player.previous": "Previous",
    "player.next": "Next",
    "player.play": "Play",
    "player.pause": "Pause",
    "player.all": "All stages",
    "player.place": "{index} of {count}",
  },
  zh: {
    "player.first": "回到开头",
    "player.previous": "上一步",
    "player.next": "下一步",
    "player.play": "播放",
    "player.pause": "暂停",
    "player.all": "全部显示",
    "player.place": "第 {index} 步，共 {count} 步",
  },
});
