// The controls, and what the server tells. No limit is computed here: what is admitted, what is
// left and when more comes is read from answers.

import { Lane } from "./timeline.js";

const $ = (selector) => document.querySelector(selector);
// a browser opens six connections to a server: one is kept free for looking
const UNDER_WAY = 5;
// how often a picture changes for who wants no motion
const STEP = 500;
const OF_THE_PAGE = ["x-naive", "x-waited-ms"];
const still = matchMedia("(prefers-reduced-motion: reduce)");
const visitor = crypto.randomUUID();
const form = $("#limit");
const lanes = {};
for (const name of ["ours", "naive"]) {
  const part = $(`#${name}`);
  lanes[name] = { part, line: new Lane(part.querySelector("canvas")), admitted: 0, refused: 0 };
}
let limit = "";
let settings = 0;
let waiting = 0;
let underWay = 0;
let epoch = 0;
let moved = 0;
let across = null;
let timer = null;
let looking = false;

async function ask(path, options = {}) {
  const headers = { "x-visitor": visitor, ...options.headers };
  return fetch(path, { ...options, headers, cache: "no-store" });
}

function say(text, bad = false) {
  const said = $("#said");
  if (said.textContent !== text) said.textContent = text;
  said.classList.toggle("bad", bad);
}

const silent = () => say("The server does not answer. Start it again; this page goes on by itself.", true);

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
  const asked = { algorithm, units: number("units"), period_ms: number("period_ms") };
  if (has.has("burst")) asked.burst = number("burst");
  if (has.has("max_wait_ms")) asked.max_wait_ms = number("max_wait_ms") ?? 0;
  return asked;
}

async function setLimit() {
  showFields();
  const mine = ++settings;
  const { label } = form.algorithm.selectedOptions[0];
  let answer;
  let text;
  try {
    answer = await ask("/limit", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(wanted()),
    });
    text = (await answer.text()).trim();
  } catch {
    silent();
    return;
  }
  // another was chosen meanwhile
  if (mine !== settings) return;
  $("#wrong").textContent = answer.ok ? "" : text;
  if (!answer.ok) {
    say("The limit before stays in force.");
    return;
  }
  // what is still under way belongs to the limit before
  epoch += 1;
  waiting = 0;
  across = null;
  for (const lane of Object.values(lanes)) {
    lane.admitted = lane.refused = 0;
    lane.line.clear();
    count(lane);
  }
  limit = `${label}, ${text}`;
  $("#ours .what").textContent = limit;
  $("#edge").setAttribute("aria-pressed", "false");
  say("Every request goes over HTTP through the real layer.");
  look();
}

// --- requests

function send(n) {
  waiting += n;
  pump();
  look();
}

function pump() {
  while (waiting > 0 && underWay < UNDER_WAY) {
    waiting -= 1;
    underWay += 1;
    request(epoch).finally(() => {
      underWay -= 1;
      pump();
    });
  }
}

async function request(mine) {
  const at = performance.now();
  moved = at;
  const dot = lanes.ours.line.sent(at);
  const beside = lanes.naive.line.sent(at);
  beside.fate = "unknown";
  let answer;
  try {
    answer = await ask("/try");
    await answer.text();
  } catch {
    dot.fate = "unknown";
    waiting = 0;
    silent();
    return;
  }
  if (mine !== epoch) return;
  dot.until = moved = performance.now();
  if (!answer.headers.has("x-naive")) {
    dot.fate = "unknown";
    return;
  }
  const fate = answer.ok ? "admitted" : "refused";
  dot.fate = Number(answer.headers.get("x-waited-ms")) > 0 ? "waited" : fate;
  beside.fate = answer.headers.get("x-naive");
  lanes.ours[fate] += 1;
  lanes.naive[beside.fate] += 1;
  Object.values(lanes).forEach(count);
  showAnswer(answer);
}

function showAnswer(answer) {
  const lines = [...answer.headers].filter(([name]) => !OF_THE_PAGE.includes(name));
  const head = `HTTP/1.1 ${answer.status} ${answer.statusText}`;
  $("#answer").textContent = [head, ...lines.map(([name, value]) => `${name}: ${value}`)].join("\n");
}

function count({ part, admitted, refused }) {
  part.querySelector(".counts").textContent = `${admitted} admitted, ${refused} refused`;
}

// --- what is left

async function look() {
  clearTimeout(timer);
  if (looking || document.hidden) return;
  looking = true;
  const mine = epoch;
  let lively = false;
  try {
    const answer = await ask("/state");
    if (answer.status === 404) await setLimit();
    else if (mine === epoch) lively = show(await answer.json());
    if (answer.ok && $("#said.bad")) say("The server answers again.");
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
  return owed || underWay > 0 || across !== null || at - moved < 15000;
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

// Two bursts, one on each side of the edge that the server tells of.
function pace({ reset_ms: left }) {
  if (across === null) return;
  if (across.fired && left > across.left) {
    across = null;
    $("#edge").setAttribute("aria-pressed", "false");
    send(burst());
  } else if (!across.fired && left <= 500 && left >= 100) {
    across.fired = true;
    send(burst());
  }
  if (across) across.left = left;
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
  if (performance.now() - moved < 15000 || across) draw();
  requestAnimationFrame(frame);
}

function told() {
  const line = (name, { admitted, refused }) => `${name}: ${admitted} admitted, ${refused} refused.`;
  const text = `${line("tower-sluice", lanes.ours)} ${line("Naive fixed window", lanes.naive)}`;
  if ($("#counted").textContent !== text) $("#counted").textContent = text;
}

// --- controls

const within = (input, most) => Math.max(1, Math.min(most, Math.floor(Number(input.value)) || 1));
const burst = () => within($("#many"), 100);
let steady = null;

$("#one").addEventListener("click", () => send(1));
$("#burst").addEventListener("click", () => send(burst()));
$("#edge").addEventListener("click", () => {
  across = across ? null : { fired: false, left: 0 };
  $("#edge").setAttribute("aria-pressed", String(across !== null));
  look();
});
function setSteady(on) {
  clearInterval(steady);
  steady = on ? setInterval(() => waiting < 50 && send(1), 1000 / within($("#rate"), 50)) : null;
  $("#steady").setAttribute("aria-pressed", String(on));
  $("#steady").textContent = on ? "Stop" : "Send steadily";
}
$("#steady").addEventListener("click", () => setSteady(steady === null));
$("#rate").addEventListener("change", () => steady !== null && setSteady(true));
form.addEventListener("change", setLimit);
form.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("visibilitychange", look);
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
setInterval(told, 2000);
setLimit().then(look);
frame();
