// The views of the app as tabs, and the rows of one view, updated live.

import { copyText } from "../lib/copy.js";
import { h, reconcile, setAttribute, setText } from "../lib/dom.js";
import { formatCell, formatCount } from "../lib/format.js";
import { Rows } from "../parts/rows.js";
import { createTable, drawTable } from "../parts/table.js";

const SHOWN_MAX = 200;
const DRAW_EVERY_MS = 100;
const RELOAD_MS = 2000;

export const page = { title: "Views", path: "/views", named: true, mount };

function mount(element, context) {
  const opened = new ViewsPage(element, context);
  return { update: (status) => opened.update(status), unmount: () => opened.open(null) };
}

/** The panel with one tab per view. */
class ViewsPage {
  constructor(element, context) {
    this.context = context;
    this.panel = null; // the ViewPanel of the selected view
    const tabs = { class: "tabs", role: "tablist", "aria-label": "Views", keydown: moveBetweenTabs };
    this.tabs = h("div", tabs);
    this.content = h("div", { id: "view", role: "tabpanel" });
    const heading = h("h2", { id: "views-title" }, "Views");
    const head = h("div", { class: "panel-head" }, heading, this.tabs);
    element.append(h("section", { class: "panel views", "aria-labelledby": "views-title" }, head, this.content));
  }

  update({ views }) {
    const { name } = this.context.state.route;
    const selected = name ? views.find((view) => view.name === name) : views[0];
    reconcile(this.tabs, views, (view) => view.name, createTab, (tab, view) => this.updateTab(tab, view, selected));
    setAttribute(this.content, "aria-label", selected?.name ?? "Views");
    if (!selected) {
      this.open(null);
      this.content.replaceChildren(h("p", { class: "empty" }, describeMissing(name, views)));
      return;
    }
    if (!this.panel || !sameShape(this.panel.shape, selected)) this.open(selected);
    this.panel.update(selected.rows);
  }

  /** Show the rows of a view; null closes the one that is open. */
  open(shape) {
    this.panel?.close();
    this.panel = shape && new ViewPanel(this.content, shape, this.context);
  }

  updateTab(tab, view, selected) {
    const isSelected = view === selected;
    setText(tab.rows, formatCount(view.rows));
    setAttribute(tab.element, "href", this.context.link(`${page.path}/${encodeURIComponent(view.name)}`));
    setAttribute(tab.element, "aria-selected", isSelected);
    setAttribute(tab.element, "tabindex", isSelected || !selected ? 0 : -1);
  }
}

function createTab(view) {
  const rows = h("span", { class: "count" });
  return { element: h("a", { role: "tab", "aria-controls": "view" }, view.name, rows), rows };
}

function moveBetweenTabs(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1, " ": 0 }[event.key];
  if (step === undefined) return;
  event.preventDefault();
  const tabs = [...event.currentTarget.children];
  const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
  next.focus();
  next.click();
}

function describeMissing(name, views) {
  if (name && views.length > 0) return `There is no view ${name}. Choose one of those above.`;
  return `${name ? `There is no view ${name} yet.` : "No views yet."} A view appears when its pipeline has started.`;
}

function sameShape(a, b) {
  return a.name === b.name && JSON.stringify([a.key, a.columns]) === JSON.stringify([b.key, b.columns]);
}

/** The rows of one view: reads them, subscribes to the changes, and draws the rows that match the filter. */
class ViewPanel {
  constructor(element, shape, context) {
    this.shape = shape;
    this.context = context;
    this.rows = new Rows(shape);
    this.total = shape.rows;
    this.loaded = false;
    this.drawn = ""; // the total and the choices at the last drawing
    this.table = createTable(shape, (column) => this.sort(column));
    this.summary = h("p", { class: "summary" });
    this.note = h("div", { class: "empty" });
    this.filter = this.createFilter();
    const region = { class: "scroll", tabindex: "0", role: "region", "aria-label": `rows of ${shape.name}` };
    this.scroll = h("div", region, this.table.element);
    element.replaceChildren(this.createToolbar(), this.note, this.scroll, this.summary);
    this.draw();
    this.load();
  }

  get choices() {
    return this.context.state.choices;
  }

  /** Read the rows, then subscribe to the changes after them. */
  async load() {
    this.close();
    this.reading = new AbortController();
    try {
      const response = await fetch(this.rowsUrl(Rows.limit), { signal: this.reading.signal, cache: "no-store" });
      if (!response.ok) throw new Error(`the server responded with ${response.status}`);
      const { rows, token } = await response.json();
      this.rows.replace(rows, token);
      this.loaded = true;
      this.subscribe();
      this.draw();
    } catch (error) {
      if (error.name !== "AbortError") this.reloading = setTimeout(() => this.load(), RELOAD_MS);
    }
  }

