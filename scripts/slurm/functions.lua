-- Calls the functions of burst_buffer.lua as slurmctld does, each in a state of its own, with a helper that writes down what it was told to do.
--
--   lua functions.lua SCRIPT PLACE      (an empty directory)

local script, place = arg[1], arg[2]
local tests = {}

local function write(name, text)
    local file = assert(io.open(place .. "/" .. name, "w"))
    file:write(text)
    file:close()
    return place .. "/" .. name
end

local function read(name)
    local file = io.open(place .. "/" .. name)
    local text = file and file:read("*a") or ""
    if file then file:close() end
    return text
end

-- What the helper says, and how it ends; what it was called with, one word a line.
local function helper(said, status) write("said", said) write("status", tostring(status)) write("words", "") end

local logged

-- A function of the script, loaded anew as Slurm does it; errors of the script itself are failures.
local function call(name, ...)
    logged = {}
    local function log(text, ...) table.insert(logged, text:format(...)) end
    slurm = { SUCCESS = 0, ERROR = -1, log_info = log, log_error = log }
    assert(loadfile(script))()
    local status, answer, more = _G[name](...)
    assert(type(status) == "number" and more == nil, name .. " answers a status and at most one text")
    assert(answer == nil or type(answer) == "string", name .. " answers a text")
    return status, answer
end

local function configuration(text) write("pool-slurm.conf", text) end

local GOOD = "#BB_LUA pool=scratch capacity=10GiB target=/scratch/run1\n"

function tests.a_request_is_read_as_slurm_reads_it()
    local job = write("job", "#!/bin/sh\n#SBATCH --nodes=2\n\n# words\n#BB_LUA pool=local capacity=64MiB \\\n#BB_LUA   target=/scratch/%u/run\n"
        .. "#BB_LUA prefetch=in/a.h5 prefetch=in/b's\nsrun x\n#BB_LUA nonsense\n")
    assert(call("slurm_bb_job_process", job) == 0)
    helper("", 0)
    assert(call("slurm_bb_setup", "7", "1000", "100", "local", "67108864", job) == 0)
    assert(read("words") == "setup\n7\n1000\n100\nlocal\n67108864\n/scratch/%u/run\n", read("words"))
    helper("", 0)
    assert(call("slurm_bb_data_in", "7", job) == 0)
    assert(read("words") == "data-in\n7\nin/a.h5\nin/b's\n", read("words"))
end

function tests.a_bad_line_is_refused_in_one_sentence()
    for lines, why in pairs({
        ["#BB_LUA pool=scratch target=/scratch/run1\n"] = "capacity= is missing",
        ["#BB_LUA capacity=1GiB target=/scratch/run1\n"] = "pool= is missing",
        ["#BB_LUA pool=scratch capacity=1GiB\n"] = "target= is missing",
        ["#BB_LUA\n"] = "pool= is missing",
        [GOOD .. GOOD] = "pool= is there twice",
        [GOOD .. "#BB_LUA stripe=4\n"] = "stripe=4 is not known",
        [GOOD .. "#BB_LUA please\n"] = "please is not known",
        [GOOD .. "#BB_LUAprefetch=a\n"] = "write a blank",
        [GOOD .. "#BB_LUA prefetch=\n"] = "write a path below the target",
        [GOOD .. "#BB_LUA prefetch=/etc/shadow\n"] = "write a path below the target",
        [GOOD .. "#BB_LUA prefetch=a/../../b\n"] = "write a path below the target",
        ["#BB_LUA pool=none capacity=1GiB target=/scratch/run1\n"] = "take one of: scratch, local",
        ["#BB_LUA pool=$(id) capacity=1GiB target=/scratch/run1\n"] = "write the name of a pool",
        ["#BB_LUA pool=scratch capacity=10 target=/scratch/run1\n"] = "write a size with its unit",
        ["#BB_LUA pool=scratch capacity=10 GiB target=/scratch/run1\n"] = "write a size with its unit",
        ["#BB_LUA pool=scratch capacity=0GiB target=/scratch/run1\n"] = "write a size with its unit",
        ["#BB_LUA pool=scratch capacity=-1GiB target=/scratch/run1\n"] = "write a size with its unit",
        ["#BB_LUA pool=scratch capacity=1GiB target=run1\n"] = "write the full path",
        ["#BB_LUA pool=scratch capacity=1GiB target=/\n"] = "write the full path",
        ["#BB_LUA pool=scratch capacity=1GiB target=/scratch/../etc\n"] = "write the full path",
        ["#BB_LUA pool=scratch capacity=1GiB target=/scratch/\27[2J\n"] = "write the full path",
    }) do
        local status, sentence = call("slurm_bb_job_process", write("job", "#!/bin/sh\n" .. lines .. "true\n"))
        assert(status ~= 0, lines)
        assert(sentence:find(why, 1, true), lines .. ": " .. sentence)
        assert(not sentence:find("\n"), sentence)
        helper("", 0)
        if why ~= "take one of: scratch, local" then
            assert(call("slurm_bb_setup", "7", "1", "1", "scratch", "1", place .. "/job") ~= 0, lines)
            assert(read("words") == "", "nothing is done for " .. lines)
        end
    end
