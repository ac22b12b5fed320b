-- Staging pools for jobs with #BB_LUA lines (docs/POOL_SLURM.md): what Slurm's plugin burst_buffer/lua calls in the course of a job.
--
-- It lies beside slurm.conf. slurmctld itself calls job_process, pools and paths, and holds locks meanwhile: they read small files and
-- nothing else. All others run in processes of their own, and have surgetank-slurm do the work. Each answers slurm.SUCCESS, or slurm.ERROR
-- and one sentence, which Slurm shows to the job. Written for Lua 5.1, which Debian's Slurm has, and all later ones.

local HELPER = os.getenv("SURGETANK_SLURM") or "/usr/local/sbin/surgetank-slurm"
local CONFIGURATION = os.getenv("SURGETANK_SLURM_CONFIGURATION") or "/etc/surgetank/pool-slurm.conf"

local MIB = 1024 * 1024
local POWERS = { K = 1, M = 2, G = 3, T = 4, P = 5 }
local EXAMPLE = "#BB_LUA pool=scratch capacity=100GiB target=/scratch/run1"

-- A size in bytes; nil: it is none. Slurm reads the same units: GiB is 1024 MiB, and GB 1000 MB. It counts bytes in 64 bits.
local function size_of(text)
    local number, unit, base = text:match("^(%d+)([KMGTP])(i?)B$")
    local bytes = number and number * (base == "i" and 1024 or 1000) ^ POWERS[unit]
    if not bytes or bytes == 0 or bytes >= 2 ^ 62 then return nil end
    return bytes
end

local function path(value)
    if not value:match("^/") then return nil, "write a full path" end
    return (value:gsub("(.)/$", "%1"))
end

-- What the lines of the configuration may have; nil and what to write: one has a fault. surgetank-slurm reads the same.
local values = {
    pool = function(value, found)
        local name, size, where = value:match("^([%w_-]+)%s+(%S+)%s+(%S+)$")
        local bytes = size and size_of(size)
        if not bytes or where ~= "here" and not where:match("^pool://.") then
            return nil, "write a name, a size and where it is, for example pool=scratch 3TiB pool://node1"
        end
        if found.pools[name] then return nil, "this name is there twice: write it once" end
        found.pools[name] = true
        table.insert(found.pools, { name = name, bytes = bytes })
        return value
    end,
    jobs = path, mounts = path, directory = path, certificates = path,
    standstill = function(value)
        local number, unit = value:match("^(%d+) ?(%l+)$")
        if number and #number <= 6 and ({ s = 1, min = 1, h = 1, d = 1 })[unit] then return value end
        return nil, "write a time, for example standstill=1 h"
    end,
}

-- What the configuration has, with a sentence for each faulty line, which counts as if it were not there; nil and a sentence: it cannot be read.
local function configuration()
    local file, why = io.open(CONFIGURATION)
    if not file then return nil, why .. ": write one, as docs/POOL_SLURM.md says" end
    local found, number = { pools = {}, faults = {}, mounts = "/mnt/surgetank" }, 0
    for line in file:lines() do
        number = number + 1
        local key, value = line:match("^%s*(%l+)%s*=%s*(.-)%s*$")
        local fault
        if line:match("^%s*#") or not line:match("%S") then
            key = nil
        elseif not key or value == "" then
            fault = line .. ": write KEY=VALUE"
        elseif not values[key] then
            fault = key .. " is not known: write pool, jobs, mounts, directory, certificates or standstill"
        else
            local read, what = values[key](value, found)
            if not read then fault = ("%s=%s: %s"):format(key, value, what) end
            if key ~= "pool" then found[key] = read end
        end
        if fault then table.insert(found.faults, ("%s:%d: %s"):format(CONFIGURATION, number, fault)) end
    end
    file:close()
    return found
end

