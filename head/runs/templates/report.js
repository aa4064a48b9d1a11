// Draws the charts of a report from the numbers in its data; page.js comes before it.
const pairs = data.pairs;
const pkd = data.quantity; // what the labels are called, such as pIC50
const unusedNetwork = "The network has weight 0: predictions are those of the other parts.";
const hidden = new Set();
let view = 0; // the regime that is shown

// ---- what the charts show --------------------------------------------------------------------

const tested = () => {
  const { pair, predicted, sigma } = data.tests[view];
  return pair.map((p, i) => ({ pair: p, predicted: predicted[i], sigma: sigma[i] }));
};

const zip = (xs, ys, tip) => xs.map((x, i) => ({ x, y: ys[i], tip: () => tip(x, ys[i], i) }));

function describe(p) {
  const bound = { "-1": "below ", 0: "", 1: "above " }[pairs.bound[p]];
  return [
    pairs.row && `row ${pairs.row[p]}`, pairs.id?.[p], pairs.antibody?.[p], pairs.antigens[pairs.antigen[p]],
    `measured ${bound}${pairs.pkd[p]}`,
  ].filter(Boolean).join("\n");
}

const describeTest = (t) => `${describe(t.pair)}\npredicted ${t.predicted}\n` +
  `predicted − measured ${(t.predicted - pairs.pkd[t.pair]).toFixed(data.digits ?? 3)}\nsigma ${t.sigma}`;

function byAntigen(items) {
  const groups = new Map();
  for (const one of items) {
    const name = pairs.antigens[pairs.antigen[one.pair]];
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(one);
  }
  const largest = [...groups].sort((a, b) => b[1].length - a[1].length);
  const series = largest.slice(0, 9).map(([name, own], rank) => ({ name, colour: `c${rank + 1}`, items: own }));
  return [...series, { name: "other antigens", colour: "c0", items: largest.slice(9).flatMap((one) => one[1]) }];
}

const charts = {
  measured() {
    const items = tested().map((t) => ({
      ...t, x: pairs.pkd[t.pair], y: t.predicted, tip: () => describeTest(t),
    }));
    const exact = items.filter((one) => !pairs.bound[one.pair]);
    const censored = items.filter((one) => pairs.bound[one.pair]);
    return {
      x: `measured ${pkd}`, y: `predicted ${pkd}`, equal: true, diagonal: true,
      series: [...byAntigen(exact), { name: "censored", colour: "hollow", items: censored }],
    };
  },
  antigens({ antigens }) {
    const series = ["ridge", "head"].map((name) => ({
      name, colour: `${name === "head" ? "c1" : "c0"} large`,
      items: zip(antigens[name], [...antigens.rows.keys()], (x, y) =>
        `${antigens.names[y]}, ${antigens.rows[y]} rows\nhead ${antigens.head[y]}` +
        (antigens.ridge[y] === null ? "" : `\nridge ${antigens.ridge[y]}`)),
    }));
    return { x: "Spearman within the antigen", categories: antigens.names, xs: [-1, 0, 1], series };
  },
  residues() {
    const { places, row, letter, pairs: count, x, to } = data.residues;
    const name = { ".": "without an insertion", "-": "deleted" };
    const items = zip(x, row, (value, r, i) => `${places[r]} ${name[letter[i]] ?? letter[i]}, in ${count[i]} training pairs\ncontributes ${value}`);
    items.forEach((one, i) => { one.letter = { ".": "·", "-": "Δ" }[letter[i]] ?? letter[i]; });
    return {
      x: `contribution to ${to}`, categories: places, xs: [0],
      series: [{ name: "residues", colour: "c1", kind: "letter", items }],
    };
  },
  campaign() {
    const { round, measured, best, expected } = data.campaign, rounds = [...best.keys()];
    const say = (what) => (x, y) => `round ${Math.round(x)}\n${what} ${y}`;
    return {
      x: "round", whole: true, y: pkd,
      series: [
        { name: "measured", colour: "c0", items: zip(round, measured, say("measured")) },
        { name: "best so far", colour: "c1", kind: "line", items: zip(rounds, best, say("best so far")) },
        { name: "expected best", colour: "c2 large", items: zip(rounds, expected, say("expected best")) },
      ],
    };
  },
  calibration({ calibration }) {
    if (!calibration) return { series: [] };
    const items = zip(calibration.x, calibration.y, (x, y, i) =>
      `mean predicted ${x}\nmean measured ${y} ± ${calibration.error[i]}`);
    items.forEach((one, i) => { one.error = calibration.error[i]; });
    return {
      x: `predicted ${pkd}, mean per bin`, y: `measured ${pkd}, mean ± s.e.`, diagonal: true,
      series: [{ name: "bins", colour: "c1", kind: "line", items }],
      note: calibration.slope === null ? "" : `Slope ${calibration.slope.toFixed(3)}.`,
    };
  },
  coverage({ coverage }) {
    if (!coverage) return { series: [] };
    const items = zip(coverage.x, coverage.y, (x, y) => `nominal ${x}\nfound ${y}`);
    return {
      x: "nominal coverage", y: "share of test rows inside", xs: [0, 1], ys: [0, 1],
      diagonal: true, series: [{ name: "coverage", colour: "c1", kind: "line", items }],
    };
  },
  sigma({ deciles }) {
    if (!deciles) return { series: [] };
    const exact = tested().filter((t) => !pairs.bound[t.pair]);
    const items = exact.map((t) => ({
      x: t.sigma, y: Math.abs(t.predicted - pairs.pkd[t.pair]), tip: () => describeTest(t),
    }));
    const line = zip(deciles?.x ?? [], deciles?.y ?? [], (x, y) => `mean sigma ${x}\nRMSE ${y}`);
    return {
      x: `sigma, ${pkd}`, y: `|predicted − measured|, ${pkd}`, from: 0, diagonal: true,
      series: [
        { name: "test rows", colour: "c0", items },
        { name: "RMSE per decile of sigma", colour: "c2", kind: "line", items: line },
      ],
    };
  },
  loss({ training, networkIsUsed }) {
    return {
      note: networkIsUsed ? "" : unusedNetwork,
      x: "step", whole: true, y: "training loss",
      series: training ? curves("training loss", "c1", "step", training.step, training.loss, training.folds) : [],
    };
  },
  validation({ training, networkIsUsed }) {
    const names = { spearman: "Spearman", rmse: `RMSE (${pkd})` };
    const series = Object.keys(names).flatMap((name, i) => training
      ? curves(names[name], `c${i + 1}`, "epoch", training.epoch, training[name], training.folds) : []);
    return { x: "epoch", whole: true, y: "validation score", series, note: networkIsUsed ? "" : unusedNetwork };
  },
  learningCurve() {
    const sizes = data.learningCurve.map((point) => point[0]);
    const series = ["Spearman", "RMSE"].map((name, i) => {
      const scores = data.learningCurve.map((point) => point[i + 1]);
      const items = zip(sizes, scores, (x, y) => `${x} training pairs\n${name} ${y.toFixed(3)}`);
      return { name, colour: `c${i + 1}`, kind: "line", items };
    });
    return { x: "training pairs", y: "test score", from: 0, series };
  },
};