end

function tests.a_script_that_is_gone_is_told()
    local status, sentence = call("slurm_bb_job_process", place .. "/none")
    assert(status ~= 0 and sentence:find("No such file", 1, true), sentence)
end

function tests.pools_are_counted_in_mebibytes()
    local status, pools = call("slurm_bb_pools")
    assert(status == 0)
    assert(pools == '{"pools": [{"id": "scratch", "granularity": 1048576, "quantity": 3145728}, {"id": "local", "granularity": 1048576, "quantity": 61035}]}', pools)
end

function tests.a_faulty_configuration_is_told_with_its_line()
    for line in io.lines("scripts/slurm/faulty") do
        configuration("# pools\npool=known 1GiB here\n" .. line .. "\npool=last 1GiB here\n")
        local status, pools = call("slurm_bb_pools")
        -- Slurm must not take it for a failure: it would forget its jobs.
        assert(status == 0 and pools:find('"known"', 1, true) and pools:find('"last"', 1, true) and select(2, pools:gsub('"id"', "")) == 2, line .. ": " .. pools)
        assert(logged[1] and logged[1]:find("pool-slurm.conf:3: ", 1, true) and #logged == 1, line .. ": slurmctld's log has it")
        local refused, sentence = call("slurm_bb_job_process", write("job", "#!/bin/sh\n" .. GOOD))
        assert(refused ~= 0 and sentence:find("pool-slurm.conf:3: ", 1, true), sentence)
        assert(call("slurm_bb_job_process", write("job", "#!/bin/sh\n" .. GOOD:gsub("scratch", "known", 1))) == 0, line .. ": a sound pool is there")
        local told, why = call("slurm_bb_paths", "7", "none", place .. "/path")
        assert((told ~= 0) == (line:match("^mounts") ~= nil) and (told == 0 or why:find("mounts=relative", 1, true)), line)
    end
    os.remove(place .. "/pool-slurm.conf")
    local status, sentence = call("slurm_bb_pools")
    assert(status ~= 0 and sentence:find("write one", 1, true), sentence)
end

function tests.sizes_that_slurm_cannot_count_are_none()
    configuration("pool=huge 99999999999PiB here\npool=large 1024PiB here\n")
    local status, pools = call("slurm_bb_pools")
    assert(status == 0 and pools == '{"pools": [{"id": "large", "granularity": 1048576, "quantity": 1099511627776}]}', pools)
end

function tests.nothing_reaches_a_shell()
    local target = "/scratch/'$(touch${IFS}" .. place .. "/hit)'`touch${IFS}" .. place .. "/hit`;touch${IFS}" .. place .. "/hit"
    local job = write("job", "#!/bin/sh\n#BB_LUA pool=scratch capacity=1GiB target=" .. target .. "\n")
    helper("", 0)
    assert(call("slurm_bb_setup", "7", "1000", "100", "scratch", "1", job) == 0)
    assert(read("words") == "setup\n7\n1000\n100\nscratch\n1\n" .. target .. "\n", read("words"))
    assert(not io.open(place .. "/hit"))
end

function tests.a_failure_is_the_last_line_and_is_logged()
    for name, verb in pairs({
        slurm_bb_setup = "setup", slurm_bb_data_in = "data-in", slurm_bb_pre_run = "check", slurm_bb_data_out = "data-out",
        slurm_bb_job_teardown = "teardown",
    }) do
        helper("words before\ntarget /scratch/run1: No space left on device for 2 min: make room there\n", 1)
        local job = write("job", "#!/bin/sh\n" .. GOOD)
        local status, sentence
        if name == "slurm_bb_setup" then
            status, sentence = call(name, "7", "1", "1", "scratch", "1", job)
        else
            status, sentence = call(name, "7", job, "true")
        end
        assert(status ~= 0, name .. " tells that it has failed")
        assert(sentence == "target /scratch/run1: No space left on device for 2 min: make room there", sentence)
        assert(read("words"):match("^(%S+)\n7\n") == verb, read("words"))
        assert(logged[1]:find(sentence, 1, true), "slurmctld's log has it")
        -- What says nothing has failed all the same.
        helper("", 137)
        if name ~= "slurm_bb_setup" then
            status, sentence = call(name, "7", job, "true")
            assert(status ~= 0 and sentence:find("has ended without a word", 1, true), sentence)
        end
    end
end

function tests.what_a_success_says_is_logged_and_is_no_answer()
    helper("job 7: its pool goes on\n", 0)
    local status, answer = call("slurm_bb_job_teardown", "7", "none", "false")
    assert(status == 0 and answer == nil)
    assert(logged[1] == "surgetank: teardown of job 7: job 7: its pool goes on", logged[1])
end

function tests.a_job_finds_its_mount_in_its_environment()
    assert(call("slurm_bb_paths", "7", "none", place .. "/path") == 0)
    assert(read("path") == "SURGETANK_DIR=/mnt/pools/7\n", read("path"))
    assert(call("slurm_bb_paths", "7", "none", place .. "/none/path") ~= 0)
    assert(call("slurm_bb_paths", "7", "none", "/dev/full") ~= 0)
end

function tests.a_status_is_asked_for_with_a_number()
    helper("job 7: 3 of 5 files are at the target\n", 0)
    local status, answer = call("slurm_bb_get_status", "7")
    assert(status == 0 and answer == "job 7: 3 of 5 files are at the target\n", answer)
    status, answer = call("slurm_bb_get_status")
    assert(status == 0 and answer:find("bbstat JOB", 1, true), answer)
end

function tests.all_functions_that_slurm_wants_are_there()
    call("slurm_bb_pools")
    for name in ("job_process pools job_teardown setup data_in real_size paths pre_run post_run data_out get_status"):gmatch("%S+") do
        assert(type(_G["slurm_bb_" .. name]) == "function", name)
    end
    assert(call("slurm_bb_real_size", "7") == 0)
    assert(call("slurm_bb_post_run", "7", "none") == 0)
end

local names = {}
for name in pairs(tests) do table.insert(names, name) end
table.sort(names)
for _, name in ipairs(names) do
    configuration("# pools\npool=scratch 3TiB pool://node1\n pool = local 64GB here\nmounts=/mnt/pools\n")
    local is_met, why = pcall(tests[name])
    print(("%s %s: %s"):format(_VERSION, name, is_met and "met" or "failed: " .. tostring(why)))
    if not is_met then os.exit(1) end
end
