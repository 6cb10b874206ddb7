// The overview: topics, views, groups and pipelines of the app.

import { bars, drawBars, drawLine, line } from "../lib/charts.js";
import { h, only, reconcile, setAttribute, setText } from "../lib/dom.js";
import { formatCount, formatDuration, formatRate, formatTime, NOTHING } from "../lib/format.js";

export const page = { title: "Overview", path: "/", mount };

function mount(element, { state, link }) {
  const [topics, views, groups, pipelines] = ["topics", "views", "groups", "pipelines"].map(createPanel);
  element.append(
    h("div", { class: "column" }, topics.panel, views.panel, groups.panel),
    h("div", { class: "column" }, pipelines.panel),
  );
  setAttribute(groups.panel, "hidden", ""); // until there is a group
  return {
    update(status) {
      drawTopics(topics.content, status.topics);
      drawViews(views.content, status.views, link);
      drawGroups(groups, status.groups);
      drawPipelines(pipelines.content, status.pipelines, state.choices.zone);
    },
    unmount() {},
  };
}

function createPanel(name) {
  const content = h("div", { id: name });
  const heading = h("h2", { id: `${name}-title` }, name[0].toUpperCase() + name.slice(1));
  const attributes = { class: "panel", id: `${name}-panel`, "aria-labelledby": `${name}-title` };
  return { content, panel: h("section", attributes, h("div", { class: "panel-head" }, heading), content) };
}

function createTable(name, headings) {
  const cells = headings.map(([text, kind]) => h("th", { scope: "col", class: kind }, text));
  return h("table", { class: name }, h("thead", {}, h("tr", {}, ...cells)), h("tbody"));
}

// -- topics ---------------------------------------------------------------------------------------------------

/** Draw the table of topics; if there are no records yet, also the command that sends one. */
function drawTopics(place, topics) {
  const table = only(place, ".topics", createTopics);
  reconcile(table.tBodies[0], topics, (topic) => topic.name, createTopic, updateTopic);
  setAttribute(table, "hidden", topics.length === 0 ? "" : null);
  const isWaiting = topics.every((topic) => topic.records === 0);
  setAttribute(place.querySelector(".empty"), "hidden", isWaiting ? null : "");
  setText(place.querySelector("pre"), `headwater topic produce ${topics[0]?.name ?? "orders"}`);
}

function createTopics() {
  const headings = [
    ["Topic", ""],
    ["Partitions", "number"],
    ["Records", "number"],
    ["Records/s", "number"],
    ["Last minute", "chart-cell"],
  ];
  const text = "No events yet. Send the first one with any Kafka client, or from a terminal:";
  return h("div", {}, createTable("topics", headings), h("div", { class: "empty" }, h("p", {}, text), h("pre")));
}

function createTopic(topic) {
  const name = h("span");
  const [partitions, records, rate] = Array.from({ length: 3 }, () => h("td", { class: "number" }));
  const stale = h("span", { class: "tag", hidden: "" }, "stale");
  const chart = line(`records per second into ${topic.name}, last minute`);
  const element = h(
    "tr",
    {},
    h("th", { scope: "row", title: topic.name }, name, stale),
    partitions,
    records,
    rate,
    h("td", { class: "chart-cell" }, chart.element),
  );
  return { element, name, stale, partitions, records, rate, chart };
}

function updateTopic(parts, topic) {
  setText(parts.name, topic.name);
  setText(parts.partitions, formatCount(topic.partitions));
  setAttribute(parts.partitions, "title", topic.partitionOffsets.map(describePartition).join("\n"));
  setText(parts.records, formatCount(topic.records));
  setText(parts.rate, formatRate(topic.recordsPerSecond));
  setAttribute(parts.stale, "hidden", topic.stale ? null : "");
  setAttribute(parts.element, "class", topic.stale ? "stale" : null);
  drawLine(parts.chart, topic.history.map((point) => point.recordsPerSecond));
}

function describePartition({ partition, startOffset, endOffset }) {
  return `partition ${partition}: offsets ${formatCount(startOffset)} to ${formatCount(endOffset)}`;
}

// -- views ----------------------------------------------------------------------------------------------------

/** Draw the table of views, each with a link to its rows. */
function drawViews(place, views, link) {
  if (views.length === 0) {
    only(place, "p.empty", () => h("p", { class: "empty" }, "No views yet. A view appears when its pipeline has started."));
    return;
  }
  const headings = [["View", ""], ["Key", "text"], ["Rows", "number"], ["Position", "number"], ["Late", "number"]];
  const table = only(place, ".view-list", () => createTable("view-list", headings));
  const update = (parts, view) => updateView(parts, view, link);
  reconcile(table.tBodies[0], views, (view) => view.name, createView, update);
}

function createView(view) {
  const anchor = h("a", {}, view.name);
  const key = h("td", { class: "text muted" });
  const [rows, position, late] = Array.from({ length: 3 }, () => h("td", { class: "number" }));
  const element = h("tr", {}, h("th", { scope: "row", title: view.name }, anchor), key, rows, position, late);
  return { element, anchor, key, rows, position, late };
}

function updateView(parts, view, link) {
  setAttribute(parts.anchor, "href", link(`/views/${encodeURIComponent(view.name)}`));
  setText(parts.key, view.key.join(", "));
  setText(parts.rows, formatCount(view.rows));
  setText(parts.position, formatCount(view.position));
  setText(parts.late, formatCount(view.lateRows));
  setAttribute(parts.late, "title", view.lateRows > 0 ? `${formatCount(view.lateRowsWaiting)} not reprocessed` : null);
}

// -- groups ---------------------------------------------------------------------------------------------------

