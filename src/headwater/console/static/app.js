// The shell of the console: the header, the health line, the router, and the connection to the server.

import { addressOf, findPage, readChoices, shellChoices } from "./lib/address.js";
import { h, setAttribute, setText } from "./lib/dom.js";
import { Feeds } from "./lib/feeds.js";
import { formatAge, formatTime } from "./lib/format.js";
import { page as overview } from "./pages/overview.js";
import { page as views } from "./pages/views.js";
import { assess } from "./parts/health.js";

/**
 * The registry of pages, in the order of the navigation.
 *
 * To add a page: write `pages/NAME.js`, import it and list it here, and add its address to PAGE_ADDRESSES in
 * `console/pages.py`, so that the server returns the console for it.
 *
 * A page module exports `page`, an object with
 *   title                   its name in the navigation
 *   path                    its address; "/views" for example
 *   named                   true if the address may be followed by a name, as in "/views/revenue"
 *   mount(element, context) draws the page into the empty element and returns `{update(status), unmount()}`:
 *                           `update` is called when the status, the name or a choice has changed,
 *                           `unmount` before another page is mounted; it closes what the page has opened
 *
 * The context that a page gets:
 *   state            the state of the console, to be read only: `state.choices`, `state.route.name`
 *   feeds            opens event streams; see lib/feeds.js
 *   link(path)       the address of a page, with the choices that stay
 *   choose(changes)  changes choices, and the address with them
 *   notify(text)     shows a short message
 */
const PAGES = [overview, views];

const SILENT_MS = 5000; // the status arrives every second; after five without one, the connection is dead
const LOST_MS = 3000; // shorter interruptions are not reported
const TOAST_MS = 3000;
const LOST = { tone: "warn", text: "The app does not respond; showing its last known state", target: null };

const elements = Object.fromEntries(
  [...document.querySelectorAll("[id]")].map((element) => [element.id, element]),
);

/** The only mutable state outside the mounted page. */
const state = {
  status: null, // the last status received
  receivedAt: 0, // when it was received, by the browser's clock
  openedAt: 0, // when the connection was opened
  connected: false,
  choices: readChoices(location.search),
  route: null, // {page, name}
  mounted: null, // what `mount` returned
  toastTimer: null,
};

const feeds = new Feeds();

const context = { state, feeds, link, choose, notify };

// -- routing --------------------------------------------------------------------------------------------------

/** Show the page of the current address. */
function route() {
  const found = findPage(PAGES, location.pathname) ?? { page: overview, name: "" };
  const isOther = found.page !== state.route?.page;
  state.route = found;
  // An address from the history may carry an older zone or pause than the one chosen now.
  state.choices = { ...readChoices(location.search), ...shellChoices(state.choices) };
  writeAddress();
  if (isOther) {
    state.mounted?.unmount();
    elements.page.replaceChildren();
    setAttribute(document.body, "data-page", found.page.title.toLowerCase());
    state.mounted = found.page.mount(elements.page, context);
  }
  drawNavigation();
  if (state.status) draw();
}

function navigate(url) {
  history.pushState(null, "", url.pathname + url.search);
  route();
  // Pages are drawn only now, so the browser has to look for the element of the hash again.
  if (url.hash) location.replace(url.hash);
  else scrollTo(0, 0);
}

