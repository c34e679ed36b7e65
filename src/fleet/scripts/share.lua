-- Shares of hosts: the reports in this generation and the previous one, and the share of a host.
local DEMAND_MAX = 10000000000000
local HOSTS_MAX = 1000000000

-- Adds the report of a host, and removes its previous one if that still counts (one with a `last_gen` of -1 does not).
local function reported(gen, held, held0, demand, demand0, hosts, hosts0,
    last_hold, last_demand, last_gen, hold, ask_demand)
  if last_gen >= 0 then
    if last_gen == gen then
      held, demand, hosts = max(held - last_hold, 0), max(demand - last_demand, 0), max(hosts - 1, 0)
    elseif last_gen == gen - 1 then
      held0, demand0, hosts0 = max(held0 - last_hold, 0), max(demand0 - last_demand, 0), max(hosts0 - 1, 0)
    end
  end
  return min(held + hold, AMOUNT_MAX), held0, min(demand + ask_demand, DEMAND_MAX), demand0,
    min(hosts + 1, HOSTS_MAX), hosts0
end

-- Returns the share of a host in `pot`, in proportion to its demand. Demands are scaled so that the product stays exact; the
-- scaling affects only fairness.
local function portion(pot, demand, all)
  if demand <= 0 or pot <= 0 then return 0 end
  local scale = ceil(all / 67108864)
  if scale > 1 then
    all = ceil(all / scale)
    demand = min(max(floor(demand / scale), 1), all)
  end
  local part = pot % all
  return (pot - part) / all * demand + floor(part * demand / all)
end

-- Returns the whole tokens granted to a host that wants `want`: at most `share` if tokens are scarce. A fraction is rounded at
-- random, so that small shares are fair on average.
local function granted(level, share, all, want, dice)
  if want <= 0 or level < TOKEN then return 0 end
  local most = min(level - level % TOKEN, ceil(want / TOKEN) * TOKEN)
  -- Tokens are plentiful if twice the use of all hosts until the next sync remains. The interval is 100 ms, demand in mtok/s.
  if level >= want + 200 * all then return most end
  share = min(want, level, share)
  local rest = share % TOKEN
  if dice < rest then share = share + TOKEN end
  return min(share - rest, most)
end
