// A view's rows in the browser: the ones read last, with every change since applied.

const HELD_MAX = 2000;

/** Rows by key. `complete` says whether these are all the rows the view has. */
export class Rows {
  constructor(shape) {
    this.shape = shape;
    this.replace([], 0);
  }

  /** How many rows to ask the server for. */
  static get limit() {
    return HELD_MAX;
  }

  /** Start again from rows as the server gave them. */
  replace(rows, position) {
    this.byKey = new Map(rows.map((row) => [this.keyOf(row), row]));
    this.position = position;
    this.complete = rows.length < HELD_MAX;
    this.touched = new Map(); // key -> names of the columns that changed since `takeTouched`
  }

  apply({ op, before, after, position }) {
    const key = this.keyOf(after ?? before);
    this.position = position;
    if (op === "d") {
      this.byKey.delete(key);
      return;
    }
    const known = this.byKey.get(key);
    const names = this.touched.get(key) ?? new Set();
    for (const { name } of this.shape.columns) {
      if (!known || !same(known[name], after[name])) names.add(name);
    }
    this.touched.set(key, names);
    this.byKey.set(key, after);
  }

  /** The columns that changed, by key, since the last call. */
  takeTouched() {
    const touched = this.touched;
    this.touched = new Map();
    return touched;
  }

  /** The rows in the order of a column, then of the key; the first HELD_MAX are kept, the others forgotten. */
  sorted({ column, descending }) {
    const sign = descending ? -1 : 1;
    const rest = this.shape.key.filter((name) => name !== column);
    const rows = [...this.byKey.values()].sort((a, b) => {
      const first = column ? sign * compare(a[column], b[column]) : 0;
      return first || rest.reduce((order, name) => order || compare(a[name], b[name]), 0);
    });
    if (rows.length > HELD_MAX) {
      for (const row of rows.splice(HELD_MAX)) this.byKey.delete(this.keyOf(row));
      this.complete = false;
    }
    return rows;
  }

  keyOf(row) {
    return JSON.stringify(this.shape.key.map((name) => row[name]));
  }
}

function same(a, b) {
  return a === b || (typeof a === "object" && JSON.stringify(a) === JSON.stringify(b));
}

/** As the server sorts: nothing, then numbers, then text; a window by its start. */
function compare(a, b) {
  const [x, y] = [sortable(a), sortable(b)];
  if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;
  return x < y ? -1 : Number(x > y);
}

function sortable(value) {
  if (value === null) return -Infinity;
  return typeof value === "object" ? JSON.stringify(value) : typeof value === "boolean" ? Number(value) : value;
}