  /**
   * Follow the changes after the last one seen. The server sends `reset` if it no longer has them, or if the view
   * was rebuilt. The rows that follow a reset are all rows of the view; the first ones in the order shown are
   * enough here, so they are read instead.
   */
  subscribe() {
    const url = () => `${address(this.shape.name)}/subscribe?${new URLSearchParams({ token: this.rows.token })}`;
    const change = (data, token) => this.apply(data, token);
    this.feed = this.context.feeds.follow(url, { change, reset: () => this.load() });
  }

  close() {
    this.reading?.abort();
    this.feed?.close();
    clearTimeout(this.reloading);
    clearTimeout(this.drawing);
    this.drawing = null;
  }

  apply(change, token) {
    this.rows.apply(change, token);
    this.drawing ??= setTimeout(() => this.draw(), DRAW_EVERY_MS);
  }

  /** Draw again if the number of rows on the server or a choice has changed. */
  update(total) {
    this.total = total;
    if (this.filter.value.trim() !== this.choices.filter) this.filter.value = this.choices.filter;
    if (this.drawn !== this.describeState()) this.drawing ??= setTimeout(() => this.draw(), 0);
  }

  sort(column) {
    const order = this.order();
    const descending = order.column === column ? !order.descending : false;
    this.context.choose({ sort: `${descending ? "-" : ""}${column}` });
    // The first rows in the new order may be ones that are not held here.
    if (!this.rows.complete) this.load();
  }

  /** The chosen order; by default the newest window first, or the order of the key. */
  order() {
    const chosen = this.choices.sort.replace(/^-/, "");
    const names = this.shape.columns.map((column) => column.name);
    if (names.includes(chosen)) return { column: chosen, descending: this.choices.sort.startsWith("-") };
    const isWindowed = names.includes("window");
    return { column: isWindowed ? "window" : this.shape.key[0], descending: isWindowed };
  }

  rowsUrl(limit) {
    const { column, descending } = this.order();
    return `${address(this.shape.name)}/rows?${new URLSearchParams({ order_by: column, descending, limit })}`;
  }

  draw() {
    clearTimeout(this.drawing);
    this.drawing = null;
    this.drawn = this.describeState();
    const order = this.order();
    const all = this.rows.sorted(order);
    const matching = this.choices.filter ? all.filter((row) => this.matches(row)) : all;
    const shown = matching.slice(0, SHOWN_MAX).map((row) => ({ key: this.rows.keyOf(row), row }));
    drawTable(this.table, shown, { order, zone: this.choices.zone, touched: this.rows.takeTouched() });
    setText(this.summary, this.describe(all.length, matching.length, shown.length));
    this.drawNote(all.length, matching.length);
    // Rows were deleted, fewer are held than can be shown, and the server has more.
    if (!this.rows.complete && all.length < SHOWN_MAX) this.load();
  }

  describeState() {
    const { filter, sort, zone } = this.choices;
    return JSON.stringify([this.total, filter, sort, zone]);
  }

  matches(row) {
    const cells = this.shape.columns.map(({ name, type }) => formatCell(row[name], type, this.choices.zone));
    const text = cells.join(" ").toLowerCase();
    return this.choices.filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  describe(held, matching, shown) {
    const total = this.rows.complete ? held : Math.max(held, this.total);
    const rows = `${formatCount(total)} ${total === 1 ? "row" : "rows"}`;
    if (!this.choices.filter) return withRest(shown, total, rows);
    const searched = held < total ? `the first ${formatCount(held)} of ${rows}` : rows;
    return withRest(shown, matching, `${formatCount(matching)} of ${searched} match`);
  }

  drawNote(held, matching) {
    const empty = "No rows yet. They appear when the pipeline has read its first events.";
    const reason = this.loaded ? empty : "Reading the rows";
    setText(this.note, held === 0 ? reason : "No row matches the filter.");
    setAttribute(this.note, "hidden", matching === 0 ? null : "");
    setAttribute(this.scroll, "hidden", matching === 0 ? "" : null);
  }

  createFilter() {
    const filter = h("input", {
      type: "search",
      id: "filter",
      placeholder: "Filter rows  /",
      "aria-label": "Filter rows",
      autocomplete: "off",
      spellcheck: "false",
      input: (event) => this.context.choose({ filter: event.target.value.trim() }),
    });
    filter.value = this.choices.filter;
    return filter;
  }

  createToolbar() {
    const command = `headwater view rows ${this.shape.name}`;
    const copyButton = (label, title, text) =>
      h("button", { type: "button", class: "button", title, click: () => this.copy(text()) }, label);
    return h(
      "div",
      { class: "toolbar" },
      this.filter,
      h("span", { class: "muted copy-label" }, "Copy as"),
      copyButton("CLI", command, () => command),
      copyButton("URL", "a curl command", () => this.curl()),
    );
  }

  async copy(text) {
    this.context.notify(await copyText(text));
  }

  curl() {
    return `curl '${location.origin}${this.rowsUrl(SHOWN_MAX)}'`;
  }
}

function address(view) {
  return `/api/v1/views/${encodeURIComponent(view)}`;
}

function withRest(shown, total, text) {
  return shown < total ? `${text}, ${formatCount(total - shown)} more not shown` : text;
}
