// The controls, and what the server tells. No limit is computed here: what is admitted, what is
// left and when more comes is read from answers. The server sends the requests too, each over a
// connection of its own to itself, as a browser would let all but six of a burst wait.

import { Lane } from "./timeline.js";

const $ = (selector) => document.querySelector(selector);
// a browser opens six connections to a server: two are kept free, for looking and for limits
const MOST_OPEN = 4;
// how often a picture changes for who wants no motion
const STEP = 500;
const OF_THE_PAGE = ["x-naive", "x-waited-ms"];
const still = matchMedia("(prefers-reduced-motion: reduce)");
const visitor = crypto.randomUUID();
const form = $("#limit");
const lanes = {};
for (const name of ["ours", "naive"]) {
  const part = $(`#${name}`);
  lanes[name] = { part, line: new Lane(part.querySelector("canvas")), admitted: 0, denied: 0 };
}
let limit = "";
let accepted = null;
let setting = Promise.resolve();
// what was fired under the limit that is in force
let term = new AbortController();
// requests to `/fire` that are still read; aborted ones count no more
const fired = new Set();
let moved = 0;
let across = null;
let timer = null;
let looking = false;
let away = false;

async function ask(path, options = {}) {
  const headers = { "x-visitor": visitor, ...options.headers };
  return fetch(path, { ...options, headers, cache: "no-store" });
}

function say(text, bad = false) {
  const said = $("#said");
  if (said.textContent !== text) said.textContent = text;
  said.classList.toggle("bad", bad);
}

function silent() {
  away = true;
  say("The server does not answer. Start it again; this page goes on by itself.", true);
}

const open = () => [...fired].filter(({ signal }) => !signal.aborted).length;

// --- the limit

function fields() {
  return new Set(form.algorithm.selectedOptions[0].dataset.with.split(" "));
}

function showFields() {
  for (const name of ["burst", "max_wait_ms", "buckets"]) {
    form[name].closest("label").hidden = !fields().has(name);
  }
}

function wanted() {
  const has = fields();
  const number = (name) => (form[name].value === "" ? null : Number(form[name].value));
  const algorithm = form.algorithm.value + (has.has("buckets") ? `:${form.buckets.value}` : "");
  const limit = { algorithm, units: number("units"), period_ms: number("period_ms") };
  if (has.has("burst")) limit.burst = number("burst");
  if (has.has("max_wait_ms")) limit.max_wait_ms = number("max_wait_ms") ?? 0;
  return { label: form.algorithm.selectedOptions[0].label, limit };
}

// One after another: the last that was asked for is the one that stays. Without one it is what was
// accepted last, once more.
function setLimit(asked) {
  setting = setting.then(() => post(asked ?? accepted ?? wanted())).catch(silent);
  return setting;
}

async function post(asked) {
  const answer = await ask("/limit", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(asked.limit),
  });
  const text = (await answer.text()).trim();
  // one that is set again says nothing about the form
  if (asked !== accepted) $("#wrong").textContent = answer.ok ? "" : text;
  if (!answer.ok) {
    say(accepted ? "The limit before stays in force." : "No limit is in force yet.");
    return;
  }
  accepted = asked;
  // what is still under way belongs to the limit before
  term.abort();
  term = new AbortController();
  setAcross(null);
  for (const lane of Object.values(lanes)) {
    lane.admitted = lane.denied = 0;
    lane.line.clear();
    count(lane);
  }
  limit = `${asked.label}, ${text}`;
  $("#ours .what").textContent = limit;
  say("Every request goes over HTTP through the real layer.");
  if (steady) setSteady(true);
  look();
}

// --- requests

async function fire(what, { signal }) {
  if (open() >= MOST_OPEN) {
    say(`${MOST_OPEN} are still under way, and a browser opens no more than six connections: wait a little.`);
    return;
  }
  const mine = { signal };
  fired.add(mine);
  look();
  const dots = new Map();
  try {
    const answer = await ask(`/fire?${what}`, { signal });
    if (answer.ok) await read(answer.body, note.bind(null, dots, performance.now()));
    else say(await answer.text(), true);
  } catch {
    if (!signal.aborted) silent();
  }
  fired.delete(mine);
  for (const { ours } of dots.values()) ours.fate = "unknown";
}

// Lines of JSON as they come.
async function read(body, each) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    lines.forEach((line) => each(JSON.parse(line)));
  }
}

// A request was sent, or answered. The server's times are relative to `start`.
function note(dots, start, { id, at_ms, head, admitted, fields, failed }) {
  const at = start + at_ms;
  moved = performance.now();
  if (!dots.has(id)) {
    const [ours, naive] = [lanes.ours.line.sent(at), lanes.naive.line.sent(at)];
    naive.fate = "unknown";
    dots.set(id, { ours, naive });
    return;
  }
  const of = new Map(fields);
  // without the field no layer was asked
  if (failed || !of.has("x-naive")) {
    say(`A request failed: ${failed ?? head}`, true);
    return;
  }
  const { ours, naive } = dots.get(id);
  dots.delete(id);
  const fate = admitted ? "admitted" : "denied";
  ours.until = at;
  ours.fate = Number(of.get("x-waited-ms")) > 0 ? "waited" : fate;
  naive.fate = of.get("x-naive");
  lanes.ours[fate] += 1;
  lanes.naive[naive.fate] += 1;
  Object.values(lanes).forEach(count);
  const lines = fields.filter(([name]) => !OF_THE_PAGE.includes(name));
  $("#answer").textContent = [head, ...lines.map((line) => line.join(": "))].join("\n");
}

