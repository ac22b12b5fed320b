//! The command line as scripts and people meet it: help, exit statuses, errors, JSON.

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn surgetank(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_surgetank"));
    for variable in ["SURGETANK_SOCKET", "SURGETANK_CONFIG", "SURGETANK_LOG"] {
        command.env_remove(variable);
    }
    command.args(arguments).stdin(Stdio::null());
    command.output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The command fails with this status, with one sentence on stderr and nothing on stdout.
#[track_caller]
fn refused(arguments: &[&str], status: i32) -> String {
    let output = surgetank(arguments);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", stderr(&output));
    assert_eq!(stdout(&output), "", "{arguments:?}");
    let said = stderr(&output);
    assert!(said.starts_with("surgetank: ") && said.trim_end().lines().count() == 1, "{arguments:?}: {said}");
    said
}

const COMMANDS: [&str; 11] =
    ["serve", "status", "boost", "drain", "detach", "resize", "gc", "inspect", "mrc", "demo", "completions"];

#[test]
fn help_lists_the_commands_and_hides_the_internal_ones() {
    for flag in ["--help", "-h", "help"] {
        let output = surgetank(&[flag]);
        assert_eq!(output.status.code(), Some(0));
        let text = stdout(&output);
        for command in COMMANDS {
            assert!(text.contains(&format!("\n  {command}")), "{command} in {text}");
        }
        assert!(!text.contains("demo-writer") && !text.contains("\n  man"), "{text}");
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn every_command_has_help_with_examples() {
    for command in COMMANDS {
        let output = surgetank(&[command, "--help"]);
        assert_eq!(output.status.code(), Some(0), "{command}");
        assert!(stdout(&output).contains(&format!("Examples:\n  surgetank {command}")), "{command}");
    }
}

#[test]
fn the_version_is_printed() {
    assert_eq!(stdout(&surgetank(&["--version"])), format!("surgetank {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_use_is_status_2() {
    for arguments in [
        &[][..],
        &["fly"],
        &["status", "--fast"],
        &["provider"],
        &["boost"],
        &["inspect"],
        &["inspect", "/dev/null", "--to", "x"],
        &["inspect", "/dev/null", "--apply"],
        &["completions", "tcsh"],
        &["demo", "--policy", "best"],
        &["demo", "--seed", "many"],
        &["detach", "data", "--config", "x.toml"],
        &["status", "--config", "x.toml", "--socket", "x.sock"],
    ] {
        let output = surgetank(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(stdout(&output), "", "{arguments:?}");
        assert!(!stderr(&output).is_empty());
    }
}

#[test]
fn mistakes_in_flags_are_told_in_the_same_voice() {
    for (arguments, expected) in [
        (&[][..], "requires a subcommand"),
        (&["fly"], "unrecognized subcommand 'fly'"),
        (&["status", "--fast"], "unexpected argument '--fast'"),
        (&["price"], "--capacity <S>"),
        (&["price", "--capacity", "4"], "has no unit"),
        (&["mrc", "a", "--format", "pcap"], "[possible values: plain, msr"),
        (&["mrc", "a", "--formt", "csv"], "a similar argument exists: '--format'"),
        (&["recommend", "--interval", "1 s"], "--trace <TRACE>"),
        (&["pool", "up", "--memory", "4"], "; see surgetank pool up --help"),
        (&["pool", "up", "--benefactors", "-1"], "a value that begins with '-1' is negative: numbers, sizes and times"),
        (&["pool", "leave", "-1"], "a value that begins with '-1' is negative"),
        (&["pool", "wait", "/", "--state", "drained", "--timeout", "-1s"], "a value that begins with '-1' is negative"),
        (&["pool", "up", "-x"], "unexpected argument '-x'"),
        (&["pool", "up", "--scrub", "1ns"], "\"1ns\" is too short: name a second at least"),
    ] {
        let said = refused(arguments, 2);
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert!(!said.contains("error:") && !said.contains("Usage:"), "{arguments:?}: {said}");
        assert!(said.contains("; see surgetank") && said.trim_end().ends_with("--help"), "{arguments:?}: {said}");
    }
}

#[test]
fn without_a_daemon_the_remedy_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("none.sock");
    let socket = socket.to_str().unwrap();
    for arguments in [
        &["status", "--socket", socket][..],
        &["status", "--json", "--socket", socket],
        &["boost", "data", "--socket", socket],
        &["drain", "data", "--wait", "--socket", socket],
        &["detach", "data", "--socket", socket],
        &["resize", "data", "--socket", socket],
        &["gc", "--socket", socket],
    ] {
        let said = refused(arguments, 1);
        assert!(said.contains(socket) && said.contains("surgetank serve"), "{said}");
    }
}

#[test]
fn errors_in_a_configuration_have_file_line_and_column() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bad.toml");
    let path = file.to_str().unwrap();
    for (text, place, part) in [
        ("[device.data]\nbackin = \"/dev/vdb\"\n", "2:1", "backing"),
        ("[device.data]\nbacking = \"/x\"\nbacking_limits = { bandwidth = 33 }\n", "3:33", "unit"),
        ("[device.data]\nbacking = \"/x\"\nbacking_limits = { bandwidth = \"33 MiB\" }\n", "3:32", "MiB/s"),
        ("[device.data\n", "1:13", ""),
        ("", "", "device"),
    ] {
        std::fs::write(&file, text).unwrap();
        let said = refused(&["serve", "--config", path], 2);
        let line: usize = place.split(':').next().and_then(|line| line.parse().ok()).unwrap_or(0);
        let prefix = if line == 0 { format!("surgetank: {path}: ") } else { format!("surgetank: {path}:{line}:") };
        assert!(said.starts_with(&prefix) && said.contains(part), "{text:?}: {said}");
    }
    std::fs::write(&file, [0xff, 0xfe, 0x00]).unwrap();
    refused(&["serve", "--config", path], 2);
    let missing = directory.path().join("missing.toml");
    assert!(refused(&["serve", "--config", missing.to_str().unwrap()], 2).contains("missing.toml"));
}

#[test]
fn a_check_sees_what_a_start_would_refuse() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let (file, backing) = (at("surgetank.toml"), at("backing"));
    let text = format!(
        "state_directory = \"{}\"\nrun_directory = \"{}\"\n[provider.local]\ndirectory = \"{}\"\n\
         [device.data]\nbacking = \"{backing}\"\nexport = \"nbd\"\nbacking_limits = {{ bandwidth = \"33 MiB/s\" }}\n\
         caching = {{ initial_size = \"64 MiB\" }}\npolicy = {{ size_grain = \"16 MiB\" }}\n",
        at("state"),
        at("run"),
        at("disk/volumes")
    );
    std::fs::write(&file, &text).unwrap();
    let said = refused(&["serve", "--check", "--config", &file], 1);
    let parts =
        ["because", &at("disk"), "does not exist: mount the disk", &format!("device data: {backing} does not exist")];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");

    std::fs::create_dir(at("disk")).unwrap();
    std::fs::create_dir(&backing).unwrap();
    let said = refused(&["serve", "--check", "--config", &file], 1);
    assert!(said.contains("is neither a file nor a block device") && !said.contains("because"), "{said}");

    std::fs::remove_dir(&backing).unwrap();
    std::fs::File::create(&backing).unwrap().set_len(256 << 20).unwrap();
    let check = || {
        let output = surgetank(&["serve", "--check", "--config", &file]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(stdout(&output).ends_with("valid, 1 device\n"), "{}", stdout(&output));
        stderr(&output)
    };
    assert_eq!(check(), "");
    for made in ["state", "run", "disk/volumes"] {
        assert!(!Path::new(&at(made)).exists(), "{made} was made");
    }

    std::fs::create_dir(at("run")).unwrap();
    std::fs::write(at("run/control.sock"), "").unwrap();
    let said = refused(&["serve", "--check", "--config", &file], 1);
    assert!(said.contains("something that is no socket lies there; move it away"), "{said}");
    std::fs::remove_dir_all(at("run")).unwrap();
    std::fs::write(&file, text.replace(&at("state"), &format!("{backing}/state"))).unwrap();
    let said = refused(&["serve", "--check", "--config", &file], 1);
    assert!(said.contains(&format!("{backing} cannot be written, as state_directory must be: ")), "{said}");

    std::fs::write(&file, text.replace("64 MiB", "1 GiB")).unwrap();
    let said = check();
    assert!(said.contains("device data: initial_size is 1 GiB, and the backing volume has 256 MiB"), "{said}");
    std::fs::write(&file, text.replace("volumes\"\n", "volumes\"\nquota_bytes = \"32 MiB\"\n")).unwrap();
    let said = check();
    assert!(said.contains("initial_size is 64 MiB, and quota_bytes of [provider.local] is 32 MiB"), "{said}");

    std::fs::write(&file, text.replace("volumes\"\n", "volumes\"\nattach_limit = 0\n")).unwrap();
    let said = check();
    assert!(
        said.contains("attach_limit of [provider.local] is 0: no boost begins until you write a larger one"),
        "{said}"
    );
    let coarse = text.replace("16 MiB", "128 MiB");
    std::fs::write(&file, coarse.replace("volumes\"\n", "volumes\"\nquota_bytes = \"96 MiB\"\n")).unwrap();
    let said = check();
    let parts = [
        "initial_size is 64 MiB, and sizes are multiples of size_grain, 128 MiB: the first one has 128 MiB",
        "the first caching volume has 128 MiB, and quota_bytes of [provider.local] is 96 MiB: no boost begins until you write a \
         smaller initial_size or size_grain or make room",
    ];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");

    let alias = at("alias");
    std::os::unix::fs::symlink(&backing, &alias).unwrap();
    let other =
        format!("{text}[device.other]\nbacking = \"{alias}\"\nbacking_limits = {{ bandwidth = \"1 MiB/s\" }}\n");
    std::fs::write(&file, other).unwrap();
    let said = refused(&["serve", "--check", "--config", &file], 1);
    assert!(said.contains("device other: ") && said.contains("is the backing volume of the device data"), "{said}");
}

#[test]
fn inspect_refuses_what_is_no_caching_volume() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("empty"), "").unwrap();
    std::fs::write(path("garbage"), vec![0xa5; 1 << 20]).unwrap();
    std::fs::write(path("zeroes"), vec![0; 1 << 20]).unwrap();
    for name in ["empty", "garbage", "zeroes"] {
        let said = refused(&["inspect", path(name).to_str().unwrap()], 2);
        assert!(said.contains("is not a surgetank caching volume"), "{said}");
    }
    for other in [path("missing").as_path(), directory.path(), Path::new("/dev/null")] {
        refused(&["inspect", "--json", other.to_str().unwrap()], 2);
    }
}

#[test]
fn completions_are_written_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = surgetank(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        let script = stdout(&output);
        assert!(script.contains("inspect") && !script.contains("demo-writer"), "{shell}");
    }
}

#[test]
fn man_pages_are_written_for_every_command() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("man1");
    assert_eq!(surgetank(&["man", target.to_str().unwrap()]).status.code(), Some(0));
    let page = std::fs::read_to_string(target.join("surgetank.1")).unwrap();
    assert!(page.contains(".TH surgetank 1"), "{page}");
    for command in COMMANDS {
        assert!(target.join(format!("surgetank-{command}.1")).is_file(), "{command}");
    }
    assert!(!target.join("surgetank-demo-writer.1").exists());
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_surgetank"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn what_stdout_does_not_take_is_told() {
    for arguments in [&["--help"][..], &["--version"], &["pool", "--help"], &["completions", "bash"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_surgetank"));
        let output = command.args(arguments).stdin(Stdio::null()).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let told = "surgetank: cannot write the answer to stdout: No space left on device (os error 28)\n";
        assert_eq!(stderr(&output), told, "{arguments:?}");
    }
}

#[test]
fn a_token_is_made_where_the_key_of_the_pool_is() {
    let said = refused(&["pool", "token", "--directory", "/nope", "--target", "/tmp"], 2);
    assert!(said.contains("/nope/key cannot be read") && said.contains("the directory of the pool"), "{said}");
    assert!(!said.contains("ask whoever"), "{said}");
}

#[test]
fn gc_of_accounts_takes_no_age_at_which_a_volume_may_be_needed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("surgetank.toml");
    let volumes = directory.path().join("volumes");
    // Of a machine that serves no device.
    std::fs::write(&file, format!("[provider.local]\ndirectory = {volumes:?}\n")).unwrap();
    let file = file.to_str().unwrap();
    let with = |more: &[&'static str]| [&["gc", "--account", "--config", file], more].concat();
    let said = refused(&with(&["--dead-for", "9min", "--delete"]), 2);
    assert!(said.contains("--dead-for") && said.contains("write a longer time"), "{said}");
    refused(&["gc", "--delete"], 2);
    let said = refused(&["gc", "--account", "--socket", "/nowhere"], 2);
    assert!(said.contains("--config"), "{said}");
    // A provider that has no account is left out, and nothing is asked of it.
    let output = surgetank(&with(&["--dead-for", "2h", "--json"]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let answer: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let expected = serde_json::json!({
        "deletes": false, "dead_for_s": 7200.0, "accounts": [], "left_out": ["local"], "volumes": [], "errors": [],
    });
    assert_eq!(answer, expected);
    assert!(!volumes.exists());
}
