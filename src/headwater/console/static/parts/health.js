// Summarize the state of the app in one sentence. Pure functions.

import { formatCount, formatDuration, formatRate } from "../lib/format.js";

const LAG_FINE_S = 3; // one or two micro-batches: a pipeline that reads in batches always lags that much

/** Return `{tone, text, target}`: the severity (ok, wait, warn, bad), the sentence, and the pipeline it is about. */
export function assess(status) {
  const { topics, pipelines } = status;
  return (
    failure(pipelines) ??
    unreachable(topics) ??
    atRisk(status.groups) ??
    noEvents(topics) ??
    stopped(pipelines) ??
    retry(pipelines) ??
    starting(pipelines) ??
    backlog(pipelines) ??
    flow(topics, pipelines)
  );
}

function failure(pipelines) {
  const suspended = pipelines.find((pipeline) => pipeline.state === "suspended");
  if (!suspended) return null;
  const reason = (suspended.error ?? "no reason given").split("\n")[0];
  return { tone: "bad", text: `Pipeline ${suspended.name} is suspended: ${reason}`, target: suspended.name };
}

function retry(pipelines) {
  const isolating = pipelines.find((pipeline) => pipeline.state === "isolating");
  if (isolating) return isolation(isolating);
  const waiting = pipelines.find((pipeline) => pipeline.state === "waiting");
  if (!waiting) return null;
  const reason = (waiting.error ?? "no reason given").split("\n")[0];
  return { tone: "warn", text: `Pipeline ${waiting.name} will retry: ${reason}`, target: waiting.name };
}

function isolation({ name, error, isolating }) {
  const reason = (error ?? "no reason given").split("\n")[0];
  const found = isolating?.found ? `, ${formatCount(isolating.found)} found` : "";
  return { tone: "warn", text: `Pipeline ${name} is isolating a poison row${found}: ${reason}`, target: name };
}

function unreachable(topics) {
  if (!topics.some((topic) => topic.stale)) return null;
  return { tone: "warn", text: "The log does not respond; topics show the last known state", target: null };
}

function atRisk(groups) {
  const worst = groups.reduce((most, next) => (next.atRiskRecords > (most?.atRiskRecords ?? 0) ? next : most), null);
  if (!worst) return null;
  const { topic } = worst.positions.find((position) => position.atRiskRecords > 0);
  const count = formatCount(worst.atRiskRecords);
  const text = `Retention will soon delete ${count} records of ${topic} that group ${worst.name} has not read`;
  return { tone: "warn", text, target: null };
}

function noEvents(topics) {
  if (topics.some((topic) => topic.records > 0)) return null;
  return { tone: "wait", text: "Waiting for the first event", target: null };
}

function stopped(pipelines) {
  const found = pipelines.find((pipeline) => pipeline.state === "stopped" || pipeline.state === "paused");
  return found ? { tone: "warn", text: `Pipeline ${found.name} is ${found.state}`, target: found.name } : null;
}

function starting(pipelines) {
  const found = pipelines.find((pipeline) => pipeline.state === "starting");
  return found ? { tone: "wait", text: `Pipeline ${found.name} is starting`, target: found.name } : null;
}

function backlog(pipelines) {
  const worst = pipelines.reduce((most, next) => (lagSeconds(next) > lagSeconds(most) ? next : most), null);
  if (lagSeconds(worst) <= LAG_FINE_S) return null;
  const behind = `${worst.name} is ${formatCount(worst.behindRecords)} records behind`;
  const seconds = worst.catchUpSeconds;
  if (seconds === null) return { tone: "warn", text: `Falling behind: ${behind}, records arrive faster than they are read`, target: worst.name };
  return { tone: "warn", text: `Catching up: ${behind}, about ${formatDuration(seconds * 1000)}`, target: worst.name };
}

function flow(topics, pipelines) {
  const rate = topics.reduce((sum, topic) => sum + (topic.recordsPerSecond ?? 0), 0);
  const start = rate > 0 ? `All flowing: ${formatRate(rate)} records/s in` : "All quiet: no new records";
  if (pipelines.length === 0) return { tone: "wait", text: `${start}, no pipeline yet`, target: null };
  const all = pipelines.length === 2 ? "both" : `all ${pipelines.length}`;
  const subject = pipelines.length === 1 ? `${pipelines[0].name} is` : `${all} pipelines are`;
  const behind = pipelines.reduce((sum, pipeline) => sum + (pipeline.behindRecords ?? 0), 0);
  return { tone: "ok", text: `${start}, ${subject} up to date, ${formatCount(behind)} records behind`, target: null };
}

/** The seconds a pipeline needs to catch up; Infinity if its backlog does not shrink. */
function lagSeconds(pipeline) {
  return (pipeline?.behindRecords ?? 0) === 0 ? 0 : (pipeline.catchUpSeconds ?? Infinity);
}
