// The table of a view: headings that sort, and cells that flash when they change.

import { h, reconcile, setAttribute, setText } from "../lib/dom.js";
import { exactCell, formatCell, isNumber } from "../lib/format.js";

const FLASH = { duration: 1400, easing: "ease-out" };
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

/** Create an empty table for a view's shape; `onSort(column)` is called when a heading is clicked. */
export function createTable(shape, onSort) {
  const headings = new Map(shape.columns.map((column) => [column.name, heading(column, shape, onSort)]));
  const body = h("tbody");
  const row = h("tr", {}, ...headings.values());
  return { element: h("table", { class: "rows" }, h("thead", {}, row), body), shape, headings, body };
}

/** Draw rows given as `{key, row}`; `touched` maps a key to the names of the columns that flash. */
export function drawTable(table, rows, { order, zone, touched }) {
  for (const [name, cell] of table.headings) {
    const direction = order.descending ? "descending" : "ascending";
    setAttribute(cell, "aria-sort", name === order.column ? direction : null);
  }
  const { columns } = table.shape;
  const update = (parts, { key, row }) => updateRow(parts, row, { columns, zone, names: touched.get(key) });
  reconcile(table.body, rows, ({ key }) => key, () => createRow(table.shape), update);
}

function heading(column, shape, onSort) {
  const attributes = { type: "button", title: column.type, click: () => onSort(column.name) };
  const button = h("button", attributes, column.name);
  if (shape.key.includes(column.name)) button.append(h("span", { class: "key" }, "key"));
  return h("th", { scope: "col", class: cellClass(column) }, button);
}

function createRow(shape) {
  const cells = shape.columns.map((column) => h("td", { class: cellClass(column) }));
  return { element: h("tr", {}, ...cells), cells };
}

function updateRow(parts, row, { columns, zone, names }) {
  columns.forEach(({ name, type }, n) => {
    const cell = parts.cells[n];
    setText(cell, formatCell(row[name], type, zone));
    setAttribute(cell, "title", exactCell(row[name], type, zone));
    if (names?.has(name)) flash(cell);
  });
}

function flash(cell) {
  if (reducedMotion.matches) return;
  cell.animate([{ backgroundColor: "var(--flash)" }, { backgroundColor: "transparent" }], FLASH);
}

function cellClass({ type }) {
  return isNumber(type) ? "number" : "text";
}
