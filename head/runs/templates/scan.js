// Draws the heat map of a scan from the numbers in its data; page.js comes before it.

const ROW = 18, BAND = 16, LABELS = 66;
const order = [..."GAVLIMPFWYSTCNQHKRDE"].filter((one) => data.residues.includes(one));
const what = data.quantity ?? "pKd", digits = data.digits ?? 3, sign = data.sign ?? 1; // -1: lower is better
const select = document.getElementById("parent"), farBox = document.getElementById("far");
const figure = document.getElementById("map");

// cells of a parent come site by site, in the order of data.residues without the wild type
function cellsOf(parent) {
  let k = 0;
  return parent.sites.map(([chain, prefix, position, region, wild], at) => {
    const cells = new Map();
    for (const residue of data.residues) {
      if (residue === wild) continue;
      cells.set(residue, {
        predicted: parent.predicted[k], difference: parent.difference[k], sigma: parent.sigma?.[k],
        far: parent.far[k] === "1", measured: parent.measured?.[k],
      });
      k += 1;
    }
    const label = prefix.length > 1 ? `${prefix}:${position}` : `${prefix}${position}`;
    return { chain, prefix, position, label, region, wild, cells, contribution: parent.contribution?.[at] ?? null };
  });
}

const signed = (x) => `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(digits)}`;
const nameOf = (site, residue) => `${site.prefix}:${site.wild}${site.position}${residue}`;

function describe(parent, site, residue) {
  const place = `${site.chain} ${site.position}, ${site.region}`;
  if (residue === site.wild) {
    const own = parent.measuredPkd === undefined ? "" : `, measured ${parent.measuredPkd}`;
    return `${site.label} ${site.wild}, wild type\n${place}\nparent: predicted ${what} ${parent.pkd}${parent.compared ?? ""}${own}`;
  }
  const { predicted, difference, sigma, far, measured } = site.cells.get(residue);
  return [
    nameOf(site, residue), place,
    `difference ${signed(difference)}${sigma == null ? "" : ` ± ${sigma}`}`,
    `predicted ${what} ${predicted.toFixed(digits)}`,
    measured === undefined ? "" : `measured ${what} ${measured}`,
    far ? "outside the training data" : "",
  ].filter(Boolean).join("\n");
}

const mean = (site) => {
  const all = [...site.cells.values()].map((one) => one.difference);
  return all.reduce((sum, x) => sum + x, 0) / all.length;
};

function limit(sites) {
  const sizes = sites.flatMap((site) => [...site.cells.values()].map((one) => Math.abs(one.difference)));
  sizes.sort((a, b) => a - b);
  return sizes[Math.floor(0.99 * (sizes.length - 1))] || sizes.at(-1) || 1;
}

const shade = (x, most) => {
  const share = Math.round(100 * Math.min(1, Math.abs(x) / most));
  return `fill: color-mix(in oklab, var(${sign * x < 0 ? "--c2" : "--c1"}) ${share}%, var(--none))`;
};

