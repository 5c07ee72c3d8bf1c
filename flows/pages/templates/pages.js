// Keys, choices that act at once, and what is new of a run that goes on. Without it the pages work by their links.
"use strict";

const rows = () => [...document.querySelectorAll("a.row")];
const follow = (rel) => document.querySelector(`a[rel="${rel}"]`)?.click();

function move(by) {
  const all = rows();
  const at = all.indexOf(document.activeElement) + (document.activeElement?.matches("a.row") || by > 0 ? by : 0);
  if (!all.length || at < 0 || at >= all.length) return follow(by > 0 ? "next" : "prev");
  all[at].focus();
}

function search() {
  const field = document.querySelector("input[type=search]");
  if (field) return field.select();
  const list = document.querySelector('a[rel="up"]');
  if (list) location.href = `${list.href}#search`;
}

const KEYS = { j: () => move(1), k: () => move(-1), "/": search, u: () => (document.querySelector('a[rel="up"]') ?? document.querySelector("nav a"))?.click() };

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest?.("input, select, textarea")) return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

for (const choice of document.querySelectorAll("form select")) choice.addEventListener("change", () => choice.form.submit());
if (location.hash === "#search") search();

// Only what differs is replaced, never what is being selected, and what was unfolded or has the focus keeps it.
function renew(page) {
  for (const old of document.querySelectorAll("[data-part]")) {
    const part = page.getElementById(old.id);
    if (!part || part.innerHTML === old.innerHTML.replaceAll(' open=""', "")) continue;
    const selection = getSelection();
    if (!selection.isCollapsed && selection.containsNode(old, true)) continue;
    const opened = [...old.querySelectorAll("details")].map((each) => each.open);
    const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    old.replaceChildren(...part.childNodes);
    old.querySelectorAll("details").forEach((each, place) => { each.open = opened[place] ?? false; });
    if (focused) [...old.querySelectorAll("a[href]")].find((each) => each.getAttribute("href") === focused)?.focus({ preventScroll: true });
  }
}

async function live() {
  let pause = Number(document.body.dataset.live) * 1000;
  while (pause) {
    await new Promise((resolve) => setTimeout(resolve, pause));
    if (document.hidden) continue;
    const begun = performance.now();
    try {
      const answer = await fetch(location.href);
      if (!answer.ok) continue;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      renew(page);
      // A storage that is slow to read is asked for a tenth of the time at most.
      pause = Math.max(Number(page.body.dataset.live ?? 0) * 1000, page.body.dataset.live ? 9 * (performance.now() - begun) : 0);
    } catch (error) {
      pause = Math.min(60_000, 2 * pause); // the server is gone for now
    }
  }
}
live();
