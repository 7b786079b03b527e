// The table of tenants: sorted, searched, at most `ROWS_MAX` rows of it in the page.

import { ask } from "./actions.js";
import { byId, count, keep, make, mark, percent, place, say, short, tell, time } from "./view.js";

const ROWS_MAX = 50;
const LOOK_UP_MS = 250; // after the last key
const WHOLE = "Of the KV cache of all known engines of the pool, whether they accept work or not: guarantee and limit are shares of the same";
const COLUMNS = [
  { key: "name", title: "Tenant", text: true },
  { key: "queued", title: "Waiting", number: true, hint: "Its requests that wait, and what the next one waits for" },
  { key: "oldest_wait_s", title: "Longest wait", number: true, hint: "Of its requests that wait now" },
  { key: "blocks", title: "Share of all KV cache", hint: WHOLE },
  { key: "weight", title: "Weight", number: true, hint: "Of tenants of a class that wait, each gets service in proportion to its weight" },
  { key: "priority", title: "Class", text: true, hint: "interactive is served before standard, standard before batch; a class that was passed over often enough comes first once" },
  { key: "service", title: "Service, tokens", number: true, hint: "Charged since the ledger began" },
];

const STEADY_MS = 5000; // for so long rows keep their places, so that those who read or click are not a row off

let sortedAt = -Infinity; // by performance.now()
let places = new Map(); // of the rows, by name
let sortedPool = ""; // whose rows they are
let sorted = { key: "oldest_wait_s", down: true };
let again = () => {};
let idle = []; // found in the policy by the beginning of their names, in all pools
let lookingUp = 0;

/** `redraw` is called when the person at the screen sorts or searches. */
export function setUp(redraw) {
  again = redraw;
  const head = byId("tenants-head");
  for (const column of COLUMNS) {
    const button = make("button", { type: "button", ...(column.hint ? { title: column.hint } : {}) }, column.title);
    const cell = make("th", { scope: "col", class: column.number ? "number" : "" }, button);
    cell.dataset.key = column.key;
    button.addEventListener("click", () => sortBy(column));
    head.append(cell);
  }
  head.append(make("th", { scope: "col", class: "plain" }, make("span", { class: "unseen" }, "Change")));
  byId("find").addEventListener("input", () => {
    again();
    clearTimeout(lookingUp);
    lookingUp = setTimeout(lookUp, LOOK_UP_MS);
  });
}

/** Those who neither wait nor hold anything are not in a snapshot where they are many. */
async function lookUp() {
  const start = byId("find").value.trim();
  idle = [];
  if (start) {
    const before = start.slice(0, -1) + String.fromCharCode(start.charCodeAt(start.length - 1) - 1) + "\u007f";
    const told = await ask("GET", `admin/tenants?limit=200&after=${encodeURIComponent(before)}`).catch(() => ({ tenants: [] }));
    idle = told.tenants.filter((tenant) => tenant.name.startsWith(start));
  }
  again();
}

function idleIn(pool) {
  const known = new Set(pool.tenants.map((tenant) => tenant.name));
  return idle.filter((tenant) => !known.has(tenant.name)).flatMap((tenant) => {
    const use = tenant.pools.find((one) => one.pool === pool.name);
    return use ? [{ ...use, name: tenant.name, priority: use.class, borrow: true, waits_for: null }] : [];
  });
}

function sortBy(column) {
  sortedAt = -Infinity;
  const down = sorted.key === column.key ? !sorted.down : !column.text;
  sorted = { key: column.key, down };
  again();
}

function compare(one, other) {
  const [a, b] = [one[sorted.key], other[sorted.key]];
  const order = typeof a === "string" ? a.localeCompare(b) : a - b;
  return (sorted.down ? -order : order) || other.queued - one.queued || one.name.localeCompare(other.name);
}

/** Sorted anew now and then, and at once for whoever asks for it; between, new rows come last. */
function inOrder(tenants, pool) {
  const steady = sortedPool === pool.name && performance.now() - sortedAt < STEADY_MS;
  const place = (tenant) => places.get(tenant.name) ?? Infinity;
  const order = steady ? (one, other) => (place(one) === place(other) ? compare(one, other) : place(one) - place(other)) : compare;
  const found = [...tenants].sort(order);
  if (!steady) {
    places = new Map(found.map((tenant, at) => [tenant.name, at]));
    sortedAt = performance.now();
    sortedPool = pool.name;
  }
  return found;
}

/** `act` has what to do for a tenant (`change`, `end`); without it nothing can be changed. */
export function showTenants(pool, changes, act) {
  for (const cell of byId("tenants-head").children) {
    mark(cell, "aria-sort", cell.dataset.key === sorted.key ? (sorted.down ? "descending" : "ascending") : null);
  }
  const wanted = byId("find").value.trim().toLowerCase();
  const known = wanted && pool.tenants_more ? [...pool.tenants, ...idleIn(pool)] : pool.tenants;
  const found = inOrder(known, pool).filter((tenant) => tenant.name.toLowerCase().includes(wanted));
  const shown = found.slice(0, ROWS_MAX);
  keep(byId("tenants-body"), shown, (tenant) => tenant.name, makeRow, (row, tenant) => {
    row.act = act;
    row.tenant = tenant;
    update(row, tenant, pool, changes.filter((one) => one.tenant === tenant.name && (one.pool === null || one.pool === pool.name)));
  });
  say(byId("tenants-more"), more(found.length - shown.length, shown.length, wanted ? 0 : pool.tenants_more));
}

