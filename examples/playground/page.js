// The controls, and the server's reports. No limit is computed here: allowed requests, units left
// and times are read from responses. The server sends the requests too, each over a connection of
// its own to itself, because a browser would let all but six of a burst wait.

import { ALGORITHMS, DEFAULTS, PRESETS } from "./presets.js";
import { Lane } from "./timeline.js";

const $ = (selector) => document.querySelector(selector);
// a browser opens six connections to a server: two are kept free, for the state and for limits
const MOST_OPEN = 4;
// the time between two pictures for a visitor who prefers no motion
const STEP = 500;
// how long the traffic of a preset is sent
const SCENE = 12000;
const OF_THE_PAGE = ["x-arrived-ms", "x-waited-ms"];
const TOO_SLOW = "This machine was too slow: some requests missed their side of the boundary, so the "
  + "counts show nothing. Send the bursts again, or choose a longer period.";
const still = matchMedia("(prefers-reduced-motion: reduce)");
const visitor = crypto.randomUUID();
const form = $("#limit");
const traffic = $("#fire");
const lanes = ["first", "second"].map((id) => {
  const part = $(`#${id}`);
  return { part, line: new Lane(part.querySelector("canvas")), allowed: 0, denied: 0 };
});
let accepted = null;
let setting = Promise.resolve();
// aborted when other limits apply
let term = new AbortController();
// requests to `/fire` that are still read; aborted ones do not count
const fired = new Set();
let play = DEFAULTS.play;
let moved = 0;
let steady = null;
let boundary = null;
let timer = null;
let looking = false;
let away = false;

async function ask(path, options = {}) {
  const headers = { "x-visitor": visitor, ...options.headers };
  return fetch(path, { ...options, headers, cache: "no-store" });
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function say(text, bad = false) {
  write($("#status"), text);
  $("#status").classList.toggle("bad", bad);
}

function silent() {
  away = true;
  say("The server does not respond. Start it again; this page continues by itself.", true);
}

const open = () => [...fired].filter(({ signal }) => !signal.aborted).length;

// --- settings

const fieldOf = (name) => form.elements[name] ?? traffic.elements[name];
const usedBy = (algorithm) => ALGORITHMS[algorithm].uses;

function choices(select, options) {
  for (const [value, { label }] of Object.entries(options)) select.append(new Option(label, value));
}

function settings() {
  const names = Object.keys(DEFAULTS).filter((name) => name !== "play");
  return { ...Object.fromEntries(names.map((name) => [name, fieldOf(name).value])), play };
}

// Unknown names and options are dropped. Wrong numbers are errors of the server.
function restore(given) {
  for (const [name, value] of Object.entries({ ...DEFAULTS, ...given })) {
    if (!(name in DEFAULTS)) continue;
    if (name === "play") {
      play = ["burst", "steady", "boundary"].includes(value) ? value : DEFAULTS.play;
      continue;
    }
    const field = fieldOf(name);
    field.value = value;
    if (field.selectedIndex === -1) field.value = DEFAULTS[name];
  }
}

function showFields() {
  const used = new Set([form.algorithm.value, form.other.value].flatMap(usedBy));
  for (const name of ["burst", "max_wait", "buckets", "hold"]) {
    form[name].closest("label").hidden = !used.has(name);
  }
  write($("#preset"), PRESETS[form.preset.value].about);
}

function limitOf(algorithm) {
  const uses = usedBy(algorithm);
  const number = (name) => (form[name].value === "" ? null : Number(form[name].value));
  const millis = (name) => (form[name].value === "" ? null : Math.round(1000 * Number(form[name].value)));
  const limit = { algorithm, units: number("units"), period_ms: millis("period"), cost: number("cost") ?? 1 };
  if (uses.includes("buckets")) limit.algorithm += `:${form.buckets.value}`;
  if (uses.includes("burst")) limit.burst = number("burst");
  if (uses.includes("max_wait")) limit.max_wait_ms = millis("max_wait") ?? 0;
  return limit;
}

function wanted() {
  const algorithms = [form.algorithm.value, form.other.value];
  const labels = algorithms.map((algorithm) => ALGORITHMS[algorithm].label);
  const limits = algorithms.map(limitOf);
  // The requests of both lanes run for this time if one of them has slots.
  if (algorithms.some((algorithm) => usedBy(algorithm).includes("hold"))) {
    for (const limit of limits) limit.hold_ms = Math.round(1000 * Number(form.hold.value));
  }
  return { labels, lanes: limits };
}

// The link has the settings of the form, so that a reload restores them.
function remember() {
  const url = new URL(location.href);
  url.hash = new URLSearchParams(settings());
  history.replaceState(null, "", url);
  write($("#link"), url.href);
}

// Limits are set one after another, so that the last one stays. Without an argument, the accepted
// ones are set again.
function setLimits(asked) {
  setting = setting.then(() => post(asked ?? accepted ?? wanted())).catch(silent);
  return setting;
}

async function post(asked) {
  const answer = await ask("/limits", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ lanes: asked.lanes }),
  });
  // limits that are set again say nothing about the form
  const form = asked !== accepted;
  if (!answer.ok) {
    if (form) write($("#wrong"), (await answer.text()).trim());
    say(accepted ? "The previous limits still apply." : "No limits apply yet.");
    return;
  }
  if (form) write($("#wrong"), "");
  const shown = (await answer.json()).lanes;
  accepted = asked;
  // requests in flight belong to the previous limits
  term.abort();
  term = new AbortController();
  setBoundary(null);
  write($("#outcome"), "");
  write($("#response"), "none yet");
  lanes.forEach((lane, at) => {
    lane.allowed = lane.denied = 0;
    lane.line.clear();
    lane.line.runs = asked.lanes[at].hold_ms > 0;
    lane.name = asked.labels[at];
    lane.text = shown[at].text;
    count(lane);
  });
  write($("#rust"), shown[0].rust);
  write($("#toml"), shown[0].toml);
  say("Each request goes over HTTP through the real layer.");
  if (steady) setSteady(true);
  look();
}

