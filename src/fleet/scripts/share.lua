-- Sharing among hosts: what each reported, in this generation and the one before, and what is due to one of them.
local DEMAND_MAX = 10000000000000
local HOSTS_MAX = 1000000000

-- A host's report takes the place of the one before, if that still counts (a `last_gen` of -1 never does).
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

-- Which part of `pot` falls to one of those who want: in proportion to demand. Both demands are made small enough for the
-- product; it is a matter of fairness alone.
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

-- Whole tokens of a level for one who wants, and to whom `share` is due where they are scarce. What is not whole is rounded
-- at random, so that small shares are fair in the mean.
local function granted(level, share, all, want, dice)
  if want <= 0 or level < TOKEN then return 0 end
  local most = min(level - level % TOKEN, ceil(want / TOKEN) * TOKEN)
  -- Where twice of what all use until the next sync stays behind, nobody needs to share. T is 100 ms, demand in mtok/s.
  if level >= want + 200 * all then return most end
  share = min(want, level, share)
  local rest = share % TOKEN
  if dice < rest then share = share + TOKEN end
  return min(share - rest, most)
end
