// Starts the page: the state of the URL, language, theme, cards and panels.

import { file, get, isAbort, post } from "./api.js";
import { byId, debounce, h, rovingTarget, svg } from "./dom.js";
import { startExpressionEditor } from "./expression_editor.js";
import { drawGrid } from "./grid.js";
import { startHistory } from "./history.js";
import { t, translate } from "./i18n.js";
import { startMaskCard } from "./mask_card.js";
import { startMaskLoader } from "./mask_loader.js";
import { link, set, state, subject, subscribe } from "./state.js";
import { replaceState, startToast } from "./toast.js";
import { startTokens } from "./tokens.js";

const PANELS = ["steps", "generate", "compare", "code", "cost", "recognize", "lessons"];
const panels = new Map(); // id -> {panel, tab, root, mounted}

/** Announce a text to screen readers. */
function announce(text) {
  const region = byId("announcer");
  region.textContent = "";
  setTimeout(() => (region.textContent = text), 30); // an unchanged text would not be read again
}

const ctx = {
  state,
  set,
  subscribe,
  subject,
  post,
  get,
  file,
  isAbort,
  t,
  translate,
  drawGrid,
  announce,
  replaceState,
  h,
  svg,
};

async function start() {
  startHistory();
  startToast();
  showLanguage();
  showTheme();
  showTitle();
  subscribe((_, keys) => {
    if (keys.has("lang")) showLanguage();
    if (keys.has("theme")) showTheme();
    if (keys.has("panel")) showPanel();
    if (keys.has("expression")) showTitle();
  });
  startHeader();
  stick(byId("grid-card"));
  stick(byId("panels"));
  const firstTokens = startTokens();
  startExpressionEditor(get("vocabulary"));
  startMaskCard(announce);
  await firstTokens;
  startMaskLoader();
  await loadPanels();
}

function showLanguage() {
  document.documentElement.lang = state.lang === "zh" ? "zh-Hans" : "en";
  translate(document);
  for (const button of byId("languages").children) {
    button.setAttribute("aria-pressed", String(button.dataset.lang === state.lang));
  }
  for (const { panel, tab } of panels.values()) tab.textContent = t(panel.title);
}

function showTitle() {
  document.title = `${state.expression.replace(/\s+/g, " ").slice(0, 80)} · maskwright`;
}

function showTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = state.theme === "auto" ? (dark ? "dark" : "light") : state.theme;
  document.documentElement.dataset.theme = theme;
  byId("theme").value = state.theme;
  document.dispatchEvent(new Event("themechange")); // canvases are painted again
}

// A column that is taller than the window sticks with its end, so that all of it can be read.
function stick(column) {
  const place = () => {
    column.style.top = `${Math.min(12, innerHeight - column.offsetHeight - 12)}px`;
  };
  new ResizeObserver(place).observe(column);
  addEventListener("resize", place);
}

function startHeader() {
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the hash holds the state
    byId("expression").focus();
  });
  byId("languages").addEventListener("click", (event) => {
    const { lang } = event.target.dataset;
    if (lang) set({ lang });
  });
  byId("theme").addEventListener("change", (event) => set({ theme: event.target.value }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
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
    announce(t("copied"));
    button.classList.add("done");
    debounce(1500, () => button.classList.remove("done"))();
  } catch {
    announce(t("copy_failed"));
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
    const next = rovingTarget([...tabs.children], event.key);
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  });
  showPanel();
}

/** A panel that does not load shows the error in its tab; the others work. */
async function loadPanel(id) {
  try {
    return (await import(`./panels/${id}.js`)).panel;
  } catch (error) {
    console.error(error);
    return failedPanel(id, error);
  }
}

function failedPanel(id, error) {
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
