-- Budgets per minute: GCRA, in the same numbers as `kvgate_policies.budgets`. The state of one is the time (ms) when
-- it would be full again, 0 for one that is.

local spent, spend, correct_tokens

(function() -- the rest is its own (README)

local MINUTE_MS = 60000 -- a minute's worth may be spent at once

local function spell(amount, per_minute)
  return amount * MINUTE_MS / per_minute
end

local function covered_at(tat, amount, per_minute)
  return per_minute and min(tat, tat + spell(amount, per_minute) - MINUTE_MS) or -math.huge
end

-- Which budget does not cover a request now, and in how many ms both will; nil when both do.
function spent(tenant, tokens)
  local by_tokens = covered_at(tenant.tokens_tat, tokens, tenant.tokens_rate)
  local by_requests = covered_at(tenant.requests_tat, 1, tenant.requests_rate)
  if max(by_tokens, by_requests) <= now then
    return nil
  end
  local covered_in = math.ceil(max(by_tokens, by_requests) - now) -- ms, the resolution of `now`
  return by_tokens >= by_requests and 'tokens_per_minute' or 'requests_per_minute', covered_in
end

function spend(tenant, tokens)
  if tenant.tokens_rate then
    tenant.tokens_tat = max(tenant.tokens_tat, now) + spell(tokens, tenant.tokens_rate)
  end
  if tenant.requests_rate then
    tenant.requests_tat = max(tenant.requests_tat, now) + spell(1, tenant.requests_rate)
  end
  changed_tenant(tenant)
end

-- It took more than it was charged (negative: less, or nothing).
function correct_tokens(tenant, difference)
  if tenant.tokens_rate then
    tenant.tokens_tat = tenant.tokens_tat + spell(difference, tenant.tokens_rate)
    changed_tenant(tenant)
  end
end

end)()
