//! `serve` and the commands that talk to it, over NBD in a temporary directory: no rights needed.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

struct Server {
    child: Child,
    directory: tempfile::TempDir,
    socket: PathBuf,
}

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_surgetank"));
    for variable in ["SURGETANK_SOCKET", "SURGETANK_CONFIG", "SURGETANK_LOG"] {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

fn configuration(directory: &Path) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    format!(
        "state_directory = \"{}\"\nrun_directory = \"{}\"\n\
         [provider.local]\ndirectory = \"{}\"\n\
         [device.data]\nbacking = \"{}\"\nexport = \"nbd\"\nbacking_limits = {{ bandwidth = \"33 MiB/s\" }}\n\
         [device.data.caching]\nprovider = \"local\"\nvolume_type = \"fast\"\ninitial_size = \"64 MiB\"\n\
         [device.data.policy]\nsampling = \"50 ms\"\nsize_grain = \"16 MiB\"\n",
        at("state"),
        at("run"),
        at("volumes"),
        at("backing.img"),
    )
}

impl Server {
    fn start() -> Self {
        Self::with("")
    }

    /// A daemon that is ready, as systemd would know it, with more settings of the provider.
    fn with(provider: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("surgetank.toml");
        let section = "[provider.local]\n";
        let text = configuration(directory.path()).replace(section, &format!("{section}{provider}\n"));
        std::fs::write(&file, text).unwrap();
        std::fs::File::create(directory.path().join("backing.img")).unwrap().set_len(256 << 20).unwrap();
        let notify = directory.path().join("notify");
        let systemd = UnixDatagram::bind(&notify).unwrap();
        systemd.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut child = binary()
            .args(["serve", "--config", file.to_str().unwrap()])
            .env("NOTIFY_SOCKET", &notify)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("data  nbd+unix://"), "{line}");
        let mut message = [0; 64];
        let length = systemd.recv(&mut message).unwrap();
        assert_eq!(&message[..length], b"READY=1");
        let socket = directory.path().join("run/control.sock");
        Self { child, directory, socket }
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        binary().args(arguments).arg("--socket").arg(&self.socket).output().unwrap()
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.ask(&[arguments, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn terminate(&self) {
        let id = i32::try_from(self.child.id()).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(id).unwrap(), rustix::process::Signal::TERM)
            .unwrap();
    }

    /// Ends it within a minute, or fails.
    fn stop(mut self) -> (i32, String) {
        self.terminate();
        let mut stderr = self.child.stderr.take().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut log = String::new();
            stderr.read_to_string(&mut log).unwrap();
            let _ = tell.send(log);
        });
        let log = told.recv_timeout(Duration::from_secs(60)).expect("it ends");
        (self.child.wait().unwrap().code().unwrap_or(-1), log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The files that applications copy.
fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/clients")
}

#[test]
fn applications_in_python_and_c_announce_bursts() {
    let server = Server::start();
    let script = "import surgetank, sys
surgetank.boost('data', burst_bytes=float(64 << 20), starts_in_s=0.5)
device, = surgetank.status()['devices']
assert device['phase'] != 'idle', device
try:
    surgetank.boost('dta')
except surgetank.Refused as refused:
    print(refused)
surgetank.drain('data')
";
    let python = Command::new("python3")
        .args(["-c", script])
        .env("PYTHONPATH", clients())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SURGETANK_SOCKET", &server.socket)
        .output()
        .unwrap();
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
    assert_eq!(python.stdout, b"there is no device \"dta\": this daemon has data\n");
    server.json(&["drain", "data", "--wait"]);

    let source = server.directory.path().join("application.c");
    let program = server.directory.path().join("application");
    let text = "#include \"surgetank.h\"
int main(void)
{
    char why[256] = \"\";
    if (surgetank_boost(NULL, \"data\", 64ULL << 20, 0, why, sizeof why) != 0)
        return puts(why), 1;
    if (surgetank_boost(NULL, \"dta\", 0, 0, why, sizeof why) == 0)
        return 2;
    puts(why);
    if (surgetank_boost(\"/nowhere\", \"data\", 0, 0, why, sizeof why) == 0)
        return 3;
    puts(why);
    return surgetank_drain(NULL, \"data\", why, sizeof why) == 0 ? 0 : 4;
}
";
    std::fs::write(&source, text).unwrap();
    let strict = ["-std=c99", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror"];
    let compiled =
        Command::new("cc").args(strict).arg("-I").arg(clients()).arg("-o").args([&program, &source]).output();
    let compiled = compiled.unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(&program).env("SURGETANK_SOCKET", &server.socket).output().unwrap();
    let said = String::from_utf8(ran.stdout).unwrap();
    assert_eq!(ran.status.code(), Some(0), "{said}");
    assert!(said.contains("there is no device") && said.contains("/nowhere: No such file or directory"), "{said}");
    server.json(&["drain", "data", "--wait"]);
    let boosts = &server.json(&["history"])["devices"][0]["boosts"];
    assert_eq!(boosts.as_array().unwrap().len(), 2);
    assert!(boosts[0]["expected_saved_s"].is_number(), "what is announced with its size has an expectation");
}

#[test]
fn a_burst_is_announced_with_its_size_and_time() {
    let server = Server::start();
    let announced = server.json(&["boost", "data", "--for", "16 MiB", "--in", "200 ms", "--wait"]);
    assert_eq!(announced["phase"], "boost");
    assert_eq!(announced["caching"]["size_gib"], 0.03125, "what 16 MiB need, and the log, in steps of 16 MiB");
    server.json(&["drain", "data", "--wait"]);
    let wrong = server.ask(&["boost", "data", "--for", "16"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("unit"));
}

#[test]
fn a_device_is_served_boosted_drained_and_stopped() {
    let server = Server::start();
    let status = server.json(&["status"]);
    let device = &status["devices"][0];
    assert_eq!((&device["name"], &device["phase"], &device["export"]), (&"data".into(), &"idle".into(), &"nbd".into()));
    assert!(device["caching"].is_null() && device["cost_agbs"].is_number() && device["boosts"] == 0);

    let boosted = server.json(&["boost", "data", "--wait"]);
    assert_eq!(boosted["phase"], "boost");
    assert_eq!(boosted["caching"]["size_gib"], 0.0625);
    let people = server.ask(&["status"]);
    assert!(String::from_utf8(people.stdout).unwrap().contains("64 MiB"));

    let drained = server.json(&["drain", "data", "--wait"]);
    assert_eq!((&drained["phase"], &drained["boosts"]), (&"idle".into(), &1.into()));
    assert!(server.json(&["gc"])["deleted"].as_array().unwrap().is_empty());

    let history = server.json(&["history", "data"]);
    let past = &history["devices"][0]["boosts"];
    assert_eq!((past.as_array().unwrap().len(), &past[0]["cause"]), (1, &"somebody asked for it".into()));
    assert!(past[0]["cache_gib"] == 0.0625 && past[0]["attach_s"].is_number() && past[0]["cost_agbs"].is_number());
    let page = server.directory.path().join("savings");
    let people = server.ask(&["history", "--out", page.to_str().unwrap()]);
    assert!(String::from_utf8(people.stdout).unwrap().contains("data: 1 boost saved"));
    assert!(std::fs::read_to_string(page.join("history.html")).unwrap().contains("<svg"));
    let unknown = server.ask(&["history", "dta"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8(unknown.stderr).unwrap().contains("did you mean \"data\"?"));

    let wrong = server.ask(&["boost", "dta"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("did you mean \"data\"?"));

    let file = server.directory.path().join("surgetank.toml");
    let second = binary().args(["serve", "--config", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8(second.stderr).unwrap().contains("another surgetank daemon"));

    let (status, log) = server.stop();
    assert_eq!(status, 0, "{log}");
}

#[test]
fn a_refused_boost_is_not_waited_for() {
    let server = Server::with("quota_bytes = \"32 MiB\"");
    let refused = server.ask(&["boost", "data", "--wait"]);
    assert_eq!(refused.status.code(), Some(1));
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(why.starts_with("surgetank: device data: ") && why.contains("quota"), "{why}");
    assert_eq!(server.stop().0, 0);
}

#[test]
fn a_backing_volume_that_grew_is_followed() {
    let server = Server::start();
    let backing = std::fs::File::options().write(true).open(server.directory.path().join("backing.img")).unwrap();
    backing.set_len(512 << 20).unwrap();
    let people = String::from_utf8(server.ask(&["resize", "data"]).stdout).unwrap();
    assert_eq!(people, "data: grown from 256 MiB to 512 MiB\n");
    let again = server.json(&["resize", "data"]);
    assert_eq!((&again["size_gib"], &again["grown"]), (&0.5.into(), &false.into()));
    let people = String::from_utf8(server.ask(&["resize", "data"]).stdout).unwrap();
    assert!(people.starts_with("data: still 512 MiB: its backing volume has not grown"), "{people}");
    assert_eq!(server.stop().0, 0);
}

#[test]
fn a_daemon_is_found_by_its_configuration() {
    let mut server = Server::start();
    let file = server.directory.path().join("surgetank.toml");
    let ask = |arguments: &[&str]| binary().args(arguments).arg("--config").arg(&file).output().unwrap();
    let text = |output: Output| String::from_utf8(output.stdout).unwrap();
    assert!(text(ask(&["boost", "data", "--wait"])).contains("phase boost"));
    assert!(text(ask(&["detach", "data", "--wait"])).contains("phase idle"));
    // A daemon runs, so it is the one who is asked; nothing is lost, so this is a plain detach.
    assert!(text(ask(&["detach", "data", "--accept-loss", "--wait"])).contains("phase idle"));
    let named = binary().arg("status").env("SURGETANK_CONFIG", &file).output().unwrap();
    assert!(text(named).contains("nbd+unix://"));
    let checked = text(ask(&["serve", "--check"]));
    assert!(checked.contains("valid, 1 device (a daemon serves it now"), "{checked}");
    // Whatever is wrong with the rest of the file by now.
    let mut broken = std::fs::read_to_string(&file).unwrap();
    broken += "unknown = 3\n";
    std::fs::write(&file, broken).unwrap();
    assert!(text(ask(&["status"])).contains("nbd+unix://"));
    std::fs::write(&file, configuration(server.directory.path())).unwrap();
    server.terminate();
    server.child.wait().unwrap();
    let gone = ask(&["status"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(
        String::from_utf8(gone.stderr).unwrap().contains(&format!("no daemon answers at {}", server.socket.display()))
    );
    // Now the records themselves would be changed, with --wait as without.
    let refused = ask(&["detach", "data", "--accept-loss", "--wait"]);
    assert_eq!(refused.status.code(), Some(1));
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(why.contains("nothing is lost"), "{why}");
}

#[test]
fn a_daemon_whose_control_socket_is_gone_ends() {
    let server = Server::start();
    // What a cleaner of temporary directories leaves.
    std::fs::remove_file(&server.socket).unwrap();
    let (status, log) = server.stop();
    assert_eq!(status, 0, "{log}");
}

#[test]
fn the_unit_bounds_a_stop_and_closes_the_run_directory() {
    let unit = include_str!("../../../packaging/systemd/surgetank.service");
    let setting = |name: &str| unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    assert_eq!(setting("TimeoutStopSec"), Some("10min"));
    assert_eq!(setting("RuntimeDirectoryMode"), Some("0700"));
}

#[test]
fn what_a_daemon_answers_commands_no_terminal() {
    const EVIL: &str = "no\nroom\r\u{1b}[2J\u{7f}\u{9b}31m\u{202e}\u{2028}";
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let swept = serde_json::json!({ "deleted": [EVIL], "detached": [], "warnings": [EVIL] });
    let answers =
        [serde_json::json!({ "ok": swept }), serde_json::json!({ "ok": swept }), serde_json::json!({ "error": EVIL })];
    let answering = std::thread::spawn(move || {
        for answer in answers {
            let (stream, _) = listener.accept().unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            (&stream).write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
    });
    let ask = |arguments: &[&str]| {
        let output = binary().args(arguments).arg("--socket").arg(&socket).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let plain = |character| character == '\n' || surgetank_model::text::is_plain(character);
        assert!(text.chars().all(plain), "{text:?}");
        (output.status.code(), text)
    };
    let (status, people) = ask(&["gc"]);
    assert_eq!((status, people.lines().count()), (Some(0), 2), "{people}");
    assert!(people.contains("deleted no\\nroom\\r\\u{1b}[2J"), "{people}");
    let (status, document) = ask(&["gc", "--json"]);
    assert_eq!(status, Some(0));
    assert_eq!(serde_json::from_str::<Value>(&document).unwrap(), swept, "it is the same document");
    let (status, refusal) = ask(&["gc"]);
    assert_eq!((status, refusal.lines().count()), (Some(1), 1), "{refusal}");
    assert!(refusal.starts_with("surgetank: no\\nroom"), "{refusal}");
    answering.join().unwrap();
}
