"use strict";

// What is shown comes from the server as JSON, and goes into the page as text alone.

const $ = (id) => document.getElementById(id);
const LOOK_EVERY = 2000;
const EXAMINE_EVERY = 5000;
const PATIENCE = 10000;
const ALGORITHMS = {
  gcra: "GCRA",
  token_bucket: "token bucket",
  fixed_window: "fixed window",
  anchored_window: "anchored window",
  sliding_window: "sliding window",
  sliding_log: "sliding log",
};

const KINDS = {
  "": "choose",
  text: "text",
  address: "address",
  number: "number",
  bytes: "bytes, in base64",
  everyone: "everyone",
  unidentified: "without an identity",
  json: "several, as JSON",
};
const EXAMPLES = {
  text: "alice",
  address: "203.0.113.9",
  number: "7",
  bytes: "/w==",
  json: '["GET", {"address": "203.0.113.9"}]',
};

function element(tag, fields = {}, ...inside) {
  const made = Object.assign(document.createElement(tag), fields);
  made.append(...inside);
  return made;
}

function time(ms) {
  if (ms === null) return "never";
  const units = [["day", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000]];
  const unit = units.find(([, length]) => ms >= length);
  if (!unit) return `${ms} ms`;
  const [name, length] = unit;
  return `${Math.ceil((ms / length) * 10) / 10} ${name}`;
}

// Relative, so that the page works below any path.
async function ask(route, body) {
  const request = { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) };
  if (body !== undefined) {
    request.method = "POST";
    request.headers = { "content-type": "application/json" };
    request.body = JSON.stringify(body);
  }
  const url = new URL(`api/${route}`, document.baseURI);
  // a page that was opened with a password in its address may not ask with it
  url.username = url.password = "";
  const response = await fetch(url, request);
  const text = await response.text();
  let answer = {};
  try {
    answer = JSON.parse(text);
  } catch {
    // a guard may answer what it likes
  }
  if (!response.ok) throw new Error(answer.detail || `${response.status} ${response.statusText}`);
  return answer;
}

function say(text, kind = "muted") {
  if ($("state").textContent === text) return;
  $("state").textContent = text;
  $("state").className = kind;
}

// What failed is said until a change succeeds.
async function change(route, body) {
  const words = (error) => `${route} of ${body.rule || body.layer} failed: ${error.message}`;
  const failed = await ask(route, body).then(() => "", words);
  $("failed").textContent = failed;
  if (!failed) await look();
}

// A switch: its name stays, what stands behind it tells the state, and a press turns it.
function toggle(name, about, kinds, press) {
  const state = element("span", { ariaHidden: "true" });
  const button = element("button", { type: "button" }, `${name}: `, state);
  button.setAttribute("role", "switch");
  button.setAttribute("aria-label", `${name}: ${about}`);
  let on = null;
  button.addEventListener("click", () => press(!on));
  return {
    button,
    set(now) {
      if (now === on) return;
      on = now;
      state.textContent = on ? "on" : "off";
      state.className = kinds[on ? 1 : 0];
      button.setAttribute("aria-checked", String(on));
    },
  };
}

