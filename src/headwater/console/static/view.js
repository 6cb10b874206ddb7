// One view, live: reads its rows, follows its changes, and draws what the filter lets through.

import { copyText } from "./copy.js";
import { h, setAttribute, setText } from "./dom.js";
import { Feed } from "./feeds.js";
import { formatCell, formatCount } from "./format.js";
import { Rows } from "./rows.js";
import { createTable, drawTable } from "./table.js";

const SHOWN_MAX = 200;
const DRAW_EVERY_MS = 100;
const RELOAD_MS = 2000;

/** The panel of one view; `choices` are the page's, and `onChoice` is told when the panel changes one. */
export class ViewPanel {
  constructor(place, shape, choices, onChoice) {
    this.shape = shape;
    this.choices = choices;
    this.onChoice = onChoice;
    this.rows = new Rows(shape);
    this.total = shape.rows;
    this.loaded = false;
    this.table = createTable(shape, (column) => this.sort(column));
    this.summary = h("p", { class: "summary" });
    this.note = h("div", { class: "empty" });
    const named = { class: "scroll", tabindex: "0", role: "region", "aria-label": `rows of ${shape.name}` };
    this.scroll = h("div", named, this.table.element);
    place.replaceChildren(this.toolbar(), this.note, this.scroll, this.summary);
    this.draw();
  }

  /** Read the rows and follow from there; `quit` ends it. */
  async follow() {
    this.quit();
    this.reading = new AbortController();
    try {
      const answer = await fetch(this.rowsUrl(Rows.limit), { signal: this.reading.signal, cache: "no-store" });
      if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
      const { rows, position } = await answer.json();
      this.rows.replace(rows, position);
      this.loaded = true;
      if (!this.choices.pause) this.resume();
      this.draw();
    } catch (error) {
      if (error.name !== "AbortError") this.reload = setTimeout(() => this.follow(), RELOAD_MS);
    }
  }

  /** Go on from the last change seen, or from the start if there is none. */
  resume() {
    if (!this.loaded) {
      this.follow();
      return;
    }
    const url = `${address(this.shape.name)}/changes?after=${this.rows.position}`;
    this.feed = new Feed(url, { change: (change) => this.apply(change), reset: () => this.follow() });
  }

  quit() {
    this.reading?.abort();
    this.feed?.close();
    clearTimeout(this.reload);
  }

  apply(change) {
    this.rows.apply(change);
    this.drawing ??= setTimeout(() => this.draw(), DRAW_EVERY_MS);
  }

  /** Tell how many rows the view has on the server. */
  setTotal(total) {
    if (this.total === total) return;
    this.total = total;
    this.drawing ??= setTimeout(() => this.draw(), DRAW_EVERY_MS);
  }

  sort(column) {
    const order = this.order();
    const descending = order.column === column ? !order.descending : false;
    this.choices.sort = `${descending ? "-" : ""}${column}`;
    this.onChoice();
    this.draw();
    // Other rows may come first now, and they may be ones that we do not hold.
    if (!this.rows.complete) this.follow();
  }

  /** The order asked for, else the newest window first, else that of the key. */
  order() {
    const asked = this.choices.sort.replace(/^-/, "");
    const names = this.shape.columns.map((column) => column.name);
    if (names.includes(asked)) return { column: asked, descending: this.choices.sort.startsWith("-") };
    const windowed = names.includes("window");
    return { column: windowed ? "window" : this.shape.key[0], descending: windowed };
  }

  rowsUrl(limit) {
    const { column, descending } = this.order();
    return `${address(this.shape.name)}/rows?${new URLSearchParams({ order_by: column, descending, limit })}`;
  }

  draw() {
    clearTimeout(this.drawing);
    this.drawing = null;
    const order = this.order();
    const all = this.rows.sorted(order);
    const matching = this.choices.filter ? all.filter((row) => this.matches(row)) : all;
    const shown = matching.slice(0, SHOWN_MAX).map((row) => ({ key: this.rows.keyOf(row), row }));
    drawTable(this.table, shown, { order, zone: this.choices.zone, touched: this.rows.takeTouched() });
    setText(this.summary, this.describe(all.length, matching.length, shown.length));
    this.drawNote(all.length, matching.length);
    // Deletions have eaten into what can be shown, and the server has more.
    if (!this.rows.complete && all.length < SHOWN_MAX) this.follow();
  }

  matches(row) {
    const cells = this.shape.columns.map(({ name, type }) => formatCell(row[name], type, this.choices.zone));
    const text = cells.join(" ").toLowerCase();
    return this.choices.filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  describe(held, matching, shown) {
    const total = this.rows.complete ? held : Math.max(held, this.total);
    const rows = `${formatCount(total)} ${total === 1 ? "row" : "rows"}`;
    if (!this.choices.filter) return rest(shown, total, rows);
    const searched = held < total ? `the first ${formatCount(held)} of ${rows}` : rows;
    return rest(shown, matching, `${formatCount(matching)} of ${searched} match`);
  }

  drawNote(held, matching) {
    const empty = "No rows yet. They appear when the pipeline has read its first events.";
    const nothing = this.loaded ? empty : "Reading the rows";
    setText(this.note, held === 0 ? nothing : "No row matches the filter.");
    setAttribute(this.note, "hidden", matching === 0 ? null : "");
    setAttribute(this.scroll, "hidden", matching === 0 ? "" : null);
  }

  toolbar() {
    const filter = h("input", {
      type: "search",
      id: "filter",
      placeholder: "Filter rows  /",
      "aria-label": "Filter rows",
      autocomplete: "off",
      spellcheck: "false",
      input: (event) => this.setFilter(event.target.value),
    });
    filter.value = this.choices.filter;
    const command = `headwater view rows ${this.shape.name}`;
    const copyButton = (label, title, text) =>
      h("button", { type: "button", class: "button", title, click: () => copyText(text()) }, label);
    return h(
      "div",
      { class: "toolbar" },
      filter,
      h("span", { class: "muted copy-label" }, "Copy as"),
      copyButton("CLI", command, () => command),
      copyButton("URL", "a curl command", () => this.curl()),
    );
  }

  setFilter(text) {
    this.choices.filter = text.trim();
    this.onChoice();
    this.draw();
  }

  curl() {
    return `curl '${location.origin}${this.rowsUrl(SHOWN_MAX)}'`;
  }
}

function address(view) {
  return `/api/v1/views/${encodeURIComponent(view)}`;
}

function rest(shown, total, text) {
  return shown < total ? `${text}, ${formatCount(total - shown)} more not shown` : text;
}
