// The page's life: who may look, the stream of snapshots, which pool is shown, and how old what is shown is.

import * as actions from "./actions.js";
import { showTenants, setUp as setUpTenants } from "./tenants.js";
import { byId, count, isTakenOut, keep, make, mark, say, showBanners, showEngines, showHeadline, showPolicy, showRejections, time } from "./view.js";

const STALE_S = 4; // three snapshots have not come
const RETRY_MS = 3000;
const THEMES = ["auto", "light", "dark"];

let session = { needs_login: false, may_look: false, may_change: false };
let source = null;
let last = null; // the last snapshot
let lastAt = 0; // when it came, by performance.now()
let retry = 0;

function chosen() {
  let wanted = location.hash.replace(/^#pool=/, "");
  try {
    wanted = decodeURIComponent(wanted);
  } catch { /* typed by somebody: no pool's */ }
  return last.pools.find((pool) => pool.name === wanted) ?? last.pools[0];
}

function draw() {
  if (!last) return;
  const pool = chosen();
  const several = last.pools.length > 1;
  byId("content").hidden = false;
  showPools(pool);
  showBanners(last, pool);
  showHeadline(pool.headline);
  showEngines(pool, session.may_change ? (engine) => drain(engine, chosen()) : null);
  showTenants(pool, last.changes, session.may_change ? tenantActions(several) : null);
  showRejections(last.rejections, pool, !several);
  showPolicy(last, pool);
}

/** Back to work at once; out of it only by a second word. */
function drain(engine, pool) {
  if (isTakenOut(engine)) actions.undrain(engine, pool).then(() => fail(""), (error) => fail(error.message));
  else actions.drain(engine, pool);
}

function tenantActions(several) {
  return {
    change: (tenant) => actions.change(tenant, chosen(), several),
    end: (one) => actions.endChange(one).catch((error) => fail(error.message)),
  };
}

function showPools(pool) {
  const nav = byId("pools");
  nav.hidden = last.pools.length < 2;
  keep(nav, last.pools, (one) => one.name, makePool, (button, one) => {
    mark(button, "aria-pressed", one.name === pool.name);
    say(button.firstChild, one.name);
    say(button.lastChild, one.queued ? ` (${count(one.queued)})` : "");
  });
}

function makePool(pool) {
  const button = make("button", { type: "button" }, make("bdi"), make("span"));
  button.addEventListener("click", () => {
    location.hash = `pool=${encodeURIComponent(pool.name)}`;
  });
  return button;
}

function fail(text) {
  byId("alert").hidden = !text;
  say(byId("alert"), text);
}

// The stream

function listen() {
  clearTimeout(retry);
  source?.close();
  source = new EventSource("events");
  source.addEventListener("snapshot", (event) => show(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) {
      retry = setTimeout(begin, RETRY_MS);
      actions.ask("GET", "snapshot").then(show, () => {}); // as many look as may: this one now and then, until one leaves
    }
    showAge();
  });
}

function show(snapshot) {
  last = snapshot;
  lastAt = performance.now();
  draw();
  showAge();
}

function showAge() {
  const age = last ? (performance.now() - lastAt) / 1000 : 0;
  const lost = last !== null && age > STALE_S;
  const open = source?.readyState === EventSource.OPEN;
  const state = !session.may_look ? "out" : last === null ? "wait" : lost ? "lost" : "live";
  const words = { out: "not logged in", wait: "connecting", live: "page live", lost: `${open ? "no news" : "connection lost"}, data is ${time(age)} old` };
  mark(byId("link"), "data-state", state);
  say(byId("link-text"), words[state]);
  const told = last === null ? null : `data of ${time(Math.floor(age))} ago`;
  mark(byId("link"), "title", told);
  say(byId("link-age"), told === null ? "" : `, ${told}`);
  document.body.classList.toggle("stale", lost);
}

// Who may look

async function begin() {
  try {
    session = await actions.ask("GET", "session");
  } catch {
    retry = setTimeout(begin, RETRY_MS);
    return;
  }
  byId("log-in").hidden = !session.needs_login || session.may_look;
  byId("log-out").hidden = !session.needs_login || !session.may_look;
  if (session.may_look) {
    listen();
  } else {
    source?.close();
    last = null;
    byId("content").hidden = true;
    actions.logIn();
  }
  showAge();
  draw();
}

// The theme

function theme() {
  let name = THEMES[0];
  try {
    name = localStorage.getItem("kvgate-theme") ?? name;
  } catch { /* no storage: as the system has it */ }
  return THEMES.includes(name) ? name : THEMES[0];
}

function showTheme(name) {
  mark(document.documentElement, "data-theme", name === "auto" ? null : name);
  say(byId("theme"), `Theme: ${name}`);
}

byId("theme").addEventListener("click", () => {
  const name = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  try {
    localStorage.setItem("kvgate-theme", name);
  } catch { /* it holds for this page then */ }
  showTheme(name);
});

showTheme(theme());
setUpTenants(draw);
actions.setUp({ loggedIn: begin, failed: fail });
window.addEventListener("hashchange", draw);
setInterval(showAge, 500);
begin();