function draw() {
  const parent = data.parents[select ? select.selectedIndex : 0], sites = cellsOf(parent), most = limit(sites);
  const rows = figure.querySelector(".rows"), box = figure.querySelector(".scroll");
  rows.replaceChildren();
  box.replaceChildren();
  const bottom = BAND + ROW * order.length, meanRow = bottom + 6;
  const ownRow = meanRow + ROW, below = parent.contribution ? ownRow + ROW : ownRow;
  const height = below + LABELS;

  const names = add(rows, "svg", { width: 42, height });
  order.forEach((one, r) => add(names, "text", { x: 36, y: BAND + ROW * r + 13, "text-anchor": "end" }, one));
  add(names, "text", { x: 36, y: meanRow + 13, "text-anchor": "end" }, "mean");
  if (parent.contribution) add(names, "text", { x: 36, y: ownRow + 13, "text-anchor": "end" }, "own");

  // the names of the rows have taken their share of the width
  const column = Math.max(16, Math.min(44, Math.floor(box.clientWidth / sites.length)));
  const width = column * sites.length;
  const svg = add(box, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Predicted change of ${what} by position and residue` });
  drawBands(svg, sites, column, bottom);
  const far = [];
  let measured = 0;
  sites.forEach((site, c) => {
    const x = column * c;
    order.forEach((residue, r) => {
      const y = BAND + ROW * r;
      if (residue === site.wild) {
        add(svg, "circle", { class: "wild", cx: x + column / 2, cy: y + ROW / 2, r: 3 });
        return;
      }
      const cell = site.cells.get(residue);
      add(svg, "rect", { x, y, width: column - 1, height: ROW - 1, style: shade(cell.difference, most) });
      if (cell.measured !== undefined) {
        measured += 1;
        add(svg, "rect", { class: "measured", x: x + 1, y: y + 1, width: column - 3, height: ROW - 3 });
      }
      if (cell.far) far.push(`M${x + 2} ${y + ROW - 4}L${x + column - 4} ${y + 2}`);
    });
    if (site.cells.size) add(svg, "rect", { x, y: meanRow, width: column - 1, height: ROW - 1, style: shade(mean(site), most) });
    if (site.contribution !== null) add(svg, "rect", { class: "own", x, y: ownRow, width: column - 1, height: ROW - 1, style: shade(site.contribution, most) });
    const place = `translate(${x + column / 2 + 4} ${below + 6}) rotate(-90)`;
    add(svg, "text", { transform: place, "text-anchor": "end" }, `${site.label} ${site.wild}`);
  });
  if (farBox.checked) add(svg, "path", { class: "far", d: far.join("") });
  drawScale(most, far.length, measured);
  listen(svg, parent, sites, column, meanRow, ownRow);
}

function drawBands(svg, sites, column, bottom) {
  let from = 0;
  sites.forEach((site, c) => {
    const next = sites[c + 1];
    if (next && next.region === site.region && next.chain === site.chain) return;
    const x = column * from, width = column * (c + 1 - from);
    add(svg, "rect", { class: `band${site.region.startsWith("fr") ? " frame" : ""}`, x, y: 0, width: width - 1, height: BAND - 3 });
    const name = site.region === "antigen" ? site.chain : site.region;
    if (width > 7 * name.length) add(svg, "text", { class: "label", x: x + width / 2, y: BAND - 5, "text-anchor": "middle" }, name);
    if (next) add(svg, "path", { class: "grid", d: `M${x + width - 0.5} 0V${bottom}` });
    from = c + 1;
  });
}

function drawScale(most, far, measured) {
  const caption = figure.querySelector("figcaption");
  caption.replaceChildren();
  const svg = add(caption, "svg", { width: 260, height: 34, role: "img", "aria-label": "Colour scale" });
  for (let i = 0; i < 21; i += 1) {
    add(svg, "rect", { x: 12 * i, y: 0, width: 12, height: 12, style: shade(((i - 10) / 10) * most, most) });
  }
  const ends = [[0, "start", -most], [126, "middle", 0], [252, "end", most]];
  for (const [x, anchor, value] of ends) {
    add(svg, "text", { x, y: 28, "text-anchor": anchor }, value ? `${signed(value)} ${what}` : "0");
  }
  const outside = `; a stroke marks the ${far.toLocaleString("en")} mutants outside the training data`;
  const frames = `; a frame marks the ${measured.toLocaleString("en")} measured mutants`;
  const marks = `${measured ? frames : ""}${far && farBox.checked ? outside : ""}`;
  add(caption, "span", {}, `A dot marks the wild type${marks}. Colours end at the 99 % quantile of the differences.`);
}

function listen(svg, parent, sites, column, meanRow, ownRow) {
  const mark = add(svg, "rect", { class: "mark", width: column, height: ROW, visibility: "hidden" });
  const leave = () => { tip.hidden = true; mark.setAttribute("visibility", "hidden"); };
  follow(svg, (event) => {
    const box = svg.getBoundingClientRect();
    const c = Math.floor((event.clientX - box.left) / column), y = event.clientY - box.top;
    const r = Math.floor((y - BAND) / ROW), site = sites[c];
    const onMean = y >= meanRow && y < ownRow, onOwn = y >= ownRow && y < ownRow + ROW && site?.contribution !== null;
    if (!site || (!onMean && !onOwn && !order[r])) return leave();
    mark.setAttribute("x", column * c - 0.5);
    mark.setAttribute("y", (onMean ? meanRow : onOwn ? ownRow : BAND + ROW * r) - 0.5);
    mark.setAttribute("visibility", "visible");
    const own = `${site.label} ${site.wild}`;
    if (onMean) showTip(event, `${own}\nmean difference ${signed(mean(site))}`);
    else if (onOwn) showTip(event, `${own}\ncontributes ${signed(site.contribution)}`);
    else showTip(event, describe(parent, site, order[r]));
  }, leave);
}

function csvRows() {
  const head = ["parent", "mutation", "chain", "position", "region", "wild_type", "mutant", data.columns?.pkd_predicted ?? "pkd_predicted", "difference", "difference_sigma", data.columns?.pkd_measured ?? "pkd_measured", "outside_training"];
  const rows = data.parents.flatMap((parent) => cellsOf(parent).flatMap((site) =>
    [...site.cells].map(([residue, { predicted, difference, sigma, far, measured }]) => [
      parent.name, nameOf(site, residue), site.chain, site.position, site.region, site.wild, residue,
      predicted.toFixed(digits), String(difference), String(sigma ?? ""), String(measured ?? ""), far ? "yes" : "",
    ])));
  return [head, ...rows];
}

addCsv(figure, "single-mutants", csvRows);
addCue(figure.querySelector(".scroll"), figure.querySelector(".map"));
select?.addEventListener("change", draw);
farBox.addEventListener("change", draw);
onResize(draw);
farBox.parentElement.hidden = !data.parents.some((one) => one.far.includes("1"));
farBox.checked = !data.mostFar; // where nearly all are marked, strokes only hide the colours
draw();
