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
  const cells = (row) => [...row.cells].map((cell) => cell.textContent.trim());
  addCsv(table.parentElement, table.dataset.csv, () => [...table.rows].map(cells));
});
document.querySelectorAll("[data-scripted]").forEach((node) => { node.hidden = false; });
document.getElementById("theme").addEventListener("click", () => {
  const style = document.documentElement.style;
  const dark = style.colorScheme ? style.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  style.colorScheme = dark ? "light" : "dark";
});

function onResize(draw) {
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 150); });
}
