// What the theme builds while the page opens, made reachable by keys and known by name.
const name = (box, role, label) => {
  box.setAttribute("role", role);
  if (label) box.setAttribute("aria-label", label);
};

const finish = () => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap:not([role])")) {
    name(box, "group", "Table");
    box.tabIndex = 0; // it scrolls sideways
  }
  for (const box of document.querySelectorAll(".md-code__nav:not([role])")) name(box, "none");
};

name(document.querySelector(".md-search"), "dialog", "Search");
finish();
new MutationObserver(finish).observe(document.body, { childList: true, subtree: true });
