//! Other people's programs that write and verify, on a mounted pool.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::fixture::{Mounted, can_mount, pool, until_drained};

/// Runs a program, which must succeed; `false`: this machine does not have it.
fn run(program: &Path, arguments: &[&str]) -> bool {
    let output = match Command::new(program).args(arguments).stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: {}: {error}: run `scripts/setup test`", program.display());
            return false;
        }
    };
    let told = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&told));
    true
}

#[test]
fn fsx_finds_nothing() {
    if !can_mount() {
        return;
    }
    let fsx = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin/fsx");
    let pool = pool(3, 128);
    let mounted = Mounted::new(&pool, 2);
    let place = tempfile::tempdir().unwrap();
    // Files of several chunks, of which holes are made, and of a part of one. What the pool does not have is not asked for.
    for (seed, length, operations) in [("1", 262_144, "1500"), ("2", 3_145_728, "400")] {
        let configuration = place.path().join("fsx.toml");
        let text = format!(
            "flen = {length}\n[opsize]\nmin = 1\nmax = {}\n[weights]\nclose_open = 1\ntruncate = 2\nfsync = 1\nfdatasync = 1\n\
             punch_hole = 3\nposix_fallocate = 1\nmapread = 0\nmapwrite = 0\nread = 10\nwrite = 10\n",
            length / 4
        );
        std::fs::write(&configuration, text).unwrap();
        let file = mounted.at(&format!("fsx{seed}"));
        let options = ["-q", "-f", configuration.to_str().unwrap(), "-P", place.path().to_str().unwrap()];
        let arguments = [&options[..], &["-N", operations, "-S", seed, file.to_str().unwrap()]].concat();
        if !run(&fsx, &arguments) {
            break;
        }
        until_drained(&file);
    }
    mounted.end();
}

#[test]
fn fio_verifies_what_several_jobs_write_into_one_file() {
    if !can_mount() {
        return;
    }
    let pool = pool(3, 128);
    let mounted = Mounted::new(&pool, 2);
    let file = mounted.at("fio");
    let name = format!("--filename={}", file.display());
    let job = ["--name=job", &name, "--rw=randwrite", "--bs=64k", "--numjobs=4", "--size=4m", "--offset_increment=4m"];
    let verify = [
        "--verify=crc32c",
        "--verify_state_save=0",
        "--do_verify=1",
        "--fsync=16",
        "--end_fsync=1",
        "--randseed=1",
        "--ioengine=psync",
    ];
    if run(Path::new("fio"), &[&job[..], &verify[..]].concat()) {
        until_drained(&file);
        let target = format!("--filename={}", pool.target().join("fio").display());
        let job =
            ["--name=job", &target, "--rw=randwrite", "--bs=64k", "--numjobs=4", "--size=4m", "--offset_increment=4m"];
        let verify =
            ["--verify=crc32c", "--verify_state_save=0", "--verify_only=1", "--randseed=1", "--ioengine=psync"];
        run(Path::new("fio"), &[&job[..], &verify[..]].concat());
    }
    mounted.end();
}
