// Drawing: from a snapshot to the page, in place. Every text goes through textContent, whoever wrote it; styles are
// set as properties, which the content security policy allows, and never as markup.

const counts = new Intl.NumberFormat("en");
export const count = (number) => (number === null || number === undefined ? "–" : counts.format(number));
export const byId = (id) => document.getElementById(id);

export function time(seconds) {
  if (seconds < 1) return seconds > 0 ? `${Math.max(Math.round(seconds * 10) / 10, 0.1)} s` : "0 s";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

export const ago = (seconds) => (seconds < 1 ? "now" : `${time(seconds)} ago`);

export function short(number) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (number >= size) return `${(number / size).toPrecision(3).replace(/\.?0+$/, "")}${unit}`;
  }
  return String(Math.round(number));
}

export const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–");

/** A new element; `more` are attributes, `children` are elements or texts. */
export function make(tag, more = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(more)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Set a text, if it is another one. */
export function say(element, text) {
  const wanted = text ?? "";
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** A number and its unit stay on one line. */
export const unbroken = (text) => (text ?? "").replace(/(\d) (?=(?:%|s|min|h|KV|tokens?|blocks)(?![\w-]))/g, "$1\u00a0");

/** `say` for a text with numbers. */
export const tell = (element, text) => say(element, unbroken(text));

export function mark(element, name, value) {
  if (value === null || value === undefined) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/**
 * Let the children of `parent` be those of `items`, each kept as long as its key is there. The order stays while the
 * keyboard is in there, for a row that moves would lose it.
 */
export function keep(parent, items, keyOf, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const key = keyOf(item);
    const child = known.get(key) ?? create(item);
    child.dataset.key = key;
    known.delete(key);
    update(child, item);
    return child;
  });
  for (const gone of known.values()) gone.remove();
  const still = parent.contains(document.activeElement);
  wanted.forEach((child, at) => {
    if (child.parentNode !== parent) parent.insertBefore(child, parent.children[at] ?? null);
    else if (!still && parent.children[at] !== child) parent.insertBefore(child, parent.children[at]);
  });
}

const PARTS = { guaranteed: "reserved", expected: "reserved", at_risk: "set aside for longer answers" };
const FOUND_BY = { api_key: "by their keys", header: "by a header", jwt: "by a token", anonymous: "all requests are one tenant's" };
const FINE = new Set(["up"]);
const BAD = new Set(["down", "error", "stalled", "unknown"]);

export function showHeadline(headline) {
  const box = byId("headline");
  if (box.dataset.level !== headline.level || !byId("announce").textContent) say(byId("announce"), headline.text);
  mark(box, "data-level", headline.level);
  tell(byId("headline-text"), headline.text);
  tell(byId("headline-help"), headline.help);
  keep(byId("headline-notes"), headline.notes, (note) => note, () => make("li"), tell);
  const sign = { ok: "", note: "", wait: "● ", stop: "■ " }[headline.level] ?? "";
  document.title = `${sign}kvgate: ${headline.text}`;
}

export function showBanners(snapshot, pool) {
  const said = [];
  if (snapshot.draining) said.push(["stop", "This kvgate is shutting down: it takes no new work, and what runs is finished."]);
  if (snapshot.policy.refused) said.push(["stop", `The policy file on the disk is refused, the last good one is in force: ${snapshot.policy.refused}`]);
  if (snapshot.silent.length) said.push(["stop", `No answer from ${snapshot.silent.join(", ")}: being replaced, or stuck.`]);
  for (const [name, word, what] of [
    ["observed", "observe", "decided and counted, and nothing is held back or refused"],
    ["off", "off", "everything is forwarded at once"],
  ]) {
    const who = pool[name] === pool.enforced + pool.observed + pool.off ? "" : ` for ${count(pool[name])} of the tenants`;
    if (pool[name]) said.push(["note", `Mode ${word}${who}: ${what}.`]);
  }
  byId("banners").hidden = !said.length;
  keep(byId("banners"), said, ([, text]) => text, () => make("li"), (item, [level, text]) => {
    mark(item, "data-level", level);
    say(item, text);
  });
}

/** `act(engine)` is called for the button of an engine; without it there is none. */
export function showEngines(pool, act) {
  const kinds = [...new Set(pool.engines.flatMap((engine) => engine.parts.map((part) => part.kind)))];
  const legend = [...kinds.map((kind) => [kind, PARTS[kind] ?? kind]), ["in-use", "in use, by the engine's gauge"], ["taken", "sequence slots"]];
  keep(byId("legend"), legend, ([kind]) => kind, ([kind]) => make("span", {}, make("i", { class: `swatch ${kind}` }), make("b")), (item, [, text]) => say(item.lastChild, text));
  keep(byId("engines"), pool.engines, (engine) => engine.id, makeEngine, (item, engine) => updateEngine(item, engine, act));
  say(byId("engines-more"), pool.engines_more ? `and ${count(pool.engines_more)} more` : pool.engines.length ? "" : "None is known yet.");
}

function makeEngine(engine) {
  const button = make("button", { type: "button" });
  const item = make("li", { class: "engine" },
    make("div", { class: "engine-side" }, make("span", { class: "engine-name" }),
      make("span", { class: "chip state" })),
    make("div", { class: "bars" }, make("div", { class: "bar", role: "img" }), make("div", { class: "bar slots", role: "img" }, make("div", { class: "taken" }))),
    make("div", { class: "engine-act" }, button),
    make("p", { class: "engine-facts" }),
    make("p", { class: "engine-why" }));
  item.engine = engine;
  button.addEventListener("click", () => item.act?.(item.engine));
  return item;
}

/** kvgate was told to send it nothing. */
export const isTakenOut = (engine) => engine.state === "draining" || engine.state === "drained";

function updateEngine(item, engine, act) {
  item.engine = engine;
  item.act = act;
  const name = engine.id.replace(/^[a-z]+:\/\//, "");
  const drains = isTakenOut(engine);
  say(item.querySelector(".engine-name"), name);
  const chip = item.querySelector(".chip");
  say(chip, engine.accepting ? (engine.state === "up" ? "accepting" : engine.state) : engine.state === "up" ? "waits for the ledger" : engine.state);
  mark(chip, "data-level", engine.accepting && FINE.has(engine.state) ? "ok" : BAD.has(engine.state) ? "stop" : "wait");
  const button = item.querySelector("button");
  button.hidden = !act;
  say(button, drains ? "Undrain" : "Drain");
  mark(button, "aria-label", `${drains ? "Undrain" : "Drain"} ${name}`);
  drawBar(item.querySelector(".bar"), engine);
  drawSlots(item.querySelector(".slots"), engine);
  facts(item.querySelector(".engine-facts"), engineFacts(engine));
  say(item.querySelector(".engine-why"), engine.accepting && engine.state === "up" ? "" : engine.why);
}

function engineFacts(engine) {
  const sum = (parts) => parts.reduce((blocks, part) => blocks + part.blocks, 0);
  const reserved = sum(engine.parts.filter((part) => part.kind !== "at_risk"));
  const aside = sum(engine.parts) - reserved;
  if (!engine.blocks) return ["its size is not known"];
  const told = [`${count(reserved)} of ${count(engine.blocks)} blocks reserved (${percent(reserved, engine.blocks)})`];
  if (aside) told.push(`${count(aside)} ${PARTS.at_risk}`);
  if (engine.blocks_share !== null) told.push(`at most ${count(engine.blocks_share)} for each process`);
  if (engine.blocks_in_use !== null) told.push(`${count(engine.blocks_in_use)} in use (${percent(engine.blocks_in_use, engine.blocks)})`);
  told.push(`${count(engine.seqs_reserved)} of ${count(engine.seqs)} slots`);
  if (engine.kept_for !== null) told.push(`kept free for ${engine.kept_for.replace(/^(.{8}).{4,}(-\d+)$/, "$1…$2")}`);
  if (engine.blocks_open < engine.blocks) told.push(`${percent(engine.blocks_open, engine.blocks)} open`);
  if (engine.trust !== null && engine.trust < 1) told.push(`trust ${engine.trust}`);
  if (engine.foreign) told.push(`${count(engine.waiting)} in its own queue`);
  if (engine.preemptions) told.push(`${count(engine.preemptions)} preemptions`);
  if (engine.probe_age_s > 10) told.push(`last looked at ${time(engine.probe_age_s)} ago`);
  return told;
}

function facts(element, texts) {
  keep(element, texts.map((text, at) => ({ text, key: String(at) })), (one) => one.key, () => make("span"), (item, one) => tell(item, one.text));
}

function drawBar(bar, engine) {
  const whole = Math.max(engine.blocks, 1);
  let at = 0;
  const pieces = engine.parts.map((part) => {
    const piece = { kind: part.kind, from: at, to: at + part.blocks };
    at += part.blocks;
    return piece;
  });
  if (engine.blocks_open < engine.blocks) pieces.push({ kind: "closed", from: engine.blocks_open, to: engine.blocks });
  if (engine.blocks_in_use !== null) pieces.push({ kind: "in-use", from: 0, to: engine.blocks_in_use });
  keep(bar, pieces, (piece) => piece.kind, (piece) => make("div", { class: piece.kind }), (element, piece) => {
    place(element, piece.from / whole, piece.to / whole);
  });
  const parts = engine.parts.map((part) => `${percent(part.blocks, whole)} ${PARTS[part.kind] ?? part.kind}`);
  if (engine.blocks_in_use !== null) parts.push(`${percent(engine.blocks_in_use, whole)} in use`);
  mark(bar, "aria-label", `KV cache: ${parts.join(", ")}`);
}

function drawSlots(bar, engine) {
  place(bar.firstChild, 0, engine.seqs_reserved / Math.max(engine.seqs, 1));
  mark(bar, "aria-label", `Sequence slots: ${count(engine.seqs_reserved)} of ${count(engine.seqs)} taken`);
}

export function place(element, from, to) {
  const bounded = (share) => Math.min(Math.max(share, 0), 1) * 100;
  element.style.left = `${bounded(from)}%`;
  element.style.width = `${bounded(to) - bounded(from)}%`;
}

export function showRejections(rejections, pool, single) {
  const shown = rejections.filter((one) => single || one.pool === null || one.pool === pool.name || one.pool === "none").sort(recent);
  byId("rejections").hidden = !shown.length;
  byId("rejections-none").hidden = shown.length > 0;
  keep(byId("rejections-body"), shown, (one) => JSON.stringify([one.pool, one.tenant, one.reason, one.status]), makeRejection, (row, one) => {
    const [age, tenant, reason, times, told] = row.children;
    tell(age, ago(one.age_s));
    say(tenant, one.tenant);
    say(reason, one.status === null ? one.reason : `${one.status} ${one.reason}`);
    say(times, count(one.count));
    say(told, one.told);
  });
}

/** The last ones first; those of the last ten seconds stay in place, for they would change places with every look. */
function recent(one, other) {
  const fresh = (rejection) => (rejection.age_s < 10 ? 0 : rejection.age_s);
  return fresh(one) - fresh(other) || one.tenant.localeCompare(other.tenant) || one.reason.localeCompare(other.reason);
}

function makeRejection() {
  return make("tr", {}, 
    make("td", { class: "tight", "data-name": "Last" }),
    make("td", { class: "name wide", "data-name": "Tenant" }),
    make("td", { class: "tight wide", "data-name": "Reason" }),
    make("td", { class: "number wide", "data-name": "How often, since start" }),
    make("td", { class: "wide", "data-name": "Told" }));
}

export function showPolicy(snapshot, pool) {
  const policy = snapshot.policy;
  const told = [
    ["File", policy.path ?? "none: options and environment"],
    ["Digest", policy.digest ?? "–"],
    ["In force since", policy.taken_at.replace("T", " ").replace("+00:00", " UTC")],
    ["Tenants", `${count(policy.tenants)}, ${FOUND_BY[policy.identity] ?? policy.identity}`],
    ["Mode", mode(pool)],
    ["Ledger", ledger(pool, policy)],
    ["Models of this pool", [...pool.aliases, ...pool.models].join(", ") || "–"],
    ["Version", snapshot.version],
  ];
  keep(byId("policy"), told, ([name]) => name, () => make("div", {}, make("dt"), make("dd")), (item, [name, text]) => {
    say(item.firstChild, name);
    say(item.lastChild, text);
  });
}

function ledger(pool, policy) {
  if (pool.ledger_mode === "memory") return "memory of this process";
  return `${pool.ledger_mode}, ${count(pool.processes)} ${pool.processes === 1 ? "process" : "processes"}; without it ${policy.ledger_on_failure}`;
}

function mode(pool) {
  const modes = [["enforce", pool.enforced], ["observe", pool.observed], ["off", pool.off]].filter(([, tenants]) => tenants);
  return modes.length === 1 ? modes[0][0] : modes.map(([name, tenants]) => `${name} for ${count(tenants)}`).join(", ");
}