-- The #BB_LUA lines of a script, as Slurm finds them: among the comments at its beginning, a \ at a line's end joins the next one.
local function directives(script)
    local file, why = io.open(script)
    if not file then return nil, why end
    local found, is_continued = {}, false
    for line in file:lines() do
        local text = line:match("^#BB_LUA(.*)$")
        if line ~= "" and line:sub(1, 1) ~= "#" then break end
        if text then
            local more = text:match("^(.*)\\$")
            if is_continued then
                found[#found] = found[#found] .. (more or text)
            else
                table.insert(found, more or text)
            end
            is_continued = more ~= nil
        elseif line ~= "" then
            is_continued = false
        end
    end
    file:close()
    return found
end

-- Whether a path has no part that leads elsewhere.
local function is_plain(path)
    for part in path:gmatch("[^/]+") do
        if part == "." or part == ".." then return false end
    end
    return not path:find("%c")
end

-- What is wrong with the value of a request, and what to write; nil: nothing.
local checks = {
    pool = function(value)
        if not value:match("^[%w_-]+$") then return "write the name of a pool, for example pool=scratch" end
    end,
    capacity = function(value)
        if not size_of(value) then return "write a size with its unit, for example capacity=100GiB" end
    end,
    target = function(value)
        if not value:match("^/+[^/]") or not is_plain(value) then
            return "write the full path of a directory, without . and .., for example target=/scratch/run1"
        end
    end,
    prefetch = function(value)
        if value == "" or value:match("^/") or not is_plain(value) then
            return "write a path below the target, without . and .., for example prefetch=input/mesh.h5"
        end
    end,
}

-- What a script asks for: pool, capacity, target, and a list prefetch; nil and a sentence: what is wrong.
local function request(script)
    local lines, why = directives(script)
    if not lines then return nil, why end
    local asked = { prefetch = {} }
    for _, line in ipairs(lines) do
        if line ~= "" and not line:match("^%s") then
            return nil, ("#BB_LUA%s: write a blank after #BB_LUA, for example %s"):format(line, EXAMPLE)
        end
        for word in line:gmatch("%S+") do
            local key, value = word:match("^(%w+)=(.*)$")
            local check = checks[key]
            if not check then
                return nil, ("#BB_LUA: %s is not known: write pool=, capacity=, target= and prefetch=, for example %s"):format(word, EXAMPLE)
            end
            local fault = check(value)
            if fault then return nil, ("#BB_LUA: %s: %s"):format(word, fault) end
            if key == "prefetch" then
                table.insert(asked.prefetch, value)
            elseif asked[key] then
                return nil, ("#BB_LUA: %s is there twice: write it once"):format(key .. "=")
            else
                asked[key] = value
            end
        end
    end
    for _, key in ipairs({ "pool", "capacity", "target" }) do
        if not asked[key] then return nil, ("#BB_LUA: %s is missing: write for example %s"):format(key .. "=", EXAMPLE) end
    end
    return asked
end

-- A word for the shell, whatever is in it.
local function quoted(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

-- Has the helper do something: its status, and what it said last. Where it has failed, that is a sentence.
local function call(words)
    local command = quoted(HELPER)
    for _, word in ipairs(words) do command = command .. " " .. quoted(word) end
    -- Lua 5.1 does not tell how a command has ended.
    local pipe = io.popen(command .. " </dev/null 2>&1; echo \"=$?\"")
    local said = pipe and pipe:read("*a") or ""
    if pipe then pipe:close() end
    local text, status = said:match("^(.*)=(%d+)%s*$")
    local last = (text or said):match("([^\n]+)%s*$")
    if status == "0" then return slurm.SUCCESS, last end
    return slurm.ERROR, last or ("%s %s has ended without a word: see whether it is there"):format(HELPER, words[1])
end

-- Has the helper do something for a job, whose state shows what has failed.
local function done(words)
    local status, last = call(words)
    if status == slurm.SUCCESS then
        if last then slurm.log_info("surgetank: %s of job %s: %s", words[1], words[2], last) end
        return slurm.SUCCESS
    end
    slurm.log_error("surgetank: %s of job %s: %s", words[1], words[2], last)
    return slurm.ERROR, last
end

function slurm_bb_job_process(job_script)
    local asked, why = request(job_script)
    if not asked then return slurm.ERROR, why end
    local known, fault = configuration()
    if not known then return slurm.ERROR, fault end
    if known.pools[asked.pool] then return slurm.SUCCESS end
    -- It may be the faulty line's.
    if known.faults[1] then return slurm.ERROR, known.faults[1] end
    local names = {}
    for _, pool in ipairs(known.pools) do table.insert(names, pool.name) end
    return slurm.ERROR, ("#BB_LUA: there is no pool %s: take one of: %s"):format(asked.pool, table.concat(names, ", "))
end

-- A fault takes no more than its own line with it: if this fails when slurmctld starts, Slurm does not know the buffers of jobs: they end without
-- staging out, or stay.
function slurm_bb_pools()
    local known, fault = configuration()
    if not known then
        slurm.log_error("surgetank: %s", fault)
        return slurm.ERROR, fault
    end
    for _, sentence in ipairs(known.faults) do slurm.log_error("surgetank: %s", sentence) end
    local pools = {}
    for _, pool in ipairs(known.pools) do
        table.insert(pools, ('{"id": "%s", "granularity": %d, "quantity": %d}')
            :format(pool.name, MIB, math.floor(pool.bytes / MIB)))
    end
    return slurm.SUCCESS, ('{"pools": [%s]}'):format(table.concat(pools, ", "))
end

function slurm_bb_setup(job_id, uid, gid, pool, bb_size, job_script)
    local asked, why = request(job_script)
    if not asked then return slurm.ERROR, why end
    return done({ "setup", job_id, uid, gid, pool, bb_size, asked.target })
end

function slurm_bb_data_in(job_id, job_script)
    local asked, why = request(job_script)
    if not asked then return slurm.ERROR, why end
    local words = { "data-in", job_id }
    for _, path in ipairs(asked.prefetch) do table.insert(words, path) end
    return done(words)
end

function slurm_bb_real_size() return slurm.SUCCESS end

-- Where the job finds the pool. Nodes mount it there in their prolog.
function slurm_bb_paths(job_id, _, path_file)
    local known, fault = configuration()
    if not known or not known.mounts then return slurm.ERROR, fault or known.faults[1] end
    local file, why = io.open(path_file, "w")
    if not file then return slurm.ERROR, why end
    local is_written, failed = file:write(("SURGETANK_DIR=%s/%s\n"):format(known.mounts, job_id))
    -- What is wrong with the file system, closing may say first.
    if is_written then is_written, failed = file:close() end
    if not is_written then return slurm.ERROR, failed end
    return slurm.SUCCESS
end

function slurm_bb_pre_run(job_id) return done({ "check", job_id }) end

-- Nodes may have files open still: data_out waits for them, and has more time.
function slurm_bb_post_run() return slurm.SUCCESS end

function slurm_bb_data_out(job_id) return done({ "data-out", job_id }) end

-- In a hurry or not: nothing that a job has closed is thrown away.
function slurm_bb_job_teardown(job_id) return done({ "teardown", job_id }) end

-- `scontrol show bbstat JOB`.
function slurm_bb_get_status(job_id)
    if not job_id then return slurm.SUCCESS, "name a job: scontrol show bbstat JOB\n" end
    local _, last = call({ "status", job_id })
    return slurm.SUCCESS, (last or "") .. "\n"
end
