// Starts the page: the state from the link, words, theme, the cards, the panels.

import { file, get, isAbort, post } from "./api.js";
import { startAnswers } from "./answer.js";
import { byId, h, nextOf, rested, svg } from "./dom.js";
import { startExpression } from "./expression.js";
import { drawGrid } from "./grid.js";
import { startPlane } from "./plane.js";
import { link, restore, set, state, subject, subscribe, SUBJECT_KEYS } from "./state.js";
import { startTokens } from "./tokens.js";
import { add, apply, t } from "./words.js";

const PANELS = ["steps", "generate", "compare", "code", "cost", "recognise", "lessons"];
const panels = new Map(); // id -> {panel, tab, root, mounted}

/** Say something to who listens instead of looks. */
export function say(text) {
  const line = byId("said");
  line.textContent = "";
  setTimeout(() => (line.textContent = text), 30); // an unchanged text would not be read again
}

const ctx = {
  state,
  set,
  subscribe,
  subject,
  SUBJECT_KEYS,
  post,
  get,
  file,
  isAbort,
  t,
  add,
  apply,
  drawGrid,
  say,
  h,
  svg,
};

async function start() {
  restore();
  speak();
  paintTheme();
  nameTab();
  subscribe((_, keys) => {
    if (keys.has("lang")) speak();
    if (keys.has("theme")) paintTheme();
    if (keys.has("panel")) showPanel();
    if (keys.has("expression")) nameTab();
  });
  startHeader();
  stick(byId("grid-card"));
  stick(byId("panels"));
  addEventListener("hashchange", restore);
  const tokensAreThere = startTokens();
  startExpression(get("vocabulary"));
  startPlane(say);
  await tokensAreThere; // so that nothing asks about tokens of an older text
  startAnswers();
  await loadPanels();
}

function speak() {
  document.documentElement.lang = state.lang === "zh" ? "zh-Hans" : "en";
  apply(document);
  for (const button of byId("languages").children) {
    button.setAttribute("aria-pressed", String(button.dataset.lang === state.lang));
  }
  for (const { panel, tab } of panels.values()) tab.textContent = t(panel.title);
}

function nameTab() {
  document.title = `${state.expression.replace(/\s+/g, " ").slice(0, 80)} · maskwright`;
}

function paintTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = state.theme === "auto" ? (dark ? "dark" : "light") : state.theme;
  document.documentElement.dataset.theme = theme;
  byId("theme").value = state.theme;
  document.dispatchEvent(new Event("themechange")); // canvases have to be painted again
}

// The shorter of the two columns stays in sight: one taller than the window sticks by its end.
function stick(column) {
  const place = () => {
    column.style.top = `${Math.min(12, innerHeight - column.offsetHeight - 12)}px`;
  };
  new ResizeObserver(place).observe(column);
  addEventListener("resize", place);
}

function startHeader() {
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the hash is the state's
    byId("expression").focus();
  });
  byId("languages").addEventListener("click", (event) => {
    const { lang } = event.target.dataset;
    if (lang) set({ lang });
  });
  byId("theme").addEventListener("change", (event) => set({ theme: event.target.value }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintTheme);
  byId("lessons-link").addEventListener("click", () => {
    set({ panel: "lessons" });
    panels.get("lessons")?.tab.focus();
    byId("panels").scrollIntoView({ block: "start" });
  });
  byId("copy-link").addEventListener("click", copyLink);
}

async function copyLink() {
  const button = byId("copy-link");
  try {
    await navigator.clipboard.writeText(link());
    say(t("copied"));
    button.classList.add("done");
    rested(1500, () => button.classList.remove("done"))();
  } catch {
    say(t("copy_failed"));
    byId("copy-note").textContent = t("copy_failed");
  }
}

async function loadPanels() {
  const loaded = await Promise.all(PANELS.map(loadPanel));
  const tabs = byId("panel-tabs");
  tabs.replaceChildren();
  byId("panels-body").replaceChildren();
  for (const panel of loaded) {
    const tab = h(
      "button",
      {
        type: "button",
        class: "tab",
        role: "tab",
        id: `tab-${panel.id}`,
        "aria-controls": `panel-${panel.id}`,
        onclick: () => set({ panel: panel.id }),
      },
      t(panel.title),
    );
    const root = h("div", {
      role: "tabpanel",
      class: "tabpanel",
      id: `panel-${panel.id}`,
      "aria-labelledby": tab.id,
      tabindex: "0",
      hidden: true,
    });
    panels.set(panel.id, { panel, tab, root, mounted: false });
    tabs.append(tab);
    byId("panels-body").append(root);
  }
  tabs.addEventListener("keydown", (event) => {
    const next = nextOf([...tabs.children], event.key);
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  });
  showPanel();
}

/** A panel that fails to load says so in its own tab and leaves the others alone. */
async function loadPanel(id) {
  try {
    return (await import(`./panels/${id}.js`)).panel;
  } catch (error) {
    console.error(error);
    return failed(id, error);
  }
}

function failed(id, error) {
  return {
    id,
    title: `panel_${id}`,
    mount: (root) =>
      root.append(h("p", { class: "error" }, t("panel_failed", { message: error.message }))),
    show: () => {},
    hide: () => {},
  };
}

let shown = null;

function showPanel() {
  const wanted = panels.get(state.panel) ?? panels.get(PANELS[0]);
  if (!wanted || wanted === shown) return;
  shown?.panel.hide();
  for (const entry of panels.values()) {
    const chosen = entry === wanted;
    entry.root.hidden = !chosen;
    entry.tab.setAttribute("aria-selected", String(chosen));
    entry.tab.tabIndex = chosen ? 0 : -1;
  }
  shown = wanted;
  try {
    if (!wanted.mounted) wanted.panel.mount(wanted.root, ctx);
    wanted.mounted = true;
    wanted.panel.show();
  } catch (error) {
    console.error(error);
    wanted.root.replaceChildren(
      h("p", { class: "error" }, t("panel_failed", { message: error.message })),
    );
  }
  scrollTabIntoView(wanted.tab);
}

// Only the row of tabs may scroll, never the page.
function scrollTabIntoView(tab) {
  const row = tab.parentElement;
  row.scrollLeft = tab.offsetLeft - (row.clientWidth - tab.offsetWidth) / 2;
}

start();
