// What every page shares: its data, the box beside the pointer, CSV files and the colour scheme.
// Names come from files that others may have written: they become text nodes, never markup.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);

function add(parent, tag, attributes = {}, text = "") {
  const svg = tag === "svg" ? "http://www.w3.org/2000/svg" : parent.namespaceURI;
  const node = document.createElementNS(svg, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return parent.appendChild(node);
}

const tip = add(document.body, "div", { id: "tip", hidden: "" });

function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const right = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(8, right)}px`;
  tip.style.top = `${Math.max(8, event.clientY - tip.offsetHeight - 14)}px`;
}

function follow(svg, move, leave) {
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", leave);
}

function addCsv(after, name, rows) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "csv";
  button.textContent = "Download as CSV";
  after.after(button);
  button.addEventListener("click", () => {
    const lines = rows().map((cells) => cells.map(quote).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`\ufeff${lines.join("\r\n")}\r\n`], { type: "text/csv" }));
    link.download = `${name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}

// spreadsheets run cells that begin like this as formulas, also full-width, and the names are not ours
const FORMULA = /^\s*[=+\-@＝＋－＠]|^[\t\r]/;
const NUMBER = /^[+-]?[\d.]+(e[+-]?\d+)?( (and )?\[[+-]?[\d.]+, [+-]?[\d.]+\])*$/; // and its intervals

function quote(text) {
  const safe = FORMULA.test(text) && !NUMBER.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

document.querySelectorAll("table[data-csv]").forEach((table) => {
  const cells = (row) => [...row.cells].map((cell) => cell.textContent.trim().replaceAll("\u00a0", " "));
  addCsv(table.parentElement, table.dataset.csv, () => [...table.rows].map(cells));
  if (table.tBodies[0].rows.length > 1) [...table.tHead.rows[0].cells].forEach((head) => addSort(table, head));
  addCue(table.parentElement);
});

// by the first number of a cell, else by its text; cells without a value come last
function addSort(table, head) {
  head.tabIndex = 0;
  head.classList.add("sortable");
  const key = (row) => row.cells[head.cellIndex].textContent.trim();
  const number = (text) => Number(/^[-+−]?[\d.,]+(e[-+]?\d+)?/.exec(text)?.[0].replaceAll(",", "").replace("−", "-"));
  const sort = () => {
    const up = head.ariaSort === "descending" || (!head.ariaSort && head.classList.contains("text"));
    [...head.parentElement.cells].forEach((cell) => { cell.ariaSort = null; });
    head.ariaSort = up ? "ascending" : "descending";
    const sign = up ? 1 : -1, body = table.tBodies[0];
    const rows = [...body.rows].map((row) => ({ row, text: key(row), value: number(key(row)) }));
    const known = rows.filter((one) => one.text && !/^[–-]$/.test(one.text));
    const numeric = known.every((one) => Number.isFinite(one.value));
    known.sort((a, b) => sign * (numeric ? a.value - b.value : a.text.localeCompare(b.text)));
    body.append(...known.map((one) => one.row), ...rows.filter((one) => !known.includes(one)).map((one) => one.row));
  };
  head.addEventListener("click", sort);
  head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
}

// says that a table or map goes on to the right, which a phone does not show
function addCue(scroll, at = scroll) {
  const cue = document.createElement("p");
  cue.className = "cue";
  cue.textContent = "Scroll sideways for more columns →";
  at.before(cue);
  const update = () => {
    cue.hidden = scroll.scrollWidth <= scroll.clientWidth + 1;
    scroll.classList.toggle("more", scroll.scrollLeft + scroll.clientWidth < scroll.scrollWidth - 1);
  };
  scroll.addEventListener("scroll", update, { passive: true });
  new ResizeObserver(update).observe(scroll);
}

document.querySelectorAll("[data-tip]").forEach((node) => {
  const leave = () => { tip.hidden = true; };
  node.addEventListener("pointermove", (event) => showTip(event, node.dataset.tip));
  node.addEventListener("pointerleave", leave);
  node.addEventListener("focus", () => {
    const box = node.getBoundingClientRect();
    showTip({ clientX: box.left, clientY: box.top }, node.dataset.tip);
  });
  node.addEventListener("blur", leave);
});
document.querySelectorAll("[data-scripted]").forEach((node) => { node.hidden = false; });

// some browsers let no page store anything, and a frame of a notebook may not either
const scheme = document.documentElement.style;
try { scheme.colorScheme = localStorage.getItem("abag-theme") ?? ""; } catch { /* not remembered */ }
document.getElementById("theme").addEventListener("click", () => {
  const dark = scheme.colorScheme ? scheme.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  scheme.colorScheme = dark ? "light" : "dark";
  try { localStorage.setItem("abag-theme", scheme.colorScheme); } catch { /* not remembered */ }
});

function onResize(draw) {
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 150); });
}
