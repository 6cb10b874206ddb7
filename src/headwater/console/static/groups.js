// Groups that read the log: how far behind they are, and what retention is about to take from them.

import { h, only, reconcile, setAttribute, setText } from "./dom.js";
import { formatCount } from "./format.js";

/** Draw the table of groups into its panel, which is hidden while there are none. */
export function drawGroups(panel, place, groups) {
  setAttribute(panel, "hidden", groups.length === 0 ? "" : null);
  const table = only(place, ".groups", groupTable);
  reconcile(table.tBodies[0], groups, (group) => group.name, createGroup, updateGroup);
}

function groupTable() {
  const head = h(
    "tr",
    {},
    h("th", { scope: "col" }, "Group"),
    h("th", { scope: "col" }, "State"),
    h("th", { scope: "col", class: "number" }, "Behind"),
    h("th", { scope: "col", class: "number" }, "At risk"),
  );
  return h("div", {}, h("table", { class: "groups" }, h("thead", {}, head), h("tbody")));
}

function createGroup(group) {
  const [state, lag, risk] = [h("td"), h("td", { class: "number" }), h("td", { class: "number" })];
  const name = h("th", { scope: "row", title: group.name }, group.name);
  return { element: h("tr", {}, name, state, lag, risk), state, lag, risk };
}

function updateGroup(made, group) {
  setText(made.state, group.state);
  setText(made.lag, formatCount(group.lagRecords));
  setText(made.risk, formatCount(group.atRiskRecords));
  setAttribute(made.risk, "class", group.atRiskRecords > 0 ? "number warn" : "number");
  setAttribute(made.element, "title", group.positions.map(describePosition).join("\n"));
}

function describePosition({ topic, partition, offset, endOffset, atRiskRecords }) {
  const place = `${topic}-${partition}: at ${formatCount(offset)} of ${formatCount(endOffset)}`;
  return atRiskRecords > 0 ? `${place}, ${formatCount(atRiskRecords)} will be deleted soon` : place;
}
