//! Who may use a pool, and a pool of several processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::place::{MIB, Place, Pool, Started, binary, bytes, can_mount, done, refused, run, signal, until};

#[test]
fn another_user_is_refused_and_a_token_lets_its_mounts_in() {
    const NOBODY: u32 = 65_534;
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let open = |path: &Path| fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    open(place.0.path());
    let pool = Pool::up(&place.at("pool"), "127.0.0.1:0", "2");
    let as_nobody = |arguments: &[&str]| {
        use std::os::unix::process::CommandExt;
        binary().args(arguments).uid(NOBODY).gid(NOBODY).current_dir("/").output()
    };
    let (target, point, out) = (place.text("target"), place.text("mnt"), place.text("run.token"));
    let directory = place.text("pool");
    let make =
        |more: &[&str]| run(&[&["pool", "token", "--target", &target, "--directory", &directory][..], more].concat());
    match as_nobody(&["pool", "status", &pool.address, "--token", &pool.key]) {
        Ok(output) => {
            let told = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(2) && told.trim_end().lines().count() == 1, "{told}");
            assert!(
                told.contains("Permission denied") && told.contains("ask whoever runs the pool for a token"),
                "{told}"
            );
            let made = as_nobody(&["pool", "token", "--target", &target, "--directory", &directory]).unwrap();
            assert_eq!(made.status.code(), Some(2), "nor does another user make one");
        }
        Err(error) => println!("skipped in part: another user cannot start the program: {error}"),
    }
    assert!(make(&["--owner", "7:8", "--valid", "1 h", "--out", &out]).status.success());
    let again = String::from_utf8(make(&["--out", &out]).stderr).unwrap();
    assert!(again.contains("there is such a file: name another"), "{again}");
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&out).unwrap()) & 0o777;
    assert_eq!(mode, 0o600);
    let (code, told) = refused(&["mount", &pool.address, &point, "--target", &place.text("mnt2"), "--token", &out]);
    assert!(code == 2 && told.contains("the token is for mounts that drain to "), "{told}");
    done(&["mount", &pool.address, &point, "--target", &target, "--token", &out]);
    let denied = fs::write(place.at("mnt/root"), "root's").unwrap_err();
    assert_eq!(denied.raw_os_error(), Some(rustix::io::Errno::PERM.raw_os_error()), "files are the owner's alone");
    done(&["umount", &point]);
    // In a variable, and for everybody's files.
    let text = String::from_utf8(make(&[]).stdout).unwrap();
    let mut command = binary();
    command.args(["mount", &pool.address, &point, "--target", &target]).env("SURGETANK_POOL_TOKEN", text.trim());
    assert!(command.output().unwrap().status.success());
    fs::write(place.at("mnt/file"), bytes(1, MIB)).unwrap();
    done(&["pool", "wait", &place.text("mnt/file"), "--state", "drained"]);
    assert!(fs::read(place.at("target/file")).unwrap() == bytes(1, MIB));
    until("it is unmounted", || run(&["umount", &point]).status.success());
    let bad = binary().args(["pool", "status", &pool.address]).env("SURGETANK_POOL_TOKEN", "none").output().unwrap();
    let told = String::from_utf8(bad.stderr).unwrap();
    assert!(told.contains("SURGETANK_POOL_TOKEN is no token") && told.lines().count() == 1, "{told}");
}

#[test]
fn a_new_key_takes_all_tokens_back() {
    let place = Place::new();
    let (directory, target, out) = (place.at("pool"), place.text("target"), place.text("run.token"));
    let up = || Pool::up(&directory, "127.0.0.1:0", "1");
    let end = |pool: Pool| {
        signal(&pool.child, rustix::process::Signal::TERM);
        assert_eq!(pool.end(), (Some(0), String::new()));
    };
    let pool = up();
    done(&["pool", "token", "--target", &target, "--directory", &place.text("pool"), "--out", &out]);
    done(&["pool", "status", &pool.address, "--token", &out]);
    end(pool);
    fs::remove_file(place.at("pool/key")).unwrap();
    let pool = up();
    let (code, told) = refused(&["pool", "status", &pool.address, "--token", &out]);
    assert!(code == 1 && told.contains("of a key that was replaced"), "{code}: {told}");
    end(pool);
    end(up());
}

