// The mask as the server sees it: asked when what it depends on has rested, told to who listens.

import { isAbort, post } from "./api.js";
import { rested } from "./dom.js";
import { set, sizes, state, subject, subscribe, SUBJECT_KEYS } from "./state.js";
import { tokensSettled } from "./tokens.js";

const DEPENDS = [...SUBJECT_KEYS, "batch", "head", "view"];
const LONG = 250; // milliseconds after which the page shows that it waits
const CALM = 300; // milliseconds before an error is told
const REST = 60; // milliseconds without a keystroke before the server is asked

const listeners = new Set();
let asking = new AbortController();

/** Call `listener({answer, error, expression})` for every answer that still counts. */
export function onAnswer(listener) {
  listeners.add(listener);
}

/** Ask now, and after every change from here on. */
export function startAnswers() {
  const later = rested(REST, ask);
  subscribe((_, keys) => {
    if (DEPENDS.some((name) => keys.has(name))) {
      asking.abort(); // its answer would come late
      later();
    }
  });
  ask();
}

/** How many signs a side fit the screen. */
export const most = () => (innerWidth < 560 ? 64 : 128);

async function ask() {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  await tokensSettled();
  if (signal.aborted) return;
  fit();
  const { expression } = state;
  const waiting = setTimeout(() => !signal.aborted && busy(true), LONG);
  try {
    const answer = await answerOf(signal);
    if (!signal.aborted) tell({ answer, error: null, expression });
  } catch (error) {
    if (isAbort(error)) return;
    await pause(CALM); // who is still writing need not hear of it
    if (!signal.aborted) tell({ answer: null, error, expression });
  } finally {
    clearTimeout(waiting);
    if (!signal.aborted) busy(false);
  }
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function busy(truth) {
  document.body.classList.toggle("busy", truth);
}

async function answerOf(signal) {
  const { batch, head, view } = state;
  try {
    return await post("mask", { subject: subject(), batch, head, view, most: most() }, signal);
  } catch (error) {
    // The mask may have fewer batch rows or heads than the one before: then the first is shown.
    if (error.kind === "FrameError" && !signal.aborted) set({ batch: 0, head: 0, view: null });
    throw error;
  }
}

function fit() {
  const { queries, keys, batch } = sizes();
  const { view, query, key } = state;
  const changes = {};
  if (view && (view.row + view.rows > queries || view.key + view.keys > keys)) changes.view = null;
  if (query >= queries || key >= keys) Object.assign(changes, { query: null, key: null });
  if (batch && state.batch >= batch) changes.batch = 0;
  set(changes);
}

function tell(news) {
  for (const listener of listeners) listener(news);
}
