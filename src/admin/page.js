"use strict";

// Data from the server is inserted as text, never as HTML.

const $ = (id) => document.getElementById(id);
const REFRESH_EVERY_MS = 2000;
const HEALTH_EVERY_MS = 5000;
const TIMEOUT_MS = 10000;
const MOST_KEYS = 10;

const KINDS = {
  address: "address",
  text: "text",
  number: "number",
  bytes: "bytes, in base64",
  everyone: "everyone",
  unidentified: "no identity",
  json: "list, as JSON",
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

// Two digits are enough. Rounded up, so that no time ends early.
function time(ms) {
  if (ms === null) return "never";
  const units = [["days", 86400000], ["h", 3600000], ["min", 60000], ["s", 0]];
  const [name, length] = units.find(([, length]) => ms >= length);
  const value = ms / (length || 1000);
  return `${value < 10 ? Math.ceil(value * 10) / 10 : Math.ceil(value)} ${name}`;
}

// Cuts the times of an explanation, which are exact to the nanosecond, after one digit.
const rounded = (text) => text.replace(/(\d+\.\d)\d+(?=(ms|us|µs|s)\b)/g, "$1");

const number = (value) => value.toLocaleString("en");

const RESULTS = {
  limited: "denied",
  shadow_limited: "reported, not denied by this rule",
  failed_closed: "denied, the store failed",
  fallback_limited: "denied by the local fallback",
};


// What a change does, before it is done.
const CONFIRM = {
  off: (name) => `Turn off the limits of ${name}? Every request passes until you turn them on.`,
  on: (name) => `Turn on the limits of ${name}? Requests above a limit are denied again.`,
  report: (name) => `Report only for ${name}? Its denials are counted, but it denies no request.`,
  enforce: (name) => `End report only for ${name}? Requests above a limit are denied again.`,
};

// The URL is relative, so that the page works under any path.
async function call(route, body) {
  const request = { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) };
  if (body !== undefined) {
    request.method = "POST";
    request.headers = { "content-type": "application/json" };
    request.body = JSON.stringify(body);
  }
  const url = new URL(`api/${route}`, document.baseURI);
  // fetch rejects a URL with credentials, which the address of the page may contain
  url.username = url.password = "";
  // browsers describe a lost server in different words
  const response = await fetch(url, request).catch(() => {
    throw new Error("the server does not respond");
  });
  const text = await response.text();
  let result = {};
  try {
    result = JSON.parse(text);
  } catch {
    // the response of a guard may have any format
  }
  if (!response.ok) throw new Error(result.detail || `${response.status} ${response.statusText}`);
  return result;
}

function showState(text, kind = "muted") {
  if ($("state").textContent === text) return;
  $("state").textContent = text;
  $("state").className = kind;
}

// An error stays visible until a change succeeds.
async function change(name, route, body) {
  const describe = (error) => `${name} of ${body.rule || body.layer} failed: ${error.message}`;
  const failed = await call(route, body).then(() => "", describe);
  $("failed").textContent = failed;
  if (!failed) await refresh();
}

// A switch: a button with a fixed name and the current state, "on" or "off".
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
  const title = element("summary", { textContent: "Recent denials" });
  const details = element("details", {}, title, recent);
  const top = element("ul", { className: "top" });
  const keys = element("div", { hidden: true }, element("h4", { textContent: "Most denied keys" }), top);
  const rows = new Map();
  const report = toggle(
    "Report only",
    `rule ${name} of ${layer}`,
    ["muted", "wait"],
    (on) => confirm(CONFIRM[on ? "report" : "enforce"](`rule ${name} of ${layer}`)) && change("Report only", "switch", { layer, rule: name, report_only: on }),
  );
  const head = element("div", { className: "head" }, element("h3", { textContent: name }), counts);
  const buttons = element("div", { className: "buttons" }, report.button);
  const root = element("div", { className: "rule" }, head, quotas, more, buttons, keys, details);
  return {
    root,
    rule(rule) {
      counts.textContent = `${number(rule.denied)} denied, ${number(rule.reported)} reported`;
      counts.className = rule.denied > 0 ? "number no" : "number muted";
      quotas.textContent = rule.quotas ? rule.quotas.map(quotaText).join("; ") || "no limit" : "quotas chosen per request";
      const cost = rule.cost === null ? "cost read from the request" : `cost ${rule.cost}`;
      const headroom = rule.headroom === null ? ", headroom read from the request" : rule.headroom ? `, headroom ${rule.headroom}` : "";
      const live = rule.live ? ", live plan" : "";
      more.textContent = cost + headroom + (rule.queues ? ", may queue" : "") + live;
      report.set(rule.report_only);
    },
    // Rows are kept, so that no button is replaced under the pointer.
    top(list) {
      keys.hidden = list.length === 0;
      const shown = list.filter((one, at) => at < MOST_KEYS || one.blocked_until_ms !== null);
      for (const key of rows.keys()) if (!shown.some((one) => one.key === key)) rows.delete(key);
      const nodes = shown.map((one) => {
        if (!rows.has(one.key)) rows.set(one.key, keyRow(layer, name, one.key));
        rows.get(one.key).set(one);
        return rows.get(one.key).root;
      });
      if (nodes.some((node, at) => top.children[at] !== node) || top.children.length !== nodes.length) top.replaceChildren(...nodes);
    },
    recent(denials) {
      details.hidden = denials.length === 0;
      title.textContent = `Recent denials (${denials.length})`;
      recent.replaceChildren(...denials.map((denial) => {
        const at = new Date(denial.at_ms);
        const wait = denial.retry_after_ms === null ? "waiting does not help" : `may retry in ${time(denial.retry_after_ms)}`;
        return element(
          "li",
          {},
          element("time", { className: "number", dateTime: at.toISOString(), textContent: at.toLocaleTimeString() }),
          element("code", { textContent: denial.key || "no key" }),
          element("span", { className: denial.result.startsWith("shadow") ? "wait" : "no", textContent: RESULTS[denial.result] || denial.result }),
          element("span", { className: "muted", textContent: wait }),
        );
      }));
    },
  };
}