// --- requests

async function fire(what, { signal }) {
  if (open() >= MOST_OPEN) {
    say(`${MOST_OPEN} bursts are still running, and a browser opens only six connections. Wait a little.`);
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
  for (const dot of dots.values()) dot.fate = "unknown";
}

// Reads lines of JSON as they arrive.
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

// A request was sent or answered, or a scene begins or ends. Times are relative to `start`.
function note(dots, start, line) {
  const at = start + line.at_ms;
  moved = performance.now();
  if ("boundary_ms" in line) return setBoundary(start + line.boundary_ms);
  if ("too_slow" in line) return bothSent(line.too_slow);
  const lane = lanes[line.lane];
  const id = `${line.id} ${line.lane}`;
  if (!dots.has(id)) return dots.set(id, lane.line.sent(at));
  const of = new Map(line.fields);
  // without the field, the layer was not called
  if (line.failed || !of.has("x-arrived-ms")) {
    say(`A request failed: ${line.failed ?? line.head}`, true);
    return;
  }
  const dot = dots.get(id);
  dots.delete(id);
  const fate = line.allowed ? "allowed" : "denied";
  dot.until = at;
  dot.fate = Number(of.get("x-waited-ms")) > 0 ? "waited" : fate;
  lane[fate] += 1;
  count(lane);
  if (line.lane > 0) return;
  const fields = line.fields.filter(([name]) => !OF_THE_PAGE.includes(name));
  write($("#response"), [line.head, ...fields.map((field) => field.join(": "))].join("\n"));
}

function count({ part, allowed, denied }) {
  write(part.querySelector(".counts"), `${allowed} allowed, ${denied} denied`);
}

// --- two bursts around a boundary

// New accounts, so that earlier requests do not matter.
async function sendBoth() {
  await setLimits();
  const mine = term;
  // until the server names the boundary
  setBoundary(Infinity);
  await fire(`each_side=${within("many", 100)}`, mine);
  if (mine === term) setBoundary(null);
}

function setBoundary(at) {
  boundary = at;
  $("#boundary").setAttribute("aria-pressed", String(at !== null));
  if (at !== null && at !== Infinity) lanes.forEach(({ line }) => line.edge(at));
}

function bothSent(slow) {
  setBoundary(null);
  const all = 2 * within("many", 100);
  const one = ({ name, allowed }) => `${name} allowed ${allowed} of ${all}.`;
  write($("#outcome"), slow ? TOO_SLOW : `Two bursts around one boundary: ${lanes.map(one).join(" ")}`);
  $("#outcome").classList.toggle("bad", slow);
}

// --- units left

async function look() {
  clearTimeout(timer);
  if (looking || document.hidden) return;
  looking = true;
  const mine = term;
  let lively = false;
  try {
    const answer = await ask("/state");
    // a restarted server knows no limits, and neither does one whose first limits were invalid
    if (answer.status === 404) {
      if (accepted || !$("#wrong").textContent) await setLimits();
    } else if (mine === term) lively = show((await answer.json()).lanes);
    if (answer.ok && away) say("The server responds again.");
    if (answer.ok) away = false;
  } catch {
    silent();
  }
  looking = false;
  timer = setTimeout(look, lively ? 100 : 1000);
}

// Returns true while anything moves.
function show(states) {
  const at = performance.now();
  states.forEach((state, n) => gauge(lanes[n], state, at));
  if (boundary !== null && boundary !== Infinity) {
    const left = boundary - at;
    if (left > 0) write($("#outcome"), `The boundary is in ${time(left)}.`);
    $("#outcome").classList.remove("bad");
  }
  draw();
  const charged = states.some(({ account }) => account?.reset_ms > 0);
  return charged || open() > 0 || at - moved < 15000;
}

function gauge(lane, { window: windowed, source, account }, at) {
  const { part, line } = lane;
  const title = document.createElement("small");
  title.textContent = `${lane.text}, store: ${source}`;
  part.querySelector("h2").replaceChildren(`${lane.name} `, title);
  if (!account) return;
  line.level(at, account);
  if (windowed && account.reset_ms > 0) line.edge(at + account.reset_ms);
  const more = account.next_ms > 0 ? `, more in ${time(account.next_ms)}` : "";
  write(part.querySelector(".left"), `${account.remaining} of ${account.limit} left${more}`);
  cells(part.querySelector(".gauge"), account);
}

function time(ms) {
  if (ms < 120_000) return `${(Math.ceil(ms / 100) / 10).toFixed(1)} s`;
  if (ms < 7_200_000) return `${Math.ceil(ms / 60_000)} min`;
  return ms < 172_800_000 ? `${Math.ceil(ms / 3_600_000)} h` : `${Math.ceil(ms / 86_400_000)} days`;
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

// --- pictures

let drawn = 0;

function draw() {
  const now = performance.now();
  if (still.matches && now - drawn < STEP) return;
  drawn = now;
  for (const lane of lanes) lane.line.draw(now);
}

function frame() {
  if (performance.now() - moved < 15000 || open() > 0) draw();
  requestAnimationFrame(frame);
}

function announce() {
  const line = ({ name, allowed, denied }) => `${name}: ${allowed} allowed, ${denied} denied.`;
  write($("#counted"), lanes.map(line).join(" "));
}

// --- controls

const within = (name, most) =>
  Math.max(1, Math.min(most, Math.floor(Number(traffic[name].value)) || 1));
const burst = () => fire(`n=${within("many", 100)}`, term);

async function setSteady(on) {
  steady?.abort();
  const mine = on ? new AbortController() : null;
  steady = mine;
  $("#steady").setAttribute("aria-pressed", String(on));
  write($("#steady"), on ? "Stop" : "Send steadily");
  if (!on) return;
  await fire(`every_ms=${Math.round(1000 / within("rate", 50))}`, mine);
  if (steady === mine) setSteady(false);
}

function choose(scene) {
  play = scene;
  remember();
}

// Plays the traffic of the settings for some seconds.
function start() {
  if (play === "boundary") return sendBoth();
  if (play === "burst") return burst();
  const mine = setSteady(true);
  const ours = steady;
  setTimeout(() => steady === ours && setSteady(false), SCENE);
  return mine;
}

async function begin(given) {
  setSteady(false);
  restore(given);
  showFields();
  remember();
  await setLimits(wanted());
  if (!$("#wrong").textContent) start();
}

async function copy(button) {
  const text = $(`#${button.value}`).textContent;
  const done = await navigator.clipboard.writeText(text).then(() => true, () => false);
  if (!done) getSelection().selectAllChildren($(`#${button.value}`));
  write(button, done ? "Copied" : "Selected");
  setTimeout(() => write(button, "Copy"), 2000);
}

$("#one").addEventListener("click", () => fire("n=1", term));
$("#burst").addEventListener("click", () => {
  choose("burst");
  burst();
});
$("#boundary").addEventListener("click", () => {
  choose("boundary");
  // new limits end a scene that is still running
  if (boundary === null) sendBoth();
  else setLimits();
});
$("#steady").addEventListener("click", () => {
  choose("steady");
  setSteady(steady === null);
});
form.preset.addEventListener("change", () => {
  const preset = form.preset.value;
  if (preset === "own") showFields();
  else begin({ ...PRESETS[preset], preset });
});
form.addEventListener("change", ({ target }) => {
  if (target === form.preset) return;
  form.preset.value = "own";
  showFields();
  remember();
  setLimits(wanted());
});
traffic.addEventListener("change", ({ target }) => {
  remember();
  if (target === traffic.rate && steady !== null) setSteady(true);
});
for (const one of [form, traffic]) {
  one.addEventListener("submit", (event) => event.preventDefault());
}
$("#code").addEventListener("click", ({ target }) => target.closest("button") && copy(target));
addEventListener("hashchange", () => begin(Object.fromEntries(new URLSearchParams(location.hash.slice(1)))));
document.addEventListener("visibilitychange", look);
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
setInterval(announce, 2000);
choices(form.preset, PRESETS);
choices(form.algorithm, ALGORITHMS);
choices(form.other, ALGORITHMS);
begin(Object.fromEntries(new URLSearchParams(location.hash.slice(1))));
frame();
