// Addresses of the console: which page a path belongs to, and the reader's choices in the query string.

/** Choices kept on every page. */
const SHELL_CHOICES = ["zone", "pause"];
/** Choices that belong to one page at one address, such as the filter of one view. */
const PAGE_CHOICES = ["filter", "sort"];

/** The page whose address is `path`, and the name after it: `/views/revenue` is `{page: views, name: "revenue"}`. */
export function findPage(pages, path) {
  for (const page of pages) {
    if (path === page.path) return { page, name: "" };
    const start = `${page.path}/`;
    const rest = page.named && path.startsWith(start) ? path.slice(start.length) : "";
    if (rest && !rest.includes("/")) return { page, name: decode(rest) };
  }
  return null;
}

/** The choices in a query string; a missing one is "". Times are shown in UTC unless `zone` is "local". */
export function readChoices(query) {
  const given = new URLSearchParams(query);
  const choices = [...PAGE_CHOICES, ...SHELL_CHOICES].map((name) => [name, given.get(name) ?? ""]);
  return { ...Object.fromEntries(choices), zone: given.get("zone") === "local" ? "local" : "utc" };
}

/** The choices that stay when the reader goes to another page. */
export function shellChoices(choices) {
  return Object.fromEntries(SHELL_CHOICES.map((name) => [name, choices[name]]));
}

/** A path with the choices as its query string; empty choices and defaults are left out. */
export function addressOf(path, choices) {
  const given = { ...choices, zone: choices.zone === "utc" ? "" : choices.zone };
  const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value)).toString();
  return query ? `${path}?${query}` : path;
}

function decode(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment; // not valid percent-encoding: shown as it is
  }
}
