// Two small SVG charts: a line for a rate over the last minute, and bars for recent batches.
// Both have a fixed number of slots and fill from the right, so the time axis never changes its scale.

import { setAttribute, setText, svg } from "./dom.js";

const SLOTS = 60;
const HEIGHT = 24;

/** Make an empty line chart with a filled area; `drawLine` draws it. */
export function line(label) {
  const area = svg("path", { class: "chart-area" });
  const stroke = svg("path", { class: "chart-line" });
  return { element: frame(label, SLOTS - 1, "line", area, stroke), area, stroke };
}

export function drawLine(chart, values) {
  const shown = values.slice(-SLOTS);
  const top = Math.max(1, ...shown);
  const points = shown.map((value, n) => {
    const x = SLOTS - shown.length + n;
    return `${x},${round(HEIGHT - 1 - (value / top) * (HEIGHT - 3))}`;
  });
  const path = points.length > 1 ? `M${points.join("L")}` : "";
  setAttribute(chart.stroke, "d", path);
  setAttribute(chart.area, "d", path && `${path}V${HEIGHT}H${SLOTS - shown.length}Z`);
}

/** Make an empty chart with one bar per batch; `drawBars` draws it. */
export function bars(label) {
  const columns = Array.from({ length: SLOTS }, (_, n) => {
    const title = svg("title");
    return { title, element: svg("rect", { class: "chart-bar", x: n + 0.1, width: 0.8 }, title) };
  });
  return { element: frame(label, SLOTS, "bars", ...columns.map((column) => column.element)), columns };
}

/** Draw one `{value, title}` per batch, oldest first. */
export function drawBars(chart, batches) {
  const shown = batches.slice(-SLOTS);
  const top = Math.max(1, ...shown.map((batch) => batch.value));
  chart.columns.forEach(({ element, title }, n) => {
    const batch = shown[n - (SLOTS - shown.length)];
    // An empty batch is drawn as a hairline, to show that it ran.
    const height = batch ? Math.max(0.75, (batch.value / top) * HEIGHT) : 0;
    setAttribute(element, "height", round(height));
    setAttribute(element, "y", round(HEIGHT - height));
    setText(title, batch?.title ?? "");
  });
}

function frame(label, width, kind, ...children) {
  const meaning = { class: `chart chart-${kind}`, role: "img", "aria-label": label };
  const size = { viewBox: `0 0 ${width} ${HEIGHT}`, preserveAspectRatio: "none" };
  return svg("svg", { ...meaning, ...size }, ...children);
}

function round(value) {
  return Math.round(value * 100) / 100;
}