function count({ part, admitted, denied }) {
  part.querySelector(".counts").textContent = `${admitted} admitted, ${denied} denied`;
}

// --- what is left

async function look() {
  clearTimeout(timer);
  if (looking || document.hidden) return;
  looking = true;
  const mine = term;
  let lively = false;
  try {
    const answer = await ask("/state");
    // a server that was started again knows no limit; nor has it one where the first was wrong
    if (answer.status === 404) {
      if (accepted || !$("#wrong").textContent) await setLimit();
    } else if (mine === term) lively = show(await answer.json());
    if (answer.ok && away) say("The server answers again.");
    if (answer.ok) away = false;
  } catch {
    silent();
  }
  looking = false;
  timer = setTimeout(look, lively ? 100 : 1000);
}

// Whether anything moves.
function show({ window: windowed, source, ours, naive }) {
  const at = performance.now();
  if (ours) gauge("ours", ours, at, windowed && ours.reset_ms > 0);
  gauge("naive", naive, at, true);
  $("#ours .what").textContent = `${limit}, store: ${source}`;
  pace(naive);
  draw();
  const owed = ours?.reset_ms > 0 || naive.remaining < naive.limit;
  return owed || open() > 0 || across !== null || at - moved < 15000;
}

function gauge(name, told, at, edge) {
  const { part, line } = lanes[name];
  line.level(at, told);
  if (edge) line.edge(at + told.reset_ms);
  const more = told.next_ms > 0 ? `, more in ${time(told.next_ms)}` : "";
  part.querySelector(".left").textContent = `${told.remaining} of ${told.limit} left${more}`;
  cells(part.querySelector(".gauge"), told);
}

function time(ms) {
  if (ms < 120_000) return `${(ms / 1000).toFixed(1)} s`;
  return ms < 7_200_000 ? `${Math.ceil(ms / 60_000)} min` : `${Math.ceil(ms / 3_600_000)} h`;
}

function cells(place, { remaining, limit }) {
  const bar = limit > 50;
  place.classList.toggle("bar", bar);
  const wanted = bar ? 1 : limit;
  while (place.childElementCount > wanted) place.lastChild.remove();
  while (place.childElementCount < wanted) place.append(document.createElement("i"));
  [...place.children].forEach((cell, at) => {
    cell.classList.toggle("full", bar || at < remaining);
    cell.style.width = bar ? `${(100 * remaining) / limit}%` : "";
  });
}

// Two bursts, one on each side of the edge that the server tells of: a quarter of the period before it
// and a little after it. Each look tells better when that is.
function pace({ reset_ms: left }) {
  if (across === null || across.fired) return;
  clearTimeout(across.timer);
  const early = left - accepted.limit.period_ms / 4;
  const edge = performance.now() + left;
  if (early >= 0 && early < 60_000) across.timer = setTimeout(before, early, edge);
}

function before(edge) {
  const left = edge - performance.now();
  // this machine was held up: the next edge will do
  if (left <= 0) return;
  across.fired = true;
  across.timer = setTimeout(after, left + accepted.limit.period_ms / 20);
  fire(burst(), term);
}

function after() {
  setAcross(null);
  fire(burst(), term);
}

function setAcross(now) {
  clearTimeout(across?.timer);
  across = now;
  $("#edge").setAttribute("aria-pressed", String(across !== null));
}

// --- pictures and words

let drawn = 0;

function draw() {
  const now = performance.now();
  if (still.matches && now - drawn < STEP) return;
  drawn = now;
  for (const lane of Object.values(lanes)) lane.line.draw(now);
}

function frame() {
  if (performance.now() - moved < 15000 || across || open() > 0) draw();
  requestAnimationFrame(frame);
}

function told() {
  const line = (name, { admitted, denied }) => `${name}: ${admitted} admitted, ${denied} denied.`;
  const text = `${line("tower-sluice", lanes.ours)} ${line("Naive fixed window", lanes.naive)}`;
  if ($("#counted").textContent !== text) $("#counted").textContent = text;
}

// --- controls

const within = (input, most) => Math.max(1, Math.min(most, Math.floor(Number(input.value)) || 1));
const burst = () => `n=${within($("#many"), 200)}`;
let steady = null;

$("#one").addEventListener("click", () => fire("n=1", term));
$("#burst").addEventListener("click", () => fire(burst(), term));
$("#edge").addEventListener("click", () => {
  setAcross(across ? null : { fired: false, timer: null });
  look();
});
async function setSteady(on) {
  steady?.abort();
  const mine = on ? new AbortController() : null;
  steady = mine;
  $("#steady").setAttribute("aria-pressed", String(on));
  $("#steady").textContent = on ? "Stop" : "Send steadily";
  if (!on) return;
  await fire(`every_ms=${Math.round(1000 / within($("#rate"), 50))}`, mine);
  if (steady === mine) setSteady(false);
}
$("#steady").addEventListener("click", () => setSteady(steady === null));
$("#rate").addEventListener("change", () => steady !== null && setSteady(true));
form.addEventListener("change", () => {
  showFields();
  setLimit(wanted());
});
form.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("visibilitychange", look);
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
setInterval(told, 2000);
showFields();
setLimit(wanted()).then(look);
frame();
