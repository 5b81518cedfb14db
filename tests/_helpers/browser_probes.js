// What tests of the page read in the browser; loaded into every page before its own scripts.

globalThis.probes = {
  /** [row, column] of the cells of a kind in a picture. */
  cells(place, kind) {
    const frame = place.querySelector(".cell-frame");
    const [left, top] = ["x", "y"].map((name) => Number(frame.getAttribute(name)));
    const paths = [...place.querySelectorAll(`path.kind-${kind}`)].map((path) => path.getAttribute("d"));
    // A run is drawn as a rectangle: M x y h width v height …
    const runs = [...paths.join("").matchAll(/M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)/g)];
    return runs.flatMap((run) => {
      const [x, y, width, height] = run.slice(1).map(Number);
      const row = Math.round((y - top) / height);
      const column = Math.round((x - left) / height);
      const length = Math.round(width / height);
      return Array.from({ length }, (_, n) => [row, column + n]);
    });
  },

  /** The position of the mask's picture on the screen, scrolled into view. */
  pictureFrame() {
    const frame = document.querySelector("#stage .cell-frame");
    frame.scrollIntoView({ block: "center", behavior: "instant" });
    const { left, top, width, height } = frame.getBoundingClientRect();
    return [left, top, width, height];
  },

  /** The focused element by its id or name, and whether the focus is visible. */
  focused() {
    const at = document.activeElement;
    const styles = [at, at.closest(".editor") ?? at].map((element) => getComputedStyle(element));
    const isOutlined = styles.some(
      (style) =>
        (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) ||
        style.boxShadow !== "none",
    );
    const box = at.getBoundingClientRect();
    const name = at.id || at.dataset.name || at.getAttribute("aria-label") || at.textContent.trim();
    return { name, visible: isOutlined && box.width * box.height > 0, isBody: at === document.body };
  },

  /** Controls that are smaller than 24 pixels. */
  smallControls() {
    const selector = "button, select, input:not([type=checkbox], [type=file]), summary";
    return [...document.querySelectorAll(selector)]
      .map((control) => [control.outerHTML.slice(0, 80), control.getBoundingClientRect()])
      .filter(([, box]) => box.width > 0 && Math.min(box.width, box.height) < 24)
      .map(([name, box]) => `${name} ${box.width} × ${box.height}`);
  },

  /** The text before the marked error of the expression, and the marked text. */
  markedError() {
    const marks = [...document.querySelectorAll("#expression-back .is-error")];
    const range = document.createRange();
    range.setStart(document.getElementById("expression-back"), 0);
    range.setEndBefore(marks[0]);
    return [range.toString(), marks.map((mark) => mark.textContent).join("")];
  },

  /** Drop a file (base64) on the recognize panel. */
  dropFile([name, data]) {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([bytes], name));
    for (const type of ["dragenter", "dragover", "drop"]) {
      const event = new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true });
      document.querySelector("#panel-recognize .drop").dispatchEvent(event);
    }
  },

  /** The titles of the cells of a table: its numbers with all digits. */
  titles(table) {
    const rows = [...table.querySelectorAll("tbody tr")];
    return rows.map((row) => [...row.querySelectorAll("td")].map((cell) => cell.title));
  },

  redraws: 0,

  /** Count in `redraws` how often the picture of the mask is drawn. */
  countRedraws() {
    const grid = document.querySelector("#stage .grid");
    new MutationObserver(() => (probes.redraws += 1)).observe(grid, { childList: true });
  },

  errors: [],

  /** Record in `errors` the errors of the editor and the steps panel, with the expression. */
  recordErrors() {
    for (const place of document.querySelectorAll("#expression-error, #panel-steps .panel-error")) {
      const text = () => document.getElementById("expression").value;
      new MutationObserver(() => place.textContent && probes.errors.push([place.id, text()])).observe(
        place,
        { childList: true },
      );
    }
  },

  /** What the page has stored in the browser. */
  async stored() {
    const databases = await indexedDB.databases();
    const caches = await globalThis.caches.keys();
    return [localStorage.length, sessionStorage.length, document.cookie.length, databases.length, caches.length];
  },
};