function more(hidden, shown, idle) {
  if (!shown) return "No tenant of that name waits or holds anything here.";
  const told = [hidden ? `and ${count(hidden)} more` : "", idle ? `${count(idle)} more in the policy, idle` : ""];
  return told.filter(Boolean).join("; ");
}

function makeRow() {
  const change = make("button", { type: "button" }, "Change");
  const bar = make("div", { class: "bar", role: "img" }, make("div", { class: "guaranteed" }), make("div", { class: "tick guarantee" }), make("div", { class: "tick limit" }));
  const row = make("tr", {},
    make("th", { scope: "row" }, make("span"), make("div", { class: "changes" })),
    make("td", { class: "number wait", "data-name": "Waiting" }, make("span"), make("div", {}, make("small"))),
    make("td", { class: "number", "data-name": "Longest wait" }, make("span")),
    make("td", { class: "wide" }, make("div", { class: "share" }, bar, make("small"))),
    make("td", { class: "number", "data-name": "Weight" }, make("span")),
    make("td", { class: "word", "data-name": "Class" }, make("span")),
    make("td", { class: "number", "data-name": "Service, tokens" }, make("span")),
    make("td", { class: "number act" }, change));
  change.addEventListener("click", () => row.act?.change(row.tenant));
  return row;
}

function update(row, tenant, pool, changes) {
  const [name, queued, oldest, share, weight, priority, service, change] = row.children;
  row.classList.toggle("waits", tenant.queued > 0);
  say(name.firstChild, tenant.name);
  keep(name.lastChild, changes, (one) => String(one.pool), makeChange, (item, one) => {
    const where = one.pool === null ? "" : " in this pool";
    tell(item.firstChild, `${Object.entries(one.fields).map(([field, value]) => `${field} ${value}`).join(", ")}${where}, ${time(one.left_s)} left`);
    item.lastChild.hidden = !row.act;
    mark(item.lastChild, "aria-label", `End the change of ${tenant.name}`);
    item.end = () => row.act?.end(one);
  });
  say(queued.firstChild, count(tenant.queued));
  say(queued.lastChild.firstChild, waitsFor(tenant));
  tell(oldest.firstChild, tenant.queued ? time(tenant.oldest_wait_s) : "–");
  drawShare(share.firstChild, tenant, pool);
  say(weight.firstChild, String(tenant.weight));
  say(priority.firstChild, tenant.mode === "enforce" ? tenant.priority : `${tenant.priority}, ${tenant.mode}`);
  say(service.firstChild, short(tenant.service));
  change.firstChild.hidden = !row.act;
  mark(change.firstChild, "aria-label", `Change ${tenant.name}`);
}

function waitsFor(tenant) {
  if (!tenant.waits_for) return "";
  return tenant.after?.length ? `for ${tenant.waits_for}, after ${tenant.after.join(" and ")}` : `for ${tenant.waits_for}`;
}

function makeChange() {
  const end = make("button", { type: "button" }, "End");
  const item = make("div", { class: "changed" }, make("span", { class: "chip" }), end);
  end.addEventListener("click", () => item.end?.());
  return item;
}

function drawShare(box, tenant, pool) {
  const [bar, text] = box.children;
  const whole = Math.max(pool.blocks, 1);
  const bounded = tenant.limit < 1 || tenant.limit_tokens !== null;
  place(bar.children[0], 0, tenant.blocks / whole);
  tick(bar.children[1], tenant.guarantee > 0, tenant.blocks_guaranteed / whole);
  tick(bar.children[2], bounded, tenant.blocks_limit / whole);
  const told = [percent(tenant.blocks, pool.blocks)];
  if (tenant.guarantee > 0) told.push(`guarantee ${percent(tenant.guarantee, 1)}`);
  if (bounded) told.push(tenant.limit_tokens === null ? `limit ${percent(tenant.limit, 1)}` : `limit ${short(tenant.limit_tokens)} tokens`);
  if (!tenant.borrow) told.push("never more than its guarantee");
  if (tenant.below_guarantee) told.push("below its guarantee, first in turn");
  box.classList.toggle("below", Boolean(tenant.below_guarantee));
  mark(bar, "aria-label", told.join(", "));
  mark(box, "title", inBlocks(tenant, pool, bounded));
  tell(text, told.join(" · "));
}

function inBlocks(tenant, pool, bounded) {
  const told = [`${count(tenant.blocks)} of ${count(pool.blocks)} KV blocks of all engines`];
  if (tenant.guarantee > 0) told.push(`guarantee ${count(tenant.blocks_guaranteed)}`);
  if (bounded) told.push(`limit ${count(tenant.blocks_limit)}`);
  return told.join(", ");
}

function tick(element, there, at) {
  element.hidden = !there;
  element.style.left = `calc(${Math.min(at, 1) * 100}% - 2px)`;
}