/** Draw the table of consumer groups with their lag; its panel is hidden while there are none. */
function drawGroups({ panel, content }, groups) {
  setAttribute(panel, "hidden", groups.length === 0 ? "" : null);
  const headings = [["Group", ""], ["State", "text"], ["Lag", "number"], ["At risk", "number"]];
  const table = only(content, ".groups", () => createTable("groups", headings));
  reconcile(table.tBodies[0], groups, (group) => group.name, createGroup, updateGroup);
}

function createGroup(group) {
  const [state, lag, risk] = [h("td"), h("td", { class: "number" }), h("td", { class: "number" })];
  const name = h("th", { scope: "row", title: group.name }, group.name);
  return { element: h("tr", {}, name, state, lag, risk), state, lag, risk };
}

function updateGroup(parts, group) {
  setText(parts.state, group.state);
  setText(parts.lag, formatCount(group.lagRecords));
  setText(parts.risk, formatCount(group.atRiskRecords));
  setAttribute(parts.risk, "class", group.atRiskRecords > 0 ? "number warn" : "number");
  setAttribute(parts.element, "title", group.positions.map(describePosition).join("\n"));
}

function describePosition({ topic, partition, offset, endOffset, atRiskRecords }) {
  const place = `${topic}-${partition}: at ${formatCount(offset)} of ${formatCount(endOffset)}`;
  return atRiskRecords > 0 ? `${place}, ${formatCount(atRiskRecords)} will be deleted soon` : place;
}

// -- pipelines ------------------------------------------------------------------------------------------------

function drawPipelines(place, pipelines, zone) {
  if (pipelines.length === 0) {
    only(place, ".empty", createNoPipelines);
    return;
  }
  const list = only(place, ".pipelines", () => h("div", { class: "pipelines" }));
  const update = (parts, pipeline) => updatePipeline(parts, pipeline, zone);
  reconcile(list, pipelines, (pipeline) => pipeline.name, createPipeline, update);
}

const METRICS = [
  ["Rows/s in", (p) => formatRate(p.inputRowsPerSecond)],
  ["Processed/s", (p) => formatRate(p.processedRowsPerSecond)],
  ["Batch took", (p) => formatDuration(p.batchDurationMs)],
  ["Lag", describeLag],
];

function createPipeline(pipeline) {
  const [state, batch] = [h("span", { class: "state" }), h("span", { class: "muted" })];
  const error = h("pre", { class: "error" });
  const values = METRICS.map(() => h("dd"));
  const metrics = METRICS.map(([label], n) => h("div", {}, h("dt", {}, label), values[n]));
  const caption = h("figcaption", { class: "muted" });
  const chart = bars(`rows in each of the last batches of ${pipeline.name}`);
  const element = h(
    "article",
    { class: "pipeline", id: `pipeline-${pipeline.name}`, tabindex: "-1" },
    h("div", { class: "pipeline-head" }, h("h3", {}, pipeline.name), state, batch),
    error,
    h("dl", { class: "metrics" }, ...metrics),
    h("figure", {}, chart.element, caption),
  );
  return { element, state, batch, error, values, chart, caption };
}

/** What a pipeline has read that is not in its result. */
const DROPPED = [
  ["leftOutRecords", "poison rows excluded"],
  ["lateRows", "late rows"],
  ["ignoredRows", "rows ignored"],
  ["deadLetters", "dead letters"],
];

function updatePipeline(parts, pipeline, zone) {
  setText(parts.state, pipeline.state ?? "unknown");
  setAttribute(parts.state, "data-state", pipeline.state ?? "unknown");
  setText(parts.batch, describeBatch(pipeline, zone));
  setText(parts.error, pipeline.error ?? "");
  setAttribute(parts.error, "hidden", pipeline.error ? null : "");
  METRICS.forEach(([, format], n) => setText(parts.values[n], format(pipeline)));
  drawBars(parts.chart, pipeline.history.map((batch) => batchBar(batch, zone)));
  setText(parts.caption, describeHistory(pipeline.history));
}

function describeBatch({ batchId, lastProgressMs, ...pipeline }, zone) {
  if (batchId === null) return "no batch yet";
  const dropped = DROPPED.filter(([name]) => pipeline[name] > 0);
  const numbers = dropped.map(([name, kind]) => `, ${formatCount(pipeline[name])} ${kind}`);
  return `batch ${formatCount(batchId)} at ${formatTime(lastProgressMs, zone)}${numbers.join("")}`;
}

/** The records not read yet, and the time to catch up: `1,200 (4.0 s)`. */
function describeLag({ behindRecords, catchUpSeconds }) {
  const time = catchUpSeconds > 0 ? ` (${formatDuration(catchUpSeconds * 1000)})` : "";
  return formatCount(behindRecords) + time;
}

function describeHistory(history) {
  const most = Math.max(0, ...history.map((batch) => batch.numInputRows ?? 0));
  const extent = `, last ${history.length}, at most ${formatCount(most)}`;
  return `Rows per batch${history.length === 0 ? "" : extent}`;
}

function batchBar({ batchId, atMs, numInputRows, durationMs }, zone) {
  const rows = numInputRows === null ? NOTHING : formatCount(numInputRows);
  const when = `batch ${formatCount(batchId)} at ${formatTime(atMs, zone)}`;
  return { value: numInputRows ?? 0, title: `${when}: ${rows} rows in ${formatDuration(durationMs)}` };
}

function createNoPipelines() {
  return h(
    "div",
    { class: "empty" },
    h("p", {}, "No pipeline has run yet. Pipelines are the functions of your app; start it with:"),
    h("pre", {}, "headwater run APP.py"),
  );
}
