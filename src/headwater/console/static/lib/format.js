// Format numbers, durations, times and the cells of a view. Pure functions.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const hundredth = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const small = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const NUMBER_TYPES = /^(tinyint|smallint|int|bigint|float|double|decimal)/;
const TIME_RANGE = /^struct<start:timestamp(_ntz)?,end:timestamp(_ntz)?>$/;

export const NOTHING = "–";

export function formatCount(value) {
  return value === null ? NOTHING : whole.format(value);
}

export function formatRate(value) {
  if (value === null) return NOTHING;
  return value !== 0 && Math.abs(value) < 10 ? tenth.format(value) : whole.format(value);
}

export function formatDuration(ms) {
  if (ms === null) return NOTHING;
  if (ms < 1000) return `${whole.format(ms)} ms`;
  if (ms < 60_000) return `${tenth.format(ms / 1000)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** An age in whole seconds: `5 s ago`. */
export function formatAge(ms) {
  return ms < 60_000 ? `${Math.max(0, Math.floor(ms / 1000))} s ago` : `${formatDuration(ms)} ago`;
}

/** `20:44:11`, preceded by the day if it is not today. */
export function formatTime(time, zone) {
  const date = toDate(time);
  return `${dayUnlessToday(date, zone)}${clock(date, zone, true)}`;
}

/** `20:44 – 20:45`; with seconds only if one of the two times has some. */
export function formatRange(start, end, zone) {
  const [from, to] = [toDate(start), toDate(end)];
  const seconds = from.getTime() % 60_000 !== 0 || to.getTime() % 60_000 !== 0;
  const untilDay = day(from, zone) === day(to, zone) ? "" : `${day(to, zone)} `;
  const [first, last] = [clock(from, zone, seconds), clock(to, zone, seconds)];
  return `${dayUnlessToday(from, zone)}${first} – ${untilDay}${last}`;
}

export function isNumber(type) {
  return NUMBER_TYPES.test(type);
}

export function isTimeRange(type) {
  return TIME_RANGE.test(type.replaceAll(" ", ""));
}

/** The text of a view's cell; `exactCell` returns the exact value for the tooltip. */
export function formatCell(value, type, zone) {
  if (value === null) return NOTHING;
  if (isTimeRange(type)) return formatRange(value.start, value.end, zone);
  if (type === "timestamp" || type === "timestamp_ntz") return formatTime(value, zone);
  if (typeof value === "number") return formatNumber(value, type);
  if (type.startsWith("decimal")) return groupDigits(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** The value as the API returns it, or null if the cell's text shows all of it. */
export function exactCell(value, type, zone) {
  const exact = typeof value === "object" ? JSON.stringify(value) : String(value);
  return value === null || exact === formatCell(value, type, zone) ? null : exact;
}

function formatNumber(value, type) {
  if (type !== "double" && type !== "float") return whole.format(value);
  return value !== 0 && Math.abs(value) < 0.1 ? small.format(value) : hundredth.format(value);
}

/** Decimals arrive as text, so that no digit is lost. */
function groupDigits(text) {
  return text.replace(/^-?\d+/, (digits) => digits.replace(/\B(?=(\d{3})+$)/g, ","));
}

/** Times arrive as milliseconds, or as text with microseconds; text without a zone is shown unconverted. */
function toDate(time) {
  if (typeof time === "number") return new Date(time);
  const [, seconds, fraction, utc] = /^(.*?)(\.\d+)?(Z?)$/.exec(time);
  const date = new Date(`${seconds}${(fraction ?? ".000").slice(0, 4)}Z`);
  date.zoneless = utc === "";
  return date;
}

function isUtc(date, zone) {
  return zone === "utc" || date.zoneless === true;
}

function clock(date, zone, seconds) {
  const parts = isUtc(date, zone)
    ? [date.getUTCHours(), date.getUTCMinutes(), date.getUTCSeconds()]
    : [date.getHours(), date.getMinutes(), date.getSeconds()];
  return parts.slice(0, seconds ? 3 : 2).map((part) => String(part).padStart(2, "0")).join(":");
}

function day(date, zone) {
  const [year, month, number] = isUtc(date, zone)
    ? [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate()]
    : [date.getFullYear(), date.getMonth(), date.getDate()];
  const suffix = year === new Date().getFullYear() ? "" : ` ${year}`;
  return `${number} ${MONTHS[month]}${suffix}`;
}

function dayUnlessToday(date, zone) {
  const text = day(date, zone);
  return text === day(new Date(), zone) ? "" : `${text} `;
}
