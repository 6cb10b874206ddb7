// The console: follows the app's status, draws it, and keeps one view open.

import { readChoices, writeChoices } from "./address.js";
import { h, only, reconcile, setAttribute, setText } from "./dom.js";
import { Feed } from "./feeds.js";
import { formatAge, formatCount, formatTime } from "./format.js";
import { drawGroups } from "./groups.js";
import { assess } from "./health.js";
import { drawPipelines, drawTopics } from "./overview.js";
import { ViewPanel } from "./view.js";

const SILENT_MS = 5000; // the status comes each second; after five without one, the connection is dead

const LOST_MS = 3000; // before that, a connection may just be changing hands
const LOST = { tone: "warn", text: "The app does not answer; this is how it was last", target: null };

const page = Object.fromEntries(
  [...document.querySelectorAll("[id]")].map((element) => [element.id, element]),
);

const choices = readChoices();
choices.zone = choices.zone === "local" ? "local" : "utc";

let status = null; // what the server said last
let heardAt = 0; // and when, by this machine's clock
let openedAt = 0; // when the connection was asked for
let connected = false;
let feed = null;
let panel = null;

// -- following ------------------------------------------------------------------------------------------------

/** Follow, unless the reader has paused or looks elsewhere: a browser gives one server few connections. */
function followOrRest() {
  feed?.close();
  panel?.quit();
  connected = false;
  if (!choices.pause && !document.hidden) {
    feed = new Feed("/api/v1/status/stream", { status: hear }, setConnected);
    openedAt = Date.now();
    panel?.resume();
  }
  drawLink();
}

function setConnected(is) {
  connected = is;
  drawLink();
}

/** A page that is opened paused shows how things are, once. */
async function lookOnce() {
  try {
    const answer = await fetch("/api/v1/status", { cache: "no-store" });
    hear(await answer.json());
  } catch {
    setTimeout(lookOnce, SILENT_MS);
  }
}

function hear(news) {
  status = news;
  heardAt = Date.now();
  draw();
}

function watch() {
  const silent = Date.now() - Math.max(heardAt, openedAt) > SILENT_MS;
  if (silent && connected && !choices.pause && !document.hidden) followOrRest();
  drawLink();
  if (status) drawHealth();
}

function isLost() {
  return !choices.pause && !connected && Date.now() - heardAt > LOST_MS;
}

// -- drawing --------------------------------------------------------------------------------------------------

function draw() {
  document.title = `${status.app} – Headwater`;
  setText(page.app, status.app);
  drawHealth();
  drawTopics(page.topics, status.topics);
  drawGroups(page["groups-panel"], page.groups, status.groups);
  drawPipelines(page.pipelines, status.pipelines, choices.zone);
  drawViews();
  drawLink();
}

function drawHealth() {
  const { tone, text, target } = isLost() ? LOST : assess(status);
  setAttribute(page.health, "data-tone", tone);
  if (page["health-text"].textContent === text) return;
  const words = target ? h("a", { href: `#pipeline-${encodeURIComponent(target)}` }, text) : text;
  page["health-text"].replaceChildren(words);
}

function drawLink() {
  const [state, word, detail] = describeLink();
  setAttribute(page.link, "data-state", state);
  setText(page["link-state"], word);
  setText(page["link-age"], status ? detail : "");
}

function describeLink() {
  const age = formatAge(Date.now() - heardAt);
  if (choices.pause) return ["paused", "Paused", `at ${formatTime(heardAt, choices.zone)}`];
  if (connected) return ["live", "Live", age];
  return status ? ["lost", "Reconnecting", `last data ${age}`] : ["connecting", "Connecting", ""];
}

function drawViews() {
  const { views } = status;
  if (views.length === 0) {
    const text = "No views yet. A view appears when the pipeline that fills it has started.";
    only(page.view, "p.empty", () => h("p", { class: "empty" }, text));
    return;
  }
  const open = views.find((view) => view.name === choices.view) ?? views[0];
  if (!panel || !sameShape(panel.shape, open)) openView(open);
  panel.setTotal(open.rows);
  setText(page["views-title"], views.length === 1 ? open.name : "Views");
  const update = (tab, view) => updateTab(tab, view, view === open);
  reconcile(page.tabs, views.length > 1 ? views : [], (view) => view.name, createTab, update);
}

function sameShape(a, b) {
  return a.name === b.name && JSON.stringify([a.key, a.columns]) === JSON.stringify([b.key, b.columns]);
}

function createTab(view) {
  const rows = h("span", { class: "count" });
  const attributes = { type: "button", role: "tab", "aria-controls": "view", click: () => choose(view.name) };
  const element = h("button", attributes, view.name, rows);
  return { element, rows };
}

function updateTab(tab, view, isOpen) {
  setText(tab.rows, formatCount(view.rows));
  setAttribute(tab.element, "aria-selected", isOpen);
  setAttribute(tab.element, "tabindex", isOpen ? 0 : -1);
}

// -- choosing -------------------------------------------------------------------------------------------------

function openView(shape) {
  panel?.quit();
  panel = new ViewPanel(page.view, shape, choices, () => writeChoices(shared()));
  panel.follow();
}

function choose(view) {
  Object.assign(choices, { view, filter: "", sort: "" });
  writeChoices(shared());
  drawViews();
}

/** The choices that are worth a place in the address: what everybody gets anyway is left out. */
function shared() {
  return { ...choices, zone: choices.zone === "utc" ? "" : choices.zone };
}

function chooseZone(zone) {
  choices.zone = zone;
  writeChoices(shared());
  drawZone();
  if (status) draw();
  panel?.draw();
}

function drawZone() {
  setAttribute(page["zone-utc"], "aria-pressed", choices.zone === "utc");
  setAttribute(page["zone-local"], "aria-pressed", choices.zone === "local");
}

function togglePause() {
  choices.pause = choices.pause ? "" : "1";
  writeChoices(shared());
  drawPause();
  followOrRest();
}

function drawPause() {
  setAttribute(page.pause, "aria-pressed", Boolean(choices.pause));
  setText(page.pause, choices.pause ? "Resume" : "Pause");
}

function moveBetweenTabs(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const tabs = [...page.tabs.children];
  const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
  next.focus();
  next.click();
}

function focusFilter(event) {
  if (event.key !== "/" || event.target.matches("input") || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  document.getElementById("filter")?.focus();
}

page["zone-utc"].addEventListener("click", () => chooseZone("utc"));
page["zone-local"].addEventListener("click", () => chooseZone("local"));
page.pause.addEventListener("click", togglePause);
page.tabs.addEventListener("keydown", moveBetweenTabs);
document.addEventListener("keydown", focusFilter);
document.addEventListener("visibilitychange", followOrRest);

page["zone-local"].title = new Intl.DateTimeFormat().resolvedOptions().timeZone;
drawZone();
drawPause();
followOrRest();
if (choices.pause) lookOnce();
setInterval(watch, 1000);