function ruleView(layer, name) {
  const counts = element("span", { className: "number" });
  const quotas = element("p");
  const more = element("p", { className: "muted" });
  const recent = element("ul", { className: "recent" });
  const title = element("summary", { textContent: "Last refusals" });
  const details = element("details", {}, title, recent);
  const report = toggle(
    "Only reports",
    `rule ${name} of ${layer}`,
    ["muted", "wait"],
    (on) => change("report-only", { layer, rule: name, on }),
  );
  const head = element("div", { className: "head" }, element("h3", { textContent: name }), counts);
  const buttons = element("div", { className: "buttons" }, report.button);
  const root = element("div", { className: "rule" }, head, quotas, more, buttons, details);
  return {
    root,
    rule(rule) {
      counts.textContent = `${rule.refused} refused, ${rule.reported} reported`;
      counts.className = rule.refused > 0 ? "number no" : "number muted";
      const one = (quota) => {
        const { algorithm } = quota;
        const word = typeof algorithm === "string" ? algorithm : Object.keys(algorithm)[0];
        return `${quota.text} (${ALGORITHMS[word] || word})`;
      };
      quotas.textContent = rule.quotas ? rule.quotas.map(one).join(", ") || "no limit" : "quotas chosen per request";
      const cost = rule.cost === null ? "cost read from the request" : `cost ${rule.cost}`;
      const leaves = rule.headroom === null ? ", leaves what the request says" : rule.headroom ? `, leaves ${rule.headroom}` : "";
      const live = rule.quotas_are === "live" ? ", replaced while the server runs" : "";
      more.textContent = cost + leaves + (rule.queues ? ", may wait" : "") + live;
      report.set(rule.report_only);
    },
    recent(refusals) {
      details.hidden = refusals.length === 0;
      title.textContent = `Last refusals (${refusals.length})`;
      recent.replaceChildren(...refusals.map((refusal) => {
        const at = new Date(refusal.at_ms);
        const wait = refusal.retry_after_ms === null ? "waiting does not help" : `again in ${time(refusal.retry_after_ms)}`;
        return element(
          "li",
          {},
          element("time", { className: "number", dateTime: at.toISOString(), textContent: at.toLocaleTimeString() }),
          element("code", { textContent: refusal.key || "no key" }),
          element("span", { className: refusal.result.startsWith("shadow") ? "wait" : "no", textContent: refusal.result.replaceAll("_", " ") }),
          element("span", { className: "muted", textContent: wait }),
        );
      }));
    },
  };
}

function layerView(name) {
  const health = element("ul", { className: "health muted" });
  const rules = element("div");
  const views = new Map();
  const on = toggle("Limits", name, ["no", "ok"], (wanted) => {
    if (wanted || confirm(`Let every request pass ${name}?`)) change("switch", { layer: name, on: wanted });
  });
  const report = toggle(
    "Only reports",
    name,
    ["muted", "wait"],
    (wanted) => change("report-only", { layer: name, on: wanted }),
  );
  const root = element(
    "section",
    { className: "card" },
    element("h2", { textContent: name }),
    element("div", { className: "buttons" }, on.button, report.button),
    health,
    rules,
  );
  const view = (rule) => {
    if (!views.has(rule)) {
      views.set(rule, ruleView(name, rule));
      rules.append(views.get(rule).root);
    }
    return views.get(rule);
  };
  return {
    root,
    layer(layer) {
      on.set(layer.on);
      report.set(layer.report_only);
      layer.rules.forEach((rule) => view(rule.rule).rule(rule));
    },
    recent(layer) {
      layer.rules.forEach((rule) => view(rule.rule).recent(rule.recent));
    },
    health(condition) {
      health.replaceChildren(healthLine(condition));
    },
  };
}

function healthLine(condition) {
  const kind = { well: "ok", failing: "no" }[condition.state] || "muted";
  const line = element("li", {}, `${condition.store} `, element("span", { className: kind, textContent: condition.state }));
  if (condition.detail) line.append(`: ${condition.detail}`);
  const inner = condition.inner || [];
  if (inner.length) line.append(element("ul", {}, ...inner.map(healthLine)));
  return line;
}

const layers = new Map();
let known = [];

function layerOf(name) {
  if (!layers.has(name)) {
    layers.set(name, layerView(name));
    $("layers").append(layers.get(name).root);
  }
  return layers.get(name);
}

function options(select, names, labels = {}) {
  const now = [...select.options].map((option) => option.value);
  if (now.join("\n") === names.join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => element("option", { value: name, textContent: labels[name] || name })));
  if (names.includes(chosen)) select.value = chosen;
}

// As a key is written that the extractor of a rule makes; of one that does not say, in any way.
function kindsOf(kind) {
  if (Array.isArray(kind)) return ["json"];
  if (kind === null) return Object.keys(KINDS);
  if (kind.one_of) return [...new Set(kind.one_of.flatMap(kindsOf))];
  if (kind.address) return ["address"];
  return kind === "text" ? ["text", "bytes"] : [kind];
}

