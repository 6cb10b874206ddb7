// What the reader has chosen, kept in the page's address, so that a link shows the same.

const NAMES = ["view", "filter", "sort", "zone", "pause"];

/** The choices in the address; what is not there is "". */
export function readChoices() {
  const given = new URLSearchParams(location.search);
  return Object.fromEntries(NAMES.map((name) => [name, given.get(name) ?? ""]));
}

/** Put the choices into the address; empty ones are left out. */
export function writeChoices(choices) {
  const given = NAMES.filter((name) => choices[name]).map((name) => [name, choices[name]]);
  const query = new URLSearchParams(given).toString();
  history.replaceState(null, "", `${location.pathname}${query && `?${query}`}${location.hash}`);
}
