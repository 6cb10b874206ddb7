// The little of a framework that the console needs: make elements, and change only what differs.

const SVG = "http://www.w3.org/2000/svg";

/** Make an HTML element: `h("td", {class: "number"}, "12")`; functions become event listeners. */
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Make an SVG element. */
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

/** Set, or remove where the value is null; an unchanged attribute is not touched. */
export function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Set the text; unchanged text is not touched, so that a selection in it survives. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The element that matches in `place`; where there is none, `make()` becomes the only content. */
export function only(place, selector, make) {
  if (!place.querySelector(selector)) place.replaceChildren(make());
  return place.querySelector(selector);
}

const drawn = new WeakMap(); // parent -> Map of key -> what `create` gave

/**
 * Make the parent's children match the items, by key and in order.
 *
 * `create(item)` gives an object with at least `element`, made once per key and handed to `update(made, item)`.
 */
export function reconcile(parent, items, keyOf, create, update) {
  const before = drawn.get(parent) ?? new Map();
  const after = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    const made = before.get(key) ?? create(item);
    before.delete(key);
    after.set(key, made);
    update(made, item);
    if (made.element === place) place = place.nextSibling;
    else parent.insertBefore(made.element, place);
  }
  for (const { element } of before.values()) element.remove();
  drawn.set(parent, after);
}
