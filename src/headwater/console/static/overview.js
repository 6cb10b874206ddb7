// Topics and pipelines: what comes in, and what is made of it.

import { bars, drawBars, drawLine, line } from "./charts.js";
import { h, only, reconcile, setAttribute, setText } from "./dom.js";
import { formatCount, formatDuration, formatRate, formatTime, NOTHING } from "./format.js";

/** Draw the table of topics into its place, and how to send the first event where there is none. */
export function drawTopics(place, topics) {
  const table = only(place, ".topics", topicPanel);
  reconcile(table.tBodies[0], topics, (topic) => topic.name, createTopic, updateTopic);
  setAttribute(table, "hidden", topics.length === 0 ? "" : null);
  const waiting = topics.every((topic) => topic.records === 0);
  setAttribute(place.querySelector(".empty"), "hidden", waiting ? null : "");
  setText(place.querySelector("pre"), `headwater topic produce ${topics[0]?.name ?? "orders"}`);
}

/** Draw the list of pipelines into its place. */
export function drawPipelines(place, pipelines, zone) {
  if (pipelines.length === 0) {
    only(place, ".empty", noPipelines);
    return;
  }
  const list = only(place, ".pipelines", () => h("div", { class: "pipelines" }));
  const update = (made, pipeline) => updatePipeline(made, pipeline, zone);
  reconcile(list, pipelines, (pipeline) => pipeline.name, createPipeline, update);
}

// -- topics ---------------------------------------------------------------------------------------------------

function topicPanel() {
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "Topic"),
    h("th", { scope: "col", class: "number" }, "Parts"),
    h("th", { scope: "col", class: "number" }, "Records"),
    h("th", { scope: "col", class: "number" }, "Records/s"),
    h("th", { scope: "col", class: "chart-cell" }, "Last minute"),
  );
  const text = "No events yet. Send the first one with any Kafka client, or from a terminal:";
  return h(
    "div",
    {},
    h("table", { class: "topics" }, h("thead", {}, head), h("tbody")),
    h("div", { class: "empty" }, h("p", {}, text), h("pre")),
  );
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

function updateTopic(made, topic) {
  setText(made.name, topic.name);
  setText(made.partitions, formatCount(topic.partitions));
  setAttribute(made.partitions, "title", topic.partitionOffsets.map(describePartition).join("\n"));
  setText(made.records, formatCount(topic.records));
  setText(made.rate, formatRate(topic.recordsPerSecond));
  setAttribute(made.stale, "hidden", topic.stale ? null : "");
  setAttribute(made.element, "class", topic.stale ? "stale" : null);
  drawLine(made.chart, topic.history.map((point) => point.recordsPerSecond));
}

function describePartition({ partition, startOffset, endOffset }) {
  return `partition ${partition}: offsets ${formatCount(startOffset)} to ${formatCount(endOffset)}`;
}

// -- pipelines ------------------------------------------------------------------------------------------------

const METRICS = [
  ["Rows/s in", (p) => formatRate(p.inputRowsPerSecond)],
  ["Processed/s", (p) => formatRate(p.processedRowsPerSecond)],
  ["Batch took", (p) => formatDuration(p.batchDurationMs)],
  ["Behind", (p) => formatCount(p.behindRecords) + (p.catchUpSeconds > 0 ? `, ${formatDuration(p.catchUpSeconds * 1000)}` : "")],
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

function updatePipeline(made, pipeline, zone) {
  setText(made.state, pipeline.state ?? "unknown");
  setAttribute(made.state, "data-state", pipeline.state ?? "unknown");
  setText(made.batch, describeBatch(pipeline, zone));
  setText(made.error, pipeline.error ?? "");
  setAttribute(made.error, "hidden", pipeline.error ? null : "");
  METRICS.forEach(([, format], n) => setText(made.values[n], format(pipeline)));
  drawBars(made.chart, pipeline.history.map((batch) => batchBar(batch, zone)));
  setText(made.caption, describeHistory(pipeline.history));
}

function describeBatch({ batchId, lastProgressMs, leftOutRecords }, zone) {
  if (batchId === null) return "no batch yet";
  const leftOut = leftOutRecords ? `, ${formatCount(leftOutRecords)} poison rows left out` : "";
  return `batch ${formatCount(batchId)} at ${formatTime(lastProgressMs, zone)}${leftOut}`;
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

function noPipelines() {
  return h(
    "div",
    { class: "empty" },
    h("p", {}, "No pipeline has run yet. Pipelines are the functions of your app; start it with:"),
    h("pre", {}, "headwater run APP.py"),
  );
}