#[test]
fn a_manager_and_benefactors_in_processes_of_their_own_are_a_pool() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (directory, pki, key) = (place.text("pool"), place.text("pki"), place.text("pool/key"));
    done(&["pool", "certificates", &pki, "--host", "127.0.0.1", "--client", "login"]);
    let (served, called) = (place.text("pki/127.0.0.1"), place.text("pki/login"));
    let manager = ["pool", "manager", "--directory", &directory, "--listen", "127.0.0.1:0", "--certificates", &served];
    let (mut manager, line) = Started::new(&manager);
    let address = line.split_once(": ").unwrap().0.to_owned();
    let at = address.strip_prefix("pool://").unwrap();
    let benefactor = |number: &'static str| {
        let arguments =
            ["pool", "benefactor", "--managers", at, "--memory", "64 MiB", "--listen", "127.0.0.1:0", "--domain"];
        let more = [number, "--id", number, "--key", &key, "--certificates", &served];
        Started::new(&[&arguments[..], &more[..]].concat()).0
    };
    let mut benefactors = [benefactor("1"), benefactor("2")];
    let shown = ["--token", &key, "--certificates", &called];
    let status = || {
        let told = done(&[&["pool", "status", &address, "--json"][..], &shown[..]].concat());
        serde_json::from_str::<Value>(&told).unwrap()["benefactors"].as_array().unwrap().len()
    };
    until("both lend", || status() == 2);
    let (target, point) = (place.text("target"), place.text("mnt"));
    done(&[&["mount", &address, &point, "--target", &target][..], &shown[..]].concat());
    fs::write(place.at("mnt/file"), bytes(1, 5 * MIB)).unwrap();
    done(&["pool", "wait", &place.text("mnt/file"), "--state", "drained"]);
    assert!(fs::read(place.at("target/file")).unwrap() == bytes(1, 5 * MIB));
    until("it is unmounted", || run(&["umount", &point]).status.success());
    for process in benefactors.iter_mut().chain([&mut manager]) {
        signal(&process.0, rustix::process::Signal::TERM);
        assert_eq!(process.0.wait().unwrap().code(), Some(0));
    }
}

/// A pool whose manager and benefactors are processes of their own.
pub(crate) struct Apart {
    pub(crate) place: Place,
    pub(crate) key: String,
    pub(crate) address: String,
    pub(crate) manager: Started,
}

impl Apart {
    pub(crate) fn new() -> Self {
        let place = Place::new();
        let (directory, key) = (place.text("pool"), place.text("pool/key"));
        let (manager, line) = Started::new(&["pool", "manager", "--directory", &directory, "--listen", "127.0.0.1:0"]);
        let address = line.split_once(": ").unwrap().0.to_owned();
        Self { place, key, address, manager }
    }

    pub(crate) fn at(&self) -> &str {
        self.address.strip_prefix("pool://").unwrap()
    }

    /// A benefactor of this number, and where it listens.
    pub(crate) fn benefactor(&self, number: &str, listen: &str) -> (Started, String) {
        let arguments = ["pool", "benefactor", "--managers", self.at(), "--memory", "64 MiB", "--listen", listen];
        let more = ["--domain", number, "--id", number, "--key", &self.key];
        let (process, line) = Started::new(&[&arguments[..], &more].concat());
        (process, line.split_whitespace().nth(3).unwrap().to_owned())
    }