// A quota as in a configuration: text, or a table as "units 5, period 1s, algorithm sliding_log".
function quotaText(quota) {
  const plain = (value) => (typeof value === "object" ? JSON.stringify(value) : value);
  return typeof quota === "string" ? quota : Object.entries(quota).map(([name, value]) => `${name} ${plain(value)}`).join(", ");
}

// A listed key, with buttons to block and unblock it.
function keyRow(layer, rule, fingerprint) {
  const clear = element("span", { className: "clear" });
  const counts = element("span", { className: "number no" });
  const blocked = element("span", { className: "no" });
  const about = { layer, rule, fingerprint };
  const act = (label, press) => {
    const button = element("button", { type: "button", textContent: label });
    button.setAttribute("aria-label", `${label} key ${fingerprint}`);
    button.addEventListener("click", press);
    return button;
  };
  const block = act("Block", () => {
    const time = $("for").value.trim();
    if (confirm(`Block key ${clear.textContent || fingerprint} of rule ${rule} for ${time}?`)) change("Block", "block", { ...about, for: time });
  });
  const unblock = act("Unblock", () => change("Unblock", "unblock", about));
  const root = element("li", {}, element("code", { textContent: fingerprint }), clear, counts, blocked, element("span", { className: "acts" }, block, unblock));
  return {
    root,
    set(one) {
      clear.textContent = one.clear || "";
      counts.textContent = `${number(one.denied)} denied`;
      const left = one.blocked_until_ms - Date.now();
      blocked.textContent = left > 0 ? `blocked for ${time(left)}` : "";
    },
  };
}

function layerView(name) {
  const health = element("ul", { className: "health muted" });
  const rules = element("div");
  const views = new Map();
  const on = toggle("Limits", name, ["no", "ok"], (wanted) => {
    if (confirm(CONFIRM[wanted ? "on" : "off"](name))) change("Limits", "switch", { layer: name, on: wanted });
  });
  const report = toggle(
    "Report only",
    name,
    ["muted", "wait"],
    (wanted) => confirm(CONFIRM[wanted ? "report" : "enforce"](name)) && change("Report only", "switch", { layer: name, report_only: wanted }),
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
      for (const rule of layer.rules) {
        view(rule.rule).rule(rule);
        view(rule.rule).recent(rule.recent);
        view(rule.rule).top(rule.top);
      }
    },
    health(report) {
      health.replaceChildren(healthLine(report));
    },
  };
}