/** Follow links between pages without loading the console again. */
function followLink(event) {
  const anchor = event.target.closest("a[href]");
  if (!anchor || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const url = new URL(anchor.href);
  if (url.origin !== location.origin || !findPage(PAGES, url.pathname)) return;
  const isHere = url.pathname === location.pathname && url.search === location.search;
  if (isHere && url.hash) return;
  event.preventDefault();
  if (!isHere) navigate(url);
}

function link(path) {
  return addressOf(path, shellChoices(state.choices));
}

function writeAddress() {
  const address = addressOf(location.pathname, state.choices) + location.hash;
  if (address !== location.pathname + location.search + location.hash) history.replaceState(null, "", address);
}

// -- connection -----------------------------------------------------------------------------------------------

/** Open the event streams, unless the reader has paused or the browser shows another tab. */
function connect() {
  state.connected = false;
  state.openedAt = Date.now();
  feeds.setLive(isLive());
  drawConnection();
}

function isLive() {
  return !state.choices.pause && !document.hidden;
}

function setConnected(connected) {
  state.connected = connected;
  drawConnection();
}

function receive(status) {
  const isFirst = state.status === null;
  state.status = status;
  state.receivedAt = Date.now();
  draw();
  // The element of a deep link such as /#pipeline-revenue exists only now.
  if (isFirst && location.hash) location.replace(location.hash);
}

/** Read the status once, for a console that was opened paused. */
async function readOnce() {
  try {
    const response = await fetch("/api/v1/status", { cache: "no-store" });
    receive(await response.json());
  } catch {
    setTimeout(readOnce, SILENT_MS);
  }
}

function watch() {
  const isSilent = Date.now() - Math.max(state.receivedAt, state.openedAt) > SILENT_MS;
  if (isSilent && state.connected && isLive()) connect();
  drawConnection();
  if (state.status) drawHealth();
}

function isLost() {
  return !state.choices.pause && !state.connected && Date.now() - state.receivedAt > LOST_MS;
}

// -- choices --------------------------------------------------------------------------------------------------

function choose(changes) {
  state.choices = { ...state.choices, ...changes };
  writeAddress();
  drawNavigation();
  drawTools();
  if (state.status) state.mounted.update(state.status);
}

function togglePause() {
  choose({ pause: state.choices.pause ? "" : "1" });
  connect();
}

/** `/` moves the focus to the filter of the page, if it has one. */
function focusFilter(event) {
  const filter = document.getElementById("filter");
  if (!filter || event.key !== "/" || event.target.matches("input") || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  filter.focus();
}

// -- drawing --------------------------------------------------------------------------------------------------

function draw() {
  const { page, name } = state.route;
  document.title = `${name || page.title} – ${state.status.app} – Headwater`;
  setText(elements.app, state.status.app);
  drawHealth();
  drawConnection();
  state.mounted.update(state.status);
}

function drawHealth() {
  const { tone, text, target } = isLost() ? LOST : assess(state.status);
  setAttribute(elements.health, "data-tone", tone);
  const place = elements["health-text"];
  const href = target ? `${link(overview.path)}#pipeline-${encodeURIComponent(target)}` : null;
  if (place.textContent === text && (place.firstElementChild?.getAttribute("href") ?? null) === href) return;
  place.replaceChildren(href ? h("a", { href }, text) : text);
}

function drawConnection() {
  const [connection, text, detail] = describeConnection();
  setAttribute(elements.link, "data-state", connection);
  setText(elements["link-state"], text);
  setText(elements["link-age"], state.status ? detail : "");
}

function describeConnection() {
  const age = formatAge(Date.now() - state.receivedAt);
  if (state.choices.pause) return ["paused", "Paused", `at ${formatTime(state.receivedAt, state.choices.zone)}`];
  if (state.connected) return ["live", "Live", age];
  return state.status ? ["lost", "Reconnecting", `last data ${age}`] : ["connecting", "Connecting", ""];
}

function drawNavigation() {
  PAGES.forEach((page, n) => {
    const anchor = elements.navigation.children[n] ?? elements.navigation.appendChild(h("a", {}, page.title));
    setAttribute(anchor, "href", link(page.path));
    setAttribute(anchor, "aria-current", page === state.route.page ? "page" : null);
  });
  setAttribute(elements.brand, "href", link(overview.path));
}

function drawTools() {
  const { zone, pause } = state.choices;
  setAttribute(elements["zone-utc"], "aria-pressed", zone === "utc");
  setAttribute(elements["zone-local"], "aria-pressed", zone === "local");
  setAttribute(elements.pause, "aria-pressed", Boolean(pause));
  setText(elements.pause, pause ? "Resume" : "Pause");
}

function notify(text) {
  elements.toast.textContent = text;
  elements.toast.dataset.shown = "";
  clearTimeout(state.toastTimer);
  state.toastTimer = setTimeout(() => delete elements.toast.dataset.shown, TOAST_MS);
}

// -- start ----------------------------------------------------------------------------------------------------

elements["zone-utc"].addEventListener("click", () => choose({ zone: "utc" }));
elements["zone-local"].addEventListener("click", () => choose({ zone: "local" }));
elements["zone-local"].title = new Intl.DateTimeFormat().resolvedOptions().timeZone;
elements.pause.addEventListener("click", togglePause);
document.addEventListener("click", followLink);
document.addEventListener("keydown", focusFilter);
document.addEventListener("visibilitychange", connect);
addEventListener("popstate", route);

drawTools();
route();
feeds.follow(() => "/api/v1/status/stream", { status: receive }, setConnected);
connect();
if (state.choices.pause) readOnce();
setInterval(watch, 1000);
