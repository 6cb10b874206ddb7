// A view's rows in the browser: the rows read last, with every later change applied.

const HELD_MAX = 2000;

/** Rows by key. `complete` is true if these are all rows of the view; `token` is where its changes continue. */
export class Rows {
  constructor(shape) {
    this.shape = shape;
    this.replace([], "");
  }

  /** The number of rows to request from the server. */
  static get limit() {
    return HELD_MAX;
  }

  /** Replace all rows by those of a server response. */
  replace(rows, token) {
    this.byKey = new Map(rows.map((row) => [this.keyOf(row), row]));
    this.token = token;
    this.complete = rows.length < HELD_MAX;
    this.touched = new Map(); // key -> names of the columns that changed since the last `takeTouched`
  }

  apply({ op, before, after }, token) {
    const key = this.keyOf(after ?? before);
    this.token = token;
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

  /** Return the columns that changed since the last call, by key. */
  takeTouched() {
    const touched = this.touched;
    this.touched = new Map();
    return touched;
  }

  /** Return the rows ordered by a column, then by the key; rows after the first HELD_MAX are discarded. */
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

/** The server's order: null, then numbers, then text; a window by its start. */
function compare(a, b) {
  const [x, y] = [sortable(a), sortable(b)];
  if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;
  return x < y ? -1 : Number(x > y);
}

function sortable(value) {
  if (value === null) return -Infinity;
  return typeof value === "object" ? JSON.stringify(value) : typeof value === "boolean" ? Number(value) : value;
}
