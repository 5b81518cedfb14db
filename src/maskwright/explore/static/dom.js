// DOM helpers: create elements (text is never parsed as markup), debounce, throttle, download.

/** Create an element with attributes, listeners (`onclick: fn`), `dataset`, and children. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

export const byId = (id) => document.getElementById(id);

/** Call `fn` once there was no call for some milliseconds; `.cancel()` drops a pending call. */
export function debounce(milliseconds, fn) {
  let timer = 0;
  const call = (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => fn(...args), milliseconds);
  };
  call.cancel = () => clearTimeout(timer);
  return call;
}

/**
 * Run the async `fn` at the first call and once more after the last one (leading and trailing
 * edge). Runs never overlap, and begin at least `milliseconds` apart.
 */
export function throttle(milliseconds, fn) {
  let running = false;
  let pending = false;
  return async function call() {
    if (running) {
      pending = true;
      return;
    }
    running = true;
    try {
      do {
        pending = false;
        await Promise.all([fn(), sleep(milliseconds)]);
      } while (pending);
    } finally {
      running = false;
    }
  };
}

export const sleep = (milliseconds) =>
  new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Let the browser download a blob. */
export function downloadBlob(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** The control that an arrow key, Home or End moves the focus to, within a list of controls. */
export function rovingTarget(list, key) {
  const at = list.indexOf(document.activeElement);
  if (at < 0) return null;
  if (key === "Home") return list[0];
  if (key === "End") return list.at(-1);
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
  return step ? list[(at + step + list.length) % list.length] : null;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
