// Create elements, and update only what has changed.

const SVG = "http://www.w3.org/2000/svg";

/** Create an HTML element: `h("td", {class: "number"}, "12")`; functions become event listeners. */
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Create an SVG element. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else setAttribute(element, name, value);
  }
  element.append(...children);
  return element;
}

/** Set an attribute, or remove it if the value is null; an unchanged attribute is not touched. */
export function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Set the text of an element; unchanged text is not touched, so that a selection in it survives. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Return the element in `parent` that matches; if none does, replace the content of `parent` by `make()` first. */
export function only(parent, selector, make) {
  if (!parent.querySelector(selector)) parent.replaceChildren(make());
  return parent.querySelector(selector);
}

const DRAWN = Symbol("drawn"); // property of a parent: Map of key -> result of `create`

/**
 * Make the parent's children match the items, by key and in order.
 *
 * `create(item)` is called once per key and returns an object with at least `element`; `update(parts, item)` gets
 * that object on every call.
 */
export function reconcile(parent, items, keyOf, create, update) {
  const before = parent[DRAWN] ?? new Map();
  const after = new Map();
  let next = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    const parts = before.get(key) ?? create(item);
    before.delete(key);
    after.set(key, parts);
    update(parts, item);
    if (parts.element === next) next = next.nextSibling;
    else parent.insertBefore(parts.element, next);
  }
  for (const { element } of before.values()) element.remove();
  parent[DRAWN] = after;
}