// The median over folds, and a band from the lowest to the highest.
function curves(name, colour, unit, xs, { low, median, high }, folds) {
  const items = zip(xs, median, (x, y, i) => `${unit} ${x}\n${name} ${y}` +
    (folds > 1 ? `\n${low[i]} to ${high[i]} in ${folds} folds` : ""));
  items.forEach((one, i) => { one.low = low[i]; one.high = high[i]; });
  const line = { name, colour, kind: "line", plain: xs.length > 40, items };
  return folds > 1 ? [{ ...line, kind: "band" }, line] : [line];
}

// ---- drawing ---------------------------------------------------------------------------------

function ticks([low, high], most, least = 0) {
  const rough = Math.max((high - low) / most, least), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
  const count = Math.floor(high / step + 1e-9) - Math.ceil(low / step - 1e-9) + 1;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: count }, (_, i) => Number(((first + i) * step).toPrecision(9)));
}

function extent(values) {
  const known = values.filter(Number.isFinite);
  if (!known.length) return [0, 1];
  let [low, high] = known.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [known[0], known[0]]);
  const margin = (high - low || 1) * 0.04;
  return [low - margin, high + margin];
}

function draw(name) {
  const figure = document.getElementById(name), box = figure.querySelector(".plot");
  const spec = charts[name](data.views[view]);
  const series = spec.series
    .map((one) => ({ ...one, items: one.items.filter((i) => i.x !== null && i.y !== null) }))
    .filter((one) => one.items.length);
  figure.hidden = !series.length;
  box.replaceChildren();
  if (!series.length) return;
  figure.querySelector(".noted").textContent = spec.note ?? "";

  const items = series.flatMap((one) => one.items), rows = spec.categories;
  const width = box.clientWidth, height = rows ? 60 + 22 * rows.length : Math.min(360, width * 0.72);
  const left = rows ? Math.min(170, width * 0.38) : 54, bottom = height - 40;
  const margins = items.flatMap((i) => (i.error ? [i.y - i.error, i.y + i.error] : [i.low, i.high]));
  let xs = extent([...items.map((i) => i.x), ...(spec.xs ?? []), ...(spec.from === 0 ? [0] : [])]);
  let ys = extent([...items.map((i) => i.y), ...margins, ...(spec.ys ?? []), ...(spec.from === 0 ? [0] : [])]);
  if (spec.equal) xs = ys = [Math.min(xs[0], ys[0]), Math.max(xs[1], ys[1])];
  if (rows) ys = [rows.length - 0.5, -0.5];
  const X = (v) => left + ((v - xs[0]) / (xs[1] - xs[0])) * (width - left - 12);
  const Y = (v) => bottom - ((v - ys[0]) / (ys[1] - ys[0])) * (bottom - 10);

  const svg = add(box, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": figure.querySelector("h3").textContent });
  for (const t of ticks(xs, width < 420 ? 4 : 7, spec.whole ? 1 : 0)) {
    add(svg, "path", { class: t === 0 && rows ? "axis" : "grid", d: `M${X(t)} 10V${bottom}` });
    add(svg, "text", { x: X(t), y: bottom + 16, "text-anchor": "middle" }, t);
  }
  const yTicks = rows ? [...rows.keys()] : ticks(ys, 6);
  for (const t of yTicks) {
    add(svg, "path", { class: "grid", d: `M${left} ${Y(t)}H${width - 12}` });
    const text = rows ? shorten(rows[t], Math.floor((left - 10) / 6.4)) : t;
    add(svg, "text", { x: left - 6, y: Y(t) + 4, "text-anchor": "end" }, text);
  }
  add(svg, "text", { class: "label", x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, spec.x);
  if (spec.y) {
    const place = `translate(11 ${bottom / 2}) rotate(-90)`;
    add(svg, "text", { class: "label", transform: place, "text-anchor": "middle" }, spec.y);
  }
  if (spec.diagonal) {
    const low = Math.max(xs[0], ys[0]), high = Math.min(xs[1], ys[1]);
    if (low < high) add(svg, "path", { class: "axis", d: `M${X(low)} ${Y(low)}L${X(high)} ${Y(high)}` });
  }
  const shown = series.filter((one) => !hidden.has(`${name}/${one.name}`));
  for (const one of shown) drawSeries(svg, one, X, Y);
  drawLegend(box, name, series);
  listen(svg, shown.flatMap((one) => one.items.map((i) => ({ px: X(i.x), py: Y(i.y), tip: i.tip }))));
}

const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function drawSeries(svg, { items, kind, colour, plain }, X, Y) {
  if (kind === "band") {
    const edge = (side) => items.map((i) => `${X(i.x).toFixed(1)} ${Y(i[side]).toFixed(1)}`);
    add(svg, "path", { class: `band ${colour}`, d: `M${[...edge("high"), ...edge("low").reverse()].join("L")}Z` });
    return;
  }
  if (kind === "letter") {
    for (const i of items) add(svg, "text", { class: `letter ${colour}`, x: X(i.x).toFixed(1), y: Y(i.y) + 4, "text-anchor": "middle" }, i.letter);
    return;
  }
  const at = items.map((i) => `${X(i.x).toFixed(1)} ${Y(i.y).toFixed(1)}`);
  if (kind === "line") {
    add(svg, "path", { class: `line ${colour}`, d: `M${at.join("L")}` });
    const bars = items.filter((i) => i.error).map((i) => `M${X(i.x)} ${Y(i.y - i.error)}V${Y(i.y + i.error)}`);
    add(svg, "path", { class: `line ${colour}`, d: bars.join("") });
  }
  // a line of no length with round ends is a dot: one element draws thousands of points
  if (!plain) add(svg, "path", { class: `dots ${colour}`, d: at.map((p) => `M${p}h0`).join("") });
}

function drawLegend(box, chart, series) {
  const names = new Map(series.map((one) => [one.name, one.colour]));
  if (names.size < 2) return;
  const legend = add(box, "div", { class: "legend" });
  for (const [name, colour] of names) {
    const key = `${chart}/${name}`;
    const button = add(legend, "button", { type: "button", "aria-pressed": !hidden.has(key) });
    const swatch = add(button, "svg", { width: 12, height: 12 });
    add(swatch, "path", { class: `dots ${colour}`, d: "M6 6h0" });
    add(button, "span", {}, name);
    button.addEventListener("click", () => {
      if (!hidden.delete(key)) hidden.add(key);
      draw(chart);
    });
  }
}

function listen(svg, points) {
  const mark = add(svg, "circle", { class: "mark", r: 6, visibility: "hidden" });
  const leave = () => { tip.hidden = true; mark.setAttribute("visibility", "hidden"); };
  const move = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let best = null, least = 20;
    for (const p of points) {
      const far = Math.hypot(p.px - x, p.py - y);
      if (far < least) [best, least] = [p, far];
    }
    if (!best) return leave();
    mark.setAttribute("cx", best.px);
    mark.setAttribute("cy", best.py);
    mark.setAttribute("visibility", "visible");
    showTip(event, best.tip());
  };
  follow(svg, move, leave);
}

// ---- controls --------------------------------------------------------------------------------

for (const name of ["residues", "campaign"]) if (!data[name]) delete charts[name];
const drawAll = () => Object.keys(charts).forEach(draw);

const select = document.getElementById("fold");
select?.addEventListener("change", () => { view = select.selectedIndex; drawAll(); });
onResize(drawAll);
drawAll();
