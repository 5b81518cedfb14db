// Requests the mask while the state changes, and passes the responses to the listeners.

import { isAbort, post } from "./api.js";
import { throttle } from "./dom.js";
import { set, sizes, state, subject, subscribe, SUBJECT_KEYS } from "./state.js";
import { tokensReady } from "./tokens.js";

const DEPENDENCIES = [...SUBJECT_KEYS, "batch", "head", "view"];
const BUSY_DELAY = 250; // milliseconds before the page shows that it waits
const MIN_INTERVAL = 40; // milliseconds between the starts of two requests
export const ERROR_DELAY = 300; // milliseconds without a change before an error is shown

const listeners = new Set();
let errorTimer = 0;
let inFlight = null; // {request, controller}

/**
 * Call `listener({answer, error, expression})` for every response that is not stale.
 *
 * While a slider is dragged, `expression` may already differ from that of the state.
 */
export function onMask(listener) {
  listeners.add(listener);
}

/** Load the mask now and after every change. At most one request is in flight. */
export function startMaskLoader() {
  const reload = throttle(MIN_INTERVAL, load);
  subscribe((_, keys) => {
    if (!DEPENDENCIES.some((name) => keys.has(name))) return;
    clearTimeout(errorTimer);
    if (inFlight && isStale(inFlight.request)) inFlight.controller.abort();
    reload();
  });
  reload();
}

/** Largest number of squares per side that fit the screen. */
const maxSquares = () => (innerWidth < 560 ? 64 : 128);

async function load() {
  await tokensReady();
  clampSelection();
  const { expression, batch, head, view } = state;
  const request = { subject: subject(), batch, head, view, most: maxSquares() };
  const controller = new AbortController();
  inFlight = { request, controller };
  const busyTimer = setTimeout(() => setBusy(true), BUSY_DELAY);
  try {
    const answer = await post("mask", request, controller.signal);
    if (isStale(request)) return;
    clearTimeout(errorTimer);
    emit({ answer, error: null, expression });
  } catch (error) {
    if (!isAbort(error) && !isStale(request)) fail(error, expression);
  } finally {
    inFlight = null;
    clearTimeout(busyTimer);
    setBusy(false);
  }
}

/** Whether the tokens or sizes have changed since; another expression does not make it stale. */
function isStale(request) {
  const expression = null;
  const sent = JSON.stringify({ ...request.subject, expression });
  return sent !== JSON.stringify({ ...subject(), expression });
}

function fail(error, expression) {
  // The mask may have fewer sequences or heads than the one before: show the first.
  const { batch, head, view } = state;
  if (error.kind === "FrameError" && (batch || head || view)) {
    set({ batch: 0, head: 0, view: null }, { derived: true });
    return;
  }
  clearTimeout(errorTimer);
  if (expression !== state.expression) return;
  errorTimer = setTimeout(() => emit({ answer: null, error, expression }), ERROR_DELAY);
}

function setBusy(busy) {
  document.body.classList.toggle("busy", busy);
}

/** Reset the view, the selected cell and the sequence where they lie outside of the mask. */
function clampSelection() {
  const { queries, keys, batch } = sizes();
  const { view, query, key } = state;
  const changes = {};
  if (view && (view.row + view.rows > queries || view.key + view.keys > keys)) changes.view = null;
  if (query >= queries || key >= keys) Object.assign(changes, { query: null, key: null });
  if (batch && state.batch >= batch) changes.batch = 0;
  set(changes, { derived: true });
}

function emit(event) {
  for (const listener of listeners) listener(event);
}