function offer() {
  options($("layer"), known.map((layer) => layer.layer));
  const layer = known.find((layer) => layer.layer === $("layer").value);
  options($("rule"), layer ? layer.rules.map((rule) => rule.rule) : []);
  const rule = layer && layer.rules.find((rule) => rule.rule === $("rule").value);
  $("quotas-label").hidden = !rule || rule.quotas !== null;
  options($("kind"), rule ? kindsOf(rule.key_kind) : [], KINDS);
  const example = EXAMPLES[$("kind").value];
  $("key-label").hidden = example === undefined;
  $("key").placeholder = example || "";
}

let looking = false;
let again = false;

// A look that is asked for during another follows it, so that a change is seen at once.
async function look() {
  if (looking) {
    again = true;
    return;
  }
  looking = true;
  try {
    const [now, refusals] = await Promise.all([ask("layers"), ask("refusals")]);
    known = now.layers;
    now.layers.forEach((layer) => layerOf(layer.layer).layer(layer));
    refusals.layers.forEach((layer) => layerOf(layer.layer).recent(layer));
    offer();
    say(known.length ? "live" : "no layer is watched");
  } catch (error) {
    say(`no answer: ${error.message}`, "no");
  } finally {
    looking = false;
  }
  if (again) {
    again = false;
    await look();
  }
}

// Apart, since a store may take its time to tell, and tells of all it holds.
async function examine() {
  const known = document.hidden ? null : await ask("health").catch(() => null);
  if (known) known.layers.forEach((layer) => layerOf(layer.layer).health(layer.health));
  else layers.forEach((view) => view.health({ store: "store", state: "unknown", detail: "no answer" }));
  setTimeout(examine, EXAMINE_EVERY);
}

function key() {
  const [kind, value] = [$("kind").value, $("key").value];
  if (kind === "json") {
    try {
      return JSON.parse(value);
    } catch (wrong) {
      throw new Error(`key is no JSON: ${wrong.message}; give a list, as in the field`);
    }
  }
  if (kind === "everyone" || kind === "unidentified") return { [kind]: true };
  return { [kind]: kind === "text" ? value : value.trim() };
}

function quotaView(quota) {
  const left = element("span", { className: "number", textContent: `${quota.remaining} of ${quota.limit}` });
  const bar = element("progress", { max: quota.limit || 1, value: quota.remaining });
  bar.setAttribute("aria-label", `${quota.remaining} of ${quota.limit} left`);
  const full = quota.reset_after_ms ? `more in ${time(quota.next_after_ms)}, full in ${time(quota.reset_after_ms)}` : "full";
  return element(
    "div",
    { className: "quota" },
    element("div", { className: "head" }, element("span", { textContent: quota.text || "quota" }), left),
    element("div", { className: "bar" }, bar),
    element("div", { className: "muted", textContent: full }),
  );
}

async function submit(event) {
  event.preventDefault();
  const route = event.submitter ? event.submitter.value : "peek";
  const answer = $("answer");
  try {
    const body = { layer: $("layer").value, rule: $("rule").value, key: key() };
    if (route === "block") body.for = $("for").value.trim();
    const quotas = $("quotas").value.split(";").map((quota) => quota.trim()).filter(Boolean);
    if (!$("quotas-label").hidden && quotas.length && (route === "peek" || route === "reset")) body.quotas = quotas;
    const told = await ask(route, body);
    const whose = element("p", {}, "key ", element("code", { textContent: told.key }), told.done ? `: ${told.done}, done by ${told.by}` : `, as ${told.by} has it`);
    if (told.prefix) whose.append(`; counts for all addresses of its /${told.prefix}`);
    answer.replaceChildren(whose);
    if (told.blocked_ms) answer.append(element("p", { className: "no", textContent: `blocked for ${time(told.blocked_ms)} more` }));
    if (told.quotas) answer.append(...told.quotas.map(quotaView), element("pre", { textContent: told.would }));
    look();
  } catch (error) {
    answer.replaceChildren(element("p", { className: "no", textContent: error.message }));
  }
}

$("form").addEventListener("submit", submit);
["layer", "rule", "kind"].forEach((id) => $(id).addEventListener("change", offer));
document.addEventListener("visibilitychange", () => document.hidden || look());
setInterval(() => document.hidden || look(), LOOK_EVERY);
look();
examine();
