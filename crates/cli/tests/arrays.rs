//! `surgetank array` as people use it: by its arguments, its answers and its exit status, with and without a daemon.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use surgetank_array::ArrayId;
use surgetank_array::format::Superblock;

const MEMBERS: usize = 3;

/// A directory with a configuration that has an array, and a device that is none of its business.
struct Machine {
    directory: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { directory: tempfile::tempdir().unwrap() };
        File::create(machine.at("backing.img")).unwrap().set_len(64 << 20).unwrap();
        machine.configure("", &format!("members = {MEMBERS}\nmember_size = \"8 MiB\""));
        machine
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn configure(&self, provider: &str, array: &str) {
        let root = self.directory.path().display();
        let text = format!(
            "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\n\
             [provider.local]\ndirectory = \"{root}/volumes\"\n{provider}\n[array.scratch]\n{array}\n\
             [device.other]\nbacking = \"{root}/backing.img\"\nexport = \"nbd\"\nbacking_limits.bandwidth = \"33 MiB/s\"\n"
        );
        fs::write(self.at("surgetank.toml"), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surgetank"));
        for variable in ["SURGETANK_SOCKET", "SURGETANK_CONFIG", "SURGETANK_LOG"] {
            command.env_remove(variable);
        }
        command.args(arguments).arg("--config").arg(self.at("surgetank.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(&[&["array"], arguments].concat()).output().unwrap()
    }

    /// The same with something typed.
    fn typing(&self, arguments: &[&str], typed: &str) -> Output {
        let mut child = self.command(&[&["array"], arguments].concat()).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.done(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Refused with this status: one sentence, and no answer.
    #[track_caller]
    fn refused(&self, arguments: &[&str], status: i32) -> String {
        sentence(&self.run(arguments), status)
    }

    fn images(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.at("volumes/volumes"));
        let mut images: Vec<PathBuf> = entries.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        images.sort();
        images
    }

    fn serve(&self) -> Daemon {
        let mut child = self.command(&["serve"]).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Daemon(child)
    }
}

/// Ends with its test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        signal(&self.0, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let id = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(id, signal).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn sentence(output: &Output, status: i32) -> String {
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(status), String::new()), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("surgetank: "), "{said}");
    said
}

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_command_of_arrays_has_help_with_examples() {
    for command in ["create", "status", "rotate", "assemble", "delete"] {
        let output = Command::new(env!("CARGO_BIN_EXE_surgetank")).args(["array", command, "--help"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command}");
        assert!(text(&output.stdout).contains(&format!("Examples:\n  surgetank array {command}")), "{command}");
    }
}

#[test]
fn an_array_lives_from_its_creation_to_its_deletion_without_a_daemon() {
    let machine = Machine::new();
    assert_eq!(machine.json(&["status"])["arrays"][0]["state"], "absent");
    let created = machine.json(&["create", "scratch"]);
    assert_eq!((&created["state"], &created["members"]), (&"made".into(), &MEMBERS.into()));
    assert_eq!(created["volumes"].as_array().unwrap().len(), MEMBERS);
    for (key, value) in [("provider", "local"), ("volume_type", "fast"), ("use", "persistent")] {
        assert_eq!(created[key], value);
    }
    assert!(created["id"].as_str().is_some_and(|id| id.len() == 32) && created["reason"].is_null(), "{created}");
    let people = machine.done(&["status", "scratch"]);
    assert!(people.starts_with("array scratch: made, 3 members, persistent, rotate"), "{people}");
    assert_eq!(people.matches("active").count(), MEMBERS, "{people}");

    let again = machine.refused(&["create", "scratch"], 1);
    assert!(again.contains("there is an array scratch already") && again.contains("array delete scratch"), "{again}");
    let rotated = machine.refused(&["rotate", "scratch"], 1);
    assert!(rotated.contains("no daemon runs") && rotated.contains("surgetank serve"), "{rotated}");
    assert_eq!(machine.images().len(), MEMBERS);

    for typed in ["", "\n", "scrtch\n", "SCRATCH\n"] {
        let said = sentence(&machine.typing(&["delete", "scratch"], typed), 2);
        assert!(said.contains("all its data: 3 volumes, 24 MiB") && said.contains("nothing is deleted"), "{said}");
    }
    let said = machine.refused(&["delete", "scratch", "--yes-delete", "other"], 2);
    assert!(said.contains("\"other\" is not the name of the array, scratch"), "{said}");
    assert_eq!(machine.images().len(), MEMBERS, "nothing was deleted");
    let deleted = machine.typing(&["delete", "scratch"], "scratch\n");
    assert_eq!(text(&deleted.stdout), "deleted the array scratch: 3 volumes\n");
    assert_eq!(machine.images(), Vec::<PathBuf>::new());
    assert!(
        machine.refused(&["delete", "scratch", "--yes-delete", "scratch"], 1).contains("there is no array scratch")
    );
    machine.done(&["create", "scratch"]);
    assert_eq!(machine.json(&["delete", "scratch", "--yes-delete", "scratch"])["deleted"], "scratch");
}

#[test]
fn a_running_daemon_does_the_same() {
    let machine = Machine::new();
    let daemon = machine.serve();
    assert_eq!(machine.json(&["create", "scratch"])["state"], "made");
    assert!(machine.refused(&["create", "scratch"], 1).contains("there is an array scratch already"));
    let status = machine.json(&["status"]);
    assert_eq!(status["arrays"][0]["volumes"].as_array().unwrap().len(), MEMBERS);
    let refused = machine.refused(&["rotate", "scratch"], 1);
    assert!(refused.contains("no device serves the array"), "{refused}");
    assert!(machine.refused(&["assemble", "scratch"], 1).contains("is on record"));
    assert_eq!(sentence(&machine.typing(&["delete", "scratch"], "scrach\n"), 2).lines().count(), 2);
    machine.done(&["delete", "scratch", "--yes-delete", "scratch"]);
    assert_eq!(machine.images(), Vec::<PathBuf>::new());
    drop(daemon);
    assert_eq!(machine.json(&["status", "scratch"])["arrays"][0]["state"], "absent");
}

#[test]
fn names_that_no_section_has_are_refused_with_the_nearest() {
    let machine = Machine::new();
    for command in ["create", "status", "rotate", "assemble", "delete"] {
        let said = machine.refused(&[command, "scrtch"], 2);
        assert!(said.contains("no array \"scrtch\"") && said.contains("did you mean \"scratch\"?"), "{said}");
    }
    let file = machine.at("surgetank.toml");
    let without = fs::read_to_string(&file).unwrap();
    let (head, tail) = (without.split("[array").next().unwrap(), without.split("[device").nth(1).unwrap());
    fs::write(&file, format!("{head}[device{tail}")).unwrap();
    let said = machine.refused(&["create", "scratch"], 2);
    assert!(said.contains("add a section [array.scratch]"), "{said}");
    assert_eq!(machine.done(&["status"]), "this configuration has no arrays\n");
    machine.configure("", "members = 500\nmember_size = \"8 MiB\"");
    let said = machine.refused(&["create", "scratch"], 2);
    assert!(said.contains("surgetank.toml:7:11: members is 500: an array has 1 to 127 members"), "{said}");
}

#[test]
fn a_creation_that_is_interrupted_or_killed_leaves_no_volume() {
    let machine = Machine::new();
    machine.configure("create_latency = \"60 s\"", "members = 3\nmember_size = \"8 MiB\"");
    let begin = || {
        let child = machine.command(&["array", "create", "scratch"]).spawn().unwrap();
        eventually("volumes are being created", || machine.images().len() == MEMBERS);
        child
    };
    for stop in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let child = begin();
        signal(&child, stop);
        let said = sentence(&child.wait_with_output().unwrap(), 130);
        assert!(said.contains("the array scratch was not created, and no volume of it is left"), "{said}");
        assert_eq!(machine.images(), Vec::<PathBuf>::new());
    }
    let mut child = begin();
    let busy = machine.refused(&["status"], 1);
    assert!(busy.contains("a command of `surgetank array`"), "{busy}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(machine.images().len(), MEMBERS);
    // Whoever looks next deletes them, and waits for it: without a daemon nobody else does.
    assert_eq!(machine.json(&["status"])["arrays"][0]["state"], "absent");
    assert_eq!(machine.images(), Vec::<PathBuf>::new());
}

#[test]
fn what_a_provider_or_a_directory_refuses_leaves_nothing() {
    let machine = Machine::new();
    let members = "members = 3\nmember_size = \"8 MiB\"";
    for (provider, reason) in [("quota_volumes = 2", "quota"), ("attach_limit = 2", "attach")] {
        machine.configure(provider, members);
        let said = machine.refused(&["create", "scratch"], 1);
        assert!(said.contains("was not created") && said.contains(reason) && said.lines().count() == 1, "{said}");
        machine.configure("", members);
        // What is left to delete is deleted by whoever looks.
        eventually("what came is deleted", || {
            machine.json(&["status"])["arrays"][0]["state"] == "absent" && machine.images().is_empty()
        });
    }
    // A record that cannot be written: a directory lies where the new one would be.
    fs::create_dir_all(machine.at("state/array:scratch/array.json.new")).unwrap();
    let said = machine.refused(&["create", "scratch"], 1);
    assert!(said.contains("the state directory cannot be written") && said.contains("make room there"), "{said}");
    assert_eq!(machine.images(), Vec::<PathBuf>::new());
    fs::remove_dir(machine.at("state/array:scratch/array.json.new")).unwrap();
    machine.done(&["create", "scratch"]);
}

#[test]
fn a_section_that_contradicts_the_array_is_refused_by_every_command() {
    let machine = Machine::new();
    machine.done(&["create", "scratch"]);
    for (section, remedy) in [
        ("members = 4\nmember_size = \"8 MiB\"", "write members = 3"),
        ("members = 2\nmember_size = \"8 MiB\"", "write members = 3"),
    ] {
        machine.configure("", section);
        let status = machine.json(&["status"]);
        assert_eq!(status["arrays"][0]["state"], "refused");
        assert!(status["arrays"][0]["reason"].as_str().unwrap().contains(remedy), "{status}");
        for command in [&["create", "scratch"][..], &["delete", "scratch", "--yes-delete", "scratch"]] {
            let said = machine.refused(command, 1);
            assert!(said.contains(remedy) && said.trim_end().lines().count() <= 2, "{command:?}: {said}");
        }
    }
    assert_eq!(machine.images().len(), MEMBERS);
}

/// Superblocks of a member.
fn superblocks(image: &Path) -> Vec<Superblock> {
    let mut head = [0; 8192];
    File::open(image).unwrap().read_exact_at(&mut head, 0).unwrap();
    head.chunks(4096).filter_map(Superblock::decode).collect()
}

fn write(image: &Path, superblock: &Superblock) {
    let file = File::options().write(true).open(image).unwrap();
    file.write_all_at(&superblock.encode(), superblock.offset()).unwrap();
}

#[test]
fn volumes_that_make_no_array_are_refused_with_what_is_wrong_with_each() {
    let machine = Machine::new();
    machine.done(&["create", "scratch"]);
    fs::remove_dir_all(machine.at("state")).unwrap();
    let image = machine.images().remove(1);
    let (whole, found) = (fs::read(&image).unwrap(), superblocks(&image));
    let foreign = ArrayId([0xab; 16]);
    let said = |what: &str| {
        let said = machine.refused(&["assemble", "scratch"], 1);
        assert!(said.contains(what) && said.trim_end().lines().count() == 1, "{said}");
        assert_eq!(machine.json(&["status"])["arrays"][0]["state"], "absent");
        fs::write(&image, &whole).unwrap();
        said
    };
    // One claim of two arrays, and one of another alone.
    write(&image, &Superblock { array: foreign, sequence: found[1].sequence + 1, ..found[1].clone() });
    said(&format!("is claimed by the arrays {foreign} and {}", found[1].array));
    found.iter().for_each(|superblock| write(&image, &Superblock { array: foreign, ..superblock.clone() }));
    let of_another = said(&format!("belongs to array {foreign}: detach it"));
    assert!(of_another.contains(&format!("of slot {} is missing: attach its volume", found[0].slot)), "{of_another}");
    // No member at all, a damaged one, one that has become smaller, a copy of another.
    let file = || File::options().write(true).open(&image).unwrap();
    file().write_all_at(&[0; 8192], 0).unwrap();
    said("is no member of an array: detach it");
    file().write_all_at(&[1; 8000], 100).unwrap();
    said("both superblocks of volume");
    fs::write(&image, fs::read(machine.images().remove(0)).unwrap()).unwrap();
    said("one is a copy of the other; detach the copy");
    file().set_len(7 << 20).unwrap();
    let smaller = machine.refused(&["assemble", "scratch"], 1);
    assert!(smaller.contains("7340032") || smaller.contains("7 MiB"), "{smaller}");
    fs::write(&image, &whole).unwrap();
    // A volume that the provider has no more.
    let record = machine.at("volumes/state").join(image.with_extension("json").file_name().unwrap());
    let (aside, image_aside) = (machine.at("aside.json"), machine.at("aside.img"));
    fs::rename(&record, &aside).unwrap();
    fs::rename(&image, &image_aside).unwrap();
    let missing = machine.refused(&["assemble", "scratch"], 1);
    assert!(missing.contains("is missing: attach its volume"), "{missing}");
    fs::rename(&aside, &record).unwrap();
    fs::rename(&image_aside, &image).unwrap();
    // A section with another number of members.
    machine.configure("", "members = 4\nmember_size = \"8 MiB\"");
    let members = machine.refused(&["assemble", "scratch"], 1);
    assert!(members.contains("has 3 members, and its section says 4: write members = 3"), "{members}");
    machine.configure("", "members = 3\nmember_size = \"8 MiB\"");
    let wrong = machine.refused(&["assemble", "scratch", "--id", "nothing"], 1);
    assert!(wrong.contains("--id"), "{wrong}");
    assert_eq!(machine.done(&["assemble", "scratch"]), "assembled the array scratch: all 3 members are there\n");
    assert!(machine.refused(&["assemble", "scratch"], 1).contains("is on record"));
    machine.done(&["delete", "scratch", "--yes-delete", "scratch"]);
    assert!(machine.refused(&["assemble", "scratch"], 1).contains("no volume that is tagged as a member"));
    assert_eq!(machine.images(), Vec::<PathBuf>::new());
}

#[test]
fn a_start_says_what_is_cheaper_than_a_rotation() {
    let machine = Machine::new();
    let bursty = "[provider.local.types.bursty]\nbandwidth = \"250 MiB/s\"\n\
                  iops_credits = { baseline = { per_gib = 3.0, min = \"100 IOPS\" }, bucket = 5400000 }";
    let said = |more: &str| {
        let array = "volume_type = \"bursty\"\nmembers = 10\nmember_size = \"50 GiB\"";
        machine.configure(bursty, &format!("{array}\n{more}"));
        let output = machine.command(&["serve", "--check"]).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (status, told) = said("catalog_type = \"aws/gp2\"");
    let parts = ["array scratch: 10 × 50 GiB aws/gp2", "aws/gp3 sustain it for $", "rotation does not pay"];
    assert!(status == Some(0) && parts.iter().all(|part| told.contains(part)), "{told}");
    for unsaid in ["", "catalog_type = \"aws/gp2\"\nrotate = \"never\"", "catalog_type = \"aws/gp3\""] {
        let (status, told) = said(unsaid);
        assert!(status == Some(0) && !told.contains("does not pay"), "{unsaid}: {told}");
    }
    let (status, told) = said("catalog_type = \"aws/gp22\"");
    assert!(status == Some(2) && told.contains("did you mean \"aws/gp2\"?"), "{told}");
}

#[test]
fn a_record_that_cannot_be_written_is_told_at_once() {
    let machine = Machine::new();
    machine.done(&["create", "scratch"]);
    // The file that takes the place of the record cannot be made.
    let place = machine.at("state/array:scratch/array.json.new");
    fs::create_dir(&place).unwrap();
    let told = machine.refused(&["delete", "scratch", "--yes-delete", "scratch"], 1);
    let state = machine.at("state");
    assert!(told.contains("is not deleted yet") && told.contains(state.to_str().unwrap()), "{told}");
    assert_eq!(machine.images().len(), MEMBERS);
    fs::remove_dir(&place).unwrap();
    machine.done(&["delete", "scratch", "--yes-delete", "scratch"]);
    assert_eq!(machine.images(), Vec::<PathBuf>::new());
    fs::create_dir_all(&place).unwrap();
    let told = machine.refused(&["create", "scratch"], 1);
    assert!(told.contains("was not created"), "{told}");
    fs::remove_dir_all(machine.at("state/array:scratch")).unwrap();
    assert!(machine.done(&["status"]).starts_with("array scratch: absent"));
    assert_eq!(machine.images(), Vec::<PathBuf>::new());
}

#[test]
fn the_daemon_of_a_socket_alone_is_asked_and_no_other_configuration_takes_its_place() {
    let machine = Machine::new();
    let socket = machine.at("run/control.sock");
    let alone = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surgetank"));
        command.env_remove("SURGETANK_CONFIG").env("SURGETANK_SOCKET", &socket);
        command.args(["array", "status", "--json"]).output().unwrap()
    };
    let daemon = machine.serve();
    let answer: Value = serde_json::from_slice(&alone().stdout).unwrap();
    assert_eq!(answer["arrays"][0]["name"], "scratch");
    drop(daemon);
    let said = sentence(&alone(), 1);
    assert!(said.contains("no daemon answers at") && said.contains("control.sock"), "{said}");
}

#[test]
fn serve_check_says_where_a_read_cache_exceeds_what_its_provider_rents() {
    let machine = Machine::new();
    let cache = "[device.other.read_cache]\nmembers = 4\nmember_size = \"8 MiB\"\n";
    let members = "members = 3\nmember_size = \"8 MiB\"";
    for (limit, told) in [
        ("quota_volumes = 3", "the read cache has 4 members, and the provider rents 3 volumes at once"),
        (
            "quota_bytes = \"20 MiB\"",
            "the read cache's 4 members of 8 MiB take 32 MiB, and quota_bytes of [provider.local] is 20 MiB",
        ),
        ("attach_limit = 0", "attach_limit of [provider.local] is 0: the read cache gets no member"),
    ] {
        machine.configure(limit, members);
        let file = machine.at("surgetank.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text}{cache}")).unwrap();
        let output = machine.command(&["serve", "--check"]).output().unwrap();
        let said = text_of(&output);
        assert!(said.contains(told), "{limit}: {said}");
    }
}

/// Both what was answered and what was said.
fn text_of(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}
