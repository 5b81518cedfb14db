// Elements made by hand: text is always text, never markup.

/** An element with attributes, listeners (`onclick: fn`), `dataset`, and children. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

export const byId = (id) => document.getElementById(id);

/** Call `fn` once the calls have stopped for some milliseconds; `.cancel()` forgets the last. */
export function rested(milliseconds, fn) {
  let timer = 0;
  const call = (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => fn(...args), milliseconds);
  };
  call.cancel = () => clearTimeout(timer);
  return call;
}

/** Hand a file to the reader. */
export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Arrow keys, Home and End within a list of controls of which one has the focus. */
export function nextOf(list, key) {
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