    /// The same, whose words on stderr are read.
    fn heard_benefactor(&self) -> (Started, impl Iterator<Item = String> + use<>) {
        let mut command = binary();
        command.args(["pool", "benefactor", "--managers", self.at(), "--memory", "64 MiB", "--listen", "127.0.0.1:0"]);
        command.args(["--domain", "1", "--id", "1", "--key", &self.key]);
        let mut process = Started(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let lines = BufReader::new(process.0.stderr.take().unwrap()).lines().map(Result::unwrap);
        // But for the log.
        (process, lines.filter(|line| line.starts_with("surgetank: ")))
    }

    /// Two of them, so that each has a copy of everything, and nobody else takes the place of one that is gone.
    fn two(&self) -> [(Started, String); 2] {
        let both = ["1", "2"].map(|number| self.benefactor(number, "127.0.0.1:0"));
        until("both lend", || self.status()["benefactors"].as_array().unwrap().len() == 2);
        both
    }

    pub(crate) fn status(&self) -> Value {
        let told = done(&["pool", "status", &self.address, "--token", &self.key, "--json"]);
        serde_json::from_str(&told).unwrap()
    }
}

#[test]
fn a_file_of_which_nothing_was_committed_keeps_no_benefactor_from_ending() {
    if !can_mount() {
        return;
    }
    let pool = Apart::new();
    let place = &pool.place;
    let (point, target) = (place.text("mnt"), place.text("target"));
    let mut benefactors = pool.two().map(|(process, _)| process);
    let arguments = ["mount", &pool.address, &point, "--target", &target, "--token", &pool.key, "--foreground"];
    let (mut mount, _) = Started::new(&arguments);
    let file = fs::File::create(place.at("mnt/file")).unwrap();
    file.write_all_at(&bytes(1, 300_000), 0).unwrap();
    until("it is there", || pool.status()["files"]["staged"] == 1);
    mount.0.kill().unwrap();
    mount.0.wait().unwrap();
    drop(file);
    until("it is torn", || pool.status()["files"]["torn"] == 1);
    assert_eq!(pool.status()["files"]["staged"], 0);
    for process in &mut benefactors {
        signal(&process.0, rustix::process::Signal::TERM);
    }
    for process in &mut benefactors {
        until("it ends", || process.0.try_wait().unwrap().is_some_and(|status| status.success()));
    }
    done(&["umount", &point]);
}

#[test]
fn a_benefactor_that_no_manager_answers_says_what_it_waits_for_and_ends_when_it_is_told_to() {
    let mut pool = Apart::new();
    let (mut process, mut told) = pool.heard_benefactor();
    let mut line = String::new();
    BufReader::new(process.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("lends 64 MiB"), "{line}");
    pool.manager.0.kill().unwrap();
    signal(&process.0, rustix::process::Signal::TERM);
    let line = told.next().unwrap();
    assert!(
        line.starts_with("surgetank: no manager answers, so whether everything is drained is not known: "),
        "{line}"
    );
    assert!(line.contains("without limit") && line.contains("a second signal ends it at once"), "{line}");
    assert!(process.0.try_wait().unwrap().is_none(), "it waits");
    signal(&process.0, rustix::process::Signal::TERM);
    assert_eq!(process.0.wait().unwrap().code(), Some(0));
    assert_eq!(told.next(), None, "it is said once");
    // One that has nothing yet does not wait.
    let (mut process, mut told) = pool.heard_benefactor();
    let line = told.next().unwrap();
    assert!(line.starts_with(&format!("surgetank: no manager answers at {}: ", pool.at())), "{line}");
    signal(&process.0, rustix::process::Signal::TERM);
    assert_eq!((process.0.wait().unwrap().code(), told.next()), (Some(0), None));
}

#[test]
fn what_has_lost_a_copy_is_not_replicated_until_it_is_there_again() {
    if !can_mount() {
        return;
    }
    let pool = Apart::new();
    let place = &pool.place;
    let (point, target) = (place.text("mnt"), place.text("target"));
    let [(one, here), _two] = pool.two();
    done(&["mount", &pool.address, &point, "--target", &target, "--token", &pool.key]);
    let file = fs::File::create(place.at("mnt/file")).unwrap();
    file.write_all_at(&bytes(1, 5 * MIB), 0).unwrap();
    file.sync_all().unwrap();
    let path = place.text("mnt/file");
    let wait = |time: &str| run(&["pool", "wait", &path, "--state", "replicated", "--timeout", time]);
    assert!(wait("10 s").status.success());
    drop(one);
    until("its death is noticed", || pool.status()["files"]["repairing"] == 1);
    let late = run(&["pool", "wait", &path, "--state", "replicated", "--timeout", "500 ms", "--json"]);
    let told = String::from_utf8(late.stderr).unwrap();
    assert!(told.contains("the time is over, and ") && told.contains(" is repairing"), "{told}");
    let answer: Value = serde_json::from_slice(&late.stdout).unwrap();
    let expected =
        serde_json::json!({"state": "replicated", "is_reached": false, "files": 1, "states": {"repairing": 1}});
    assert_eq!((late.status.code(), answer), (Some(1), expected));
    let files = pool.status()["files"].clone();
    assert_eq!((&files["replicated"], &files["repairing"]), (&0.into(), &1.into()));
    let _one = pool.benefactor("1", &here);
    assert!(wait("60 s").status.success());
    assert_eq!(pool.status()["files"]["repairing"], 0);
    drop(file);
    done(&["pool", "wait", &path, "--state", "drained"]);
    until("it is unmounted", || run(&["umount", &point]).status.success());
}

#[test]
fn a_wait_ends_in_time_though_the_pool_does_not_answer() {
    if !can_mount() {
        return;
    }
    let mut pool = Apart::new();
    let place = &pool.place;
    let (point, target, path) = (place.text("mnt"), place.text("target"), place.text("mnt/file"));
    let _two = pool.two();
    done(&["mount", &pool.address, &point, "--target", &target, "--token", &pool.key]);
    fs::write(&path, bytes(1, MIB)).unwrap();
    let wait = |time: &str| run(&["pool", "wait", &path, "--state", "drained", "--timeout", time]);
    assert!(wait("60 s").status.success());
    // Once more, in no time: it is there.
    assert!(wait("0 s").status.success());
    drop(pool.manager);
    let ended = wait("100 ms");
    let told = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{told}");
    let expected = format!("the time is over, and the mount of {path} has not answered: see `surgetank pool status`");
    assert!(told.contains(&expected), "{told}");
    let address = pool.address.strip_prefix("pool://").unwrap();
    (pool.manager, _) = Started::new(&["pool", "manager", "--directory", &place.text("pool"), "--listen", address]);
    until("it answers again", || wait("60 s").status.success());
    until("it is unmounted", || run(&["umount", &point]).status.success());
}

/// What starts a benefactor with a directory for its SSD.
fn with_ssd(place: &Place, managers: &str, listen: &str, number: &str, more: &[&str]) -> Vec<String> {
    let (key, directory) = (place.text("pool/key"), place.text(&format!("ssd{number}")));
    let arguments =
        ["pool", "benefactor", "--managers", managers, "--listen", listen, "--domain", number, "--id", number];
    let of_ssd = ["--key", &key, "--ssd-directory", &directory];
    [&arguments[..], &of_ssd[..], more].concat().into_iter().map(str::to_owned).collect()
}

#[test]
fn what_benefactors_in_processes_of_their_own_have_on_ssd_outlives_them_all() {
    if !can_mount() {
        return;
    }
    let pool = Apart::new();
    let Apart { place, key, address, .. } = &pool;
    let (point, at) = (place.text("mnt"), pool.at());
    let start = |listen: &str, number: &str, more: &[&str]| {
        let arguments = with_ssd(place, at, listen, number, more);
        let (process, line) = Started::new(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let words: Vec<&str> = line.split_whitespace().collect();
        (process, words[3].to_owned(), words[4..].join(" "))
    };
    let refuse = |listen: &str, number: &str, more: &[&str]| {
        let arguments = with_ssd(place, at, listen, number, more);
        refused(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let classes = || {
        let status = pool.status();
        let classes = status["benefactors"].as_array().unwrap().iter();
        classes.map(|of| of["class"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (code, told) = refuse("127.0.0.1:0", "1", &["--ssd", "1 MiB"]);
    assert!(code == 2 && told.contains("--ssd: ") && told.contains("lend at least"), "{told}");
    let (code, told) = refuse("127.0.0.1:0", "1", &["--leaving"]);
    assert!(code == 1 && told.contains("nothing of a benefactor is there"), "{told}");
    let lends = ["--memory", "64 MiB", "--ssd", "256 MiB"];
    let (one, here, line) = start("127.0.0.1:0", "1", &lends);
    assert_eq!(line, "lends 64 MiB and 256 MiB of SSD");
    let (other, _, line) = start("127.0.0.1:0", "2", &["--memory", "0B", "--ssd", "256 MiB"]);
    assert_eq!(line, "lends 256 MiB of SSD");
    until("both lend", || classes() == ["ms", "s"]);
    let target = place.text("target");
    done(&["mount", address, &point, "--target", &target, "--token", key, "--durable", "copies=2,media=ssd"]);
    // A target that is gone keeps everything in the pool. A new name would wait for it.
    let file = fs::File::create(place.at("mnt/file")).unwrap();
    fs::rename(place.at("target"), place.at("aside")).unwrap();
    file.write_all_at(&bytes(1, 20 * MIB), 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    // Dropping them is SIGKILL.
    drop((one, other));
    fs::rename(place.at("ssd1"), place.at("unmounted")).unwrap();
    let (code, told) = refuse(&here, "1", &lends);
    assert!(code == 1 && told.contains("benefactor 1 lent 256 MiB of SSD when it ran last"), "{told}");
    assert!(told.contains("mount it there, or accept the loss") && told.contains("--forget-ssd"), "{told}");
    assert!(!place.at("ssd1").exists(), "nothing is made where an SSD is to be mounted");
    fs::rename(place.at("unmounted"), place.at("ssd1")).unwrap();
    fs::rename(place.at("aside"), place.at("target")).unwrap();
    // One of them returns only to be drained.
    let (leaving, _, line) = start(&here, "1", &[&lends[..], &["--leaving"]].concat());
    assert_eq!(line, "is leaving: it takes nothing new");
    done(&["pool", "wait", &place.text("mnt/file"), "--state", "drained"]);
    assert!(fs::read(place.at("target/file")).unwrap() == bytes(1, 20 * MIB));
    let leave = |number: &str| run(&["pool", "leave", number, address, "--token", key]);
    let told = String::from_utf8(leave("1").stderr).unwrap();
    assert!(told.contains("benefactor 1 is alive: end its process first") && told.lines().count() == 1, "{told}");
    drop(leaving);
    for number in ["1", "2"] {
        until("its lease has ended, and it leaves", || leave(number).status.success());
    }
    let told = String::from_utf8(leave("1").stderr).unwrap();
    assert!(told.contains("no benefactor 1 is expected") && told.lines().count() == 1, "{told}");
    until("it is unmounted", || run(&["umount", &point]).status.success());
}
