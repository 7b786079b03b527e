// What a person can do: log in and out, drain an engine, change a tenant for a while.

import { byId, make, say } from "./view.js";

/** Ask the admin port. Gives the answer's JSON; throws an Error with what the server said. */
export async function ask(method, path, body) {
  const asked = { method, headers: { "x-kvgate-console": "1" }, credentials: "same-origin" };
  if (body !== undefined) {
    asked.headers["content-type"] = "application/json";
    asked.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, asked);
  } catch {
    throw new Error("kvgate does not answer.");
  }
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(told.detail ?? `HTTP ${answer.status}`), { status: answer.status });
  return told;
}

export function setUp({ loggedIn, failed }) {
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
  byId("log-in").addEventListener("click", logIn);
  byId("log-out").addEventListener("click", async () => {
    try {
      await ask("DELETE", "session");
    } catch (error) {
      failed(error.message);
    }
    loggedIn();
  });
  onSubmit("login", async () => {
    const field = byId("token");
    await ask("POST", "session", { token: field.value });
    field.value = "";
    loggedIn();
  });
}

export function logIn() {
  if (!byId("login-dialog").open) open("login");
}

/** Do `work` when the form of a dialog is sent; it closes once that is done, and shows what went wrong. */
function onSubmit(name, work) {
  const form = byId(`${name}-form`);
  const button = form.querySelector("[type=submit]");
  form.onsubmit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    say(byId(`${name}-error`), "");
    try {
      await work();
      byId(`${name}-dialog`).close();
    } catch (error) {
      say(byId(`${name}-error`), error.message);
    } finally {
      button.disabled = false;
    }
  };
}

function open(name) {
  say(byId(`${name}-error`), "");
  byId(`${name}-dialog`).showModal();
}

export function drain(engine, pool) {
  const others = pool.engines.filter((one) => one.accepting && one.id !== engine.id).length + pool.engines_more;
  const isLast = engine.accepting && !others;
  say(byId("drain-title"), `Drain ${engine.id}?`);
  say(byId("drain-last"), isLast ? "It is the last engine that accepts work: without it nothing starts in this pool, and requests wait or are refused." : "");
  say(byId("drain-do"), isLast ? "Drain the last one" : "Drain");
  onSubmit("drain", () => ask("POST", "admin/engines/drain", { engine_id: engine.id, pool: pool.name }));
  open("drain");
}

export const undrain = (engine, pool) => ask("POST", "admin/engines/undrain", { engine_id: engine.id, pool: pool.name });

export function change(tenant, pool, several) {
  say(byId("change-title"), `Change ${tenant.name} for a while`);
  byId("change-weight").value = "";
  byId("change-weight").placeholder = String(tenant.weight);
  byId("change-limit").value = "";
  const where = byId("change-pool");
  where.replaceChildren(make("option", { value: "" }, "all pools"), ...(several ? [make("option", { value: pool.name }, `only ${pool.name}`)] : []));
  onSubmit("change", async () => {
    const wanted = { weight: byId("change-weight").value.trim(), limit: byId("change-limit").value.trim() };
    const fields = Object.fromEntries(Object.entries(wanted).filter(([, value]) => value));
    if (!Object.keys(fields).length) throw new Error("Say a weight, a limit, or both.");
    await ask("PATCH", `admin/tenants/${encodeURIComponent(tenant.name)}`, {
      ...fields, for: byId("change-for").value, ...(where.value ? { pool: where.value } : {}),
    });
  });
  open("change");
}

export async function endChange(one) {
  const where = one.pool === null ? "" : `?pool=${encodeURIComponent(one.pool)}`;
  await ask("DELETE", `admin/tenants/${encodeURIComponent(one.tenant)}${where}`);
}