function healthLine(report) {
  const kind = { healthy: "ok", failing: "no" }[report.status] || "muted";
  const line = element("li", {}, `${report.store} `, element("span", { className: kind, textContent: report.status }));
  if (report.detail) line.append(`: ${report.detail}`);
  const inner = report.inner || [];
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

function updateForm() {
  options($("layer"), known.map((layer) => layer.layer));
  const layer = known.find((layer) => layer.layer === $("layer").value);
  options($("rule"), layer ? layer.rules.map((rule) => rule.rule) : []);
  const rule = layer && layer.rules.find((rule) => rule.rule === $("rule").value);
  $("quotas-label").hidden = !rule || rule.quotas !== null;
  options($("kind"), rule ? Object.keys(KINDS) : [], KINDS);
  const example = EXAMPLES[$("kind").value];
  $("key-label").hidden = example === undefined;
  $("key").placeholder = example || "";
}

let refreshing = false;
let refreshAgain = false;

// A refresh that is requested during another one runs after it, so that a change is shown at once.
async function refresh() {
  if (refreshing) {
    refreshAgain = true;
    return;
  }
  refreshing = true;
  try {
    known = (await call("layers")).layers;
    known.forEach((layer) => layerOf(layer.layer).layer(layer));
    updateForm();
    showState(known.length ? "Up to date" : "No layers");
  } catch (error) {
    showState(`Not up to date: ${error.message}`, "no");
  } finally {
    refreshing = false;
  }
  if (refreshAgain) {
    refreshAgain = false;
    await refresh();
  }
}

// Health is refreshed separately, because the health check of a store may be slow.
async function refreshHealth() {
  const known = document.hidden ? null : await call("health").catch(() => null);
  if (known) known.layers.forEach((layer) => layerOf(layer.layer).health(layer.health));
  else layers.forEach((view) => view.health({ store: "store", status: "unknown", detail: "the server does not respond" }));
  setTimeout(refreshHealth, HEALTH_EVERY_MS);
}

function key() {
  const [kind, value] = [$("kind").value, $("key").value];
  if (kind === "json") {
    try {
      return JSON.parse(value);
    } catch (wrong) {
      throw new Error(`key is not valid JSON: ${wrong.message}; give a list, as in ${EXAMPLES.json}`);
    }
  }
  if (kind === "everyone" || kind === "unidentified") return { [kind]: true };
  return { [kind]: kind === "text" ? value : value.trim() };
}

function quotaView(quota) {
  const left = element("span", { className: "number", textContent: `${number(quota.remaining)} of ${number(quota.limit)} left` });
  const bar = element("progress", { max: quota.limit || 1, value: quota.remaining });
  bar.setAttribute("aria-label", `${quota.remaining} of ${quota.limit} left`);
  let state = quota.limit ? "full" : "blocked";
  if (quota.held !== null) state = `${number(quota.held)} held`;
  else if (quota.reset_after_ms) state = `more in ${time(quota.next_after_ms)}, full in ${time(quota.reset_after_ms)}`;
  return element(
    "div",
    { className: "quota" },
    element("div", { className: "head" }, element("span", { textContent: quota.text || "quota" }), left),
    element("div", { className: "bar" }, bar),
    element("div", { className: "muted", textContent: state }),
  );
}

// The length of the prefix that an address stands for, or undefined for a single address. An IPv4 address may be
// written as one of IPv6.
function networkOf(text) {
  const [address, prefix] = text.split("/");
  if (/^::ffff:\d+\./i.test(address)) return prefix && prefix - 96;
  return prefix || (address.includes(":") ? 64 : undefined);
}

const DONE = {
  peek: () => "The account.",
  reset: () => "The account is new again.",
  block: (body) => `Blocked for ${body.for}.`,
  unblock: () => "Not blocked any more.",
};

async function submit(event) {
  event.preventDefault();
  const route = event.submitter ? event.submitter.value : "peek";
  const answer = $("answer");
  try {
    const body = { layer: $("layer").value, rule: $("rule").value, key: key() };
    if (route === "block") body.for = $("for").value.trim();
    const quotas = $("quotas").value.split(";").map((quota) => quota.trim()).filter(Boolean);
    if (!$("quotas-label").hidden && quotas.length && (route === "peek" || route === "reset")) body.quotas = quotas;
    const result = await call(route, body);
    const summary = element("p", {}, `${DONE[route](body)} Key `, element("code", { textContent: result.key }), `, store ${result.by}.`);
    const network = networkOf(body.key.address || "");
    if (network) summary.append(` This applies to all addresses of its /${network}.`);
    answer.replaceChildren(summary);
    if (result.blocked_ms) answer.append(element("p", { className: "no", textContent: `Blocked for ${time(result.blocked_ms)}` }));
    if (result.quotas) answer.append(...result.quotas.map(quotaView), element("pre", { textContent: rounded(result.would) }));
    refresh();
  } catch (error) {
    answer.replaceChildren(element("p", { className: "no", textContent: error.message }));
  }
}

$("form").addEventListener("submit", submit);
["layer", "rule", "kind"].forEach((id) => $(id).addEventListener("change", updateForm));
document.addEventListener("visibilitychange", () => document.hidden || refresh());
setInterval(() => document.hidden || refresh(), REFRESH_EVERY_MS);
refresh();
refreshHealth();
