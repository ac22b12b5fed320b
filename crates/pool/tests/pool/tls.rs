//! Mutual TLS, and a pool whose manager and benefactors are on different machines.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::network::Network;
use crate::support::{LONG, MIB, bytes, read, run, same, until, write};
use surgetank_model::Bytes;
use surgetank_pool::client::{Config, Error, PoolClient};
use surgetank_pool::processes::{BenefactorConfig, BenefactorProcess, ManagerConfig, ManagerProcess};
use surgetank_pool::security::certificates::{self, AUTHORITY_KEY};
use surgetank_pool::security::tls::{AUTHORITY, CLIENT, SERVER, Tls};
use surgetank_pool::security::token::{Claims, Grant};
use surgetank_pool::security::{Access, Credentials, files};
use surgetank_pool_core::meta::Durability;
use surgetank_pool_core::placement::Media;

const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// What processes of this test program log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The one of this program.
    fn of_program() -> Self {
        static LOG: std::sync::OnceLock<Log> = std::sync::OnceLock::new();
        let start = || {
            let log = Self::default();
            let writer = log.clone();
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
            log
        };
        LOG.get_or_init(start).clone()
    }

    fn length(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Whether it has this text behind that place.
    fn has(&self, behind: usize, part: &str) -> bool {
        String::from_utf8_lossy(&self.0.lock().unwrap()[behind..]).contains(part)
    }
}

/// Certificates of an authority of its own, for these hosts.
fn pki(directory: &Path, name: &str, hosts: &[&str], valid: Duration) -> PathBuf {
    let directory = directory.join(name);
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    certificates::make(&directory, &hosts, &["mount".to_owned()], valid).unwrap();
    directory
}

fn start(config: &ManagerConfig) -> Result<ManagerProcess, surgetank_pool::local::Error> {
    Ok(ManagerProcess::start(config, |_| (), || false)?.expect("nobody tells it to end"))
}

fn manager(directory: &Path, name: &str, certificates: Option<PathBuf>) -> ManagerProcess {
    let listen = "127.0.0.1:0".to_owned();
    start(&ManagerConfig {
        store: None,
        new_key: false,
        directory: directory.join(name),
        listen,
        certificates,
        metrics: None,
    })
    .unwrap()
}

/// Asks a manager as the machine whose certificates these are.
async fn ask(address: &str, key: &Path, certificates: Option<&Path>) -> Result<(), Error> {
    let tls = certificates.map(|directory| Tls::read(directory, false).unwrap());
    let mut config = Config::new(vec![address.to_owned()], Access::read(key).unwrap().with_tls(tls), "");
    config.timeout = Duration::from_millis(100);
    PoolClient::ask_status(&config).await.map(|_| ())
}

/// The sentences with which it fails, at this end and in the log of the other one. It is tried again: what is refused is not logged each
/// time, and a connection may fail for another reason on a busy machine.
async fn refused(address: &str, key: &Path, certificates: Option<&Path>, here: &str, there: &str) {
    let log = Log::of_program();
    let before = log.length();
    let last = Mutex::new(String::new());
    until(here, async || match ask(address, key, certificates).await {
        Err(Error::Managers(why)) => {
            let has = why.contains(here) && log.has(before, there);
            if *last.lock().unwrap() != why {
                println!("{why}");
                *last.lock().unwrap() = why;
            }
            has
        }
        other => panic!("{here}: {other:?}"),
    })
    .await;
}

#[test]
fn unauthenticated_peers_are_refused_with_a_sentence_at_both_ends_and_end_nothing() {
    let log = Log::of_program();
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let (ours, theirs) = (pki(at, "ours", &["127.0.0.1"], YEAR), pki(at, "theirs", &["127.0.0.1"], YEAR));
    let (server, good) = (ours.join("127.0.0.1"), ours.join("mount"));
    // Knows our authority, and shows the other one's certificate.
    let mixed = at.join("mixed");
    std::fs::create_dir(&mixed).unwrap();
    std::fs::copy(ours.join(AUTHORITY), mixed.join(AUTHORITY)).unwrap();
    for file in [CLIENT.0, CLIENT.1] {
        std::fs::copy(theirs.join("mount").join(file), mixed.join(file)).unwrap();
    }
    // Of our authority, and expired when they were made.
    let expired = at.join("expired");
    std::fs::create_dir(&expired).unwrap();
    for file in [AUTHORITY, AUTHORITY_KEY] {
        std::fs::copy(ours.join(file), expired.join(file)).unwrap();
    }
    let hosts = ["127.0.0.1".to_owned()];
    certificates::make(&expired, &hosts, &["mount".to_owned()], Duration::ZERO).unwrap();
    let with_tls = manager(at, "with", Some(server));
    let (plain, late) = (manager(at, "plain", None), manager(at, "late", Some(expired.join("127.0.0.1"))));
    let key = |name: &str| at.join(name).join(files::KEY_FILE);
    let (address, with) = (with_tls.address(), key("with"));
    run(async {
        ask(address, &with, Some(&good)).await.unwrap();
        let foreign = "the server's certificate is refused: it is of an authority that ca-cert.pem does not have";
        let there = "this server's certificate is refused by the other end";
        refused(address, &with, Some(&theirs.join("mount")), foreign, there).await;
        let here = "this process's certificate is refused by the other end: it is of an authority";
        refused(address, &with, Some(&mixed), here, "its certificate is refused: it is of an authority").await;
        let here = "this process's certificate is refused by the other end: it has expired";
        let there = "its certificate is refused: it has expired";
        refused(address, &with, Some(&expired.join("mount")), here, there).await;
        let here = "the server's certificate is refused: it has expired";
        let there = "this server's certificate is refused by the other end: it has expired";
        refused(late.address(), &key("late"), Some(&good), here, there).await;
        let (_, port) = address.rsplit_once(':').unwrap();
        let here = "the server's certificate is refused: it is not for localhost, but for ";
        let there = "this server's certificate is refused by the other end";
        refused(&format!("localhost:{port}"), &with, Some(&good), here, there).await;
        // Plain text to TLS, and the reverse.
        let here = "speaks TLS: name certificates with --certificates";
        refused(address, &with, None, here, "it speaks no TLS").await;
        let here = "it speaks no TLS: give both ends certificates";
        refused(plain.address(), &key("plain"), Some(&good), here, "").await;
        // Somebody who says nothing, and somebody who says anything.
        let silent = std::net::TcpStream::connect(address).unwrap();
        let mut loud = std::net::TcpStream::connect(address).unwrap();
        loud.write_all(&bytes(1, 5000)).unwrap();
        let mut answer = Vec::new();
        let _ = loud.read_to_end(&mut answer);
        ask(address, &with, Some(&good)).await.unwrap();
        drop(silent);
        // A certificate alone does not let anybody in.
        let mut config = Config::new(vec![address.to_owned()], Access::read(&key("plain")).unwrap(), "");
        config.access = config.access.with_tls(Some(Tls::read(&good, false).unwrap()));
        let status = PoolClient::ask_status(&config).await;
        assert!(
            matches!(&status, Err(Error::NotAllowed(why)) if why.contains("is not one of this pool")),
            "{status:?}"
        );
        for name in ["with", "plain", "late"] {
            let secret = std::fs::read_to_string(key(name)).unwrap();
            assert!(!log.has(0, secret.trim()) && !log.has(0, "surgetank-token-"), "the log has no secret");
        }
    });
}

#[test]
fn certificates_that_are_renewed_are_taken_up_without_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let ours = pki(at, "ours", &["other.example", "127.0.0.1"], YEAR);
    let server = ours.join("other.example");
    let manager = manager(at, "pool", Some(server.clone()));
    let (key, good) = (at.join("pool").join(files::KEY_FILE), ours.join("mount"));
    run(async {
        refused(manager.address(), &key, Some(&good), "it is not for 127.0.0.1", "").await;
        for file in [SERVER.1, SERVER.0] {
            std::fs::copy(ours.join("127.0.0.1").join(file), server.join(file)).unwrap();
        }
        until("it is taken up", async || ask(manager.address(), &key, Some(&good)).await.is_ok()).await;
    });
}

#[test]
fn certificates_that_make_no_sense_are_refused_in_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let ours = pki(directory.path(), "ours", &["node1"], YEAR);
    let told = |directory: &Path| Tls::read(directory, true).unwrap_err().0;
    assert!(told(&ours.join("mount")).contains("server-key.pem cannot be read"), "{}", told(&ours.join("mount")));
    let key = ours.join("node1").join(SERVER.1);
    std::fs::copy(ours.join("mount").join(CLIENT.1), &key).unwrap();
    assert!(told(&ours.join("node1")).contains("cannot be used for TLS"), "a key of another certificate");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    assert!(told(&ours.join("node1")).contains("can be read by others than its owner"));
    for name in ["", "../node1", ".", "a/b"] {
        let made = certificates::make(&ours, &[name.to_owned()], &[], YEAR).unwrap_err();
        assert!(made.0.contains("is no host's name or address"), "{made}");
    }
    // The authority's key is elsewhere.
    std::fs::remove_file(ours.join(AUTHORITY_KEY)).unwrap();
    let made = certificates::make(&ours, &["node2".to_owned()], &[], YEAR).unwrap_err();
    assert!(made.0.contains("issue certificates where the authority was made"), "{made}");
}

#[test]
fn a_pool_of_two_machines_takes_files_in_and_drains_them() {
    let Some(network) = Network::new() else { return };
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let [one, other] = network.addresses();
    let ours = pki(at, "ours", &[one, other], YEAR);
    let target = at.join("target");
    std::fs::create_dir(&target).unwrap();
    let of_manager = ManagerConfig {
        store: None,
        new_key: false,
        directory: at.join("pool"),
        listen: format!("{one}:7440"),
        certificates: Some(ours.join(one)),
        metrics: None,
    };
    let mut manager = network.inside(0, || start(&of_manager).unwrap());
    let without = ManagerConfig { store: None, certificates: None, directory: at.join("without"), ..of_manager };
    let told = network.inside(0, || start(&without).err().unwrap().to_string());
    assert!(told.contains("is not a loopback address") && !at.join("without").exists(), "{told}");
    let key = at.join("pool").join(files::KEY_FILE);
    let of_benefactor = |machine: usize, port: u16, domain: &str| BenefactorConfig {
        key: key.clone(),
        managers: vec![format!("{one}:7440")],
        listen: format!("{}:{port}", [one, other][machine]),
        advertise: None,
        certificates: Some(ours.join([one, other][machine])),
        id: None,
        domain: domain.to_owned(),
        memory: Bytes::from_mib(64),
        ssd: None,
        leaving: false,
        forget_ssd: false,
        scrub: None,
        metrics: None,
    };
    let start = |machine, config| {
        network.inside(machine, move || {
            BenefactorProcess::start(&config, || (), || false).map(|started| started.expect("nobody tells it to end"))
        })
    };
    let mut benefactors =
        [start(0, of_benefactor(0, 7441, "one")).unwrap(), start(1, of_benefactor(1, 7441, "other")).unwrap()];
    let credentials = Credentials::read(&key, None).unwrap();
    let grant = Grant { target: target.display().to_string(), mount: None, owner: None, writes: true, expires: None };
    let access = Access::with(credentials.key().token(&Claims::Mount(grant)));
    let mut config = Config::new(vec![format!("{one}:7440")], access, "scratch");
    config.access = config.access.with_tls(Some(Tls::read(&ours.join("mount"), false).unwrap()));
    config.make = Some((target.clone(), Durability::Copies { copies: 2, media: Media::Any }));
    config.timeout = LONG;
    network.inside(1, || {
        run(async {
            let client = PoolClient::begin(config).await.unwrap();
            let content = bytes(1, 20 * MIB + 17);
            write(&client, "file", &content).await.unwrap();
            same("from the pool", &read(&client, "file").await.unwrap(), &content);
            client.wait_drained("file", LONG).await.unwrap();
            same("at the target", &std::fs::read(target.join("file")).unwrap(), &content);
            let status = client.status().await.unwrap();
            assert_eq!(status.benefactors.len(), 2, "both lend, and both were needed");
        });
    });
    // Another process under the number of one that lends.
    let id = benefactors[0].id().0;
    let twin = BenefactorConfig { id: Some(id), ..of_benefactor(1, 7442, "twin") };
    let told = start(1, twin).err().unwrap().to_string();
    assert!(told.contains(&format!("lends as benefactor {id} already: choose another number with --id")), "{told}");
    assert_eq!(
        (benefactors[0].undrained(|| (), || false), benefactors[0].has_ended(), manager.has_ended()),
        (Some(Ok(0)), None, None)
    );
    assert_eq!(benefactors.iter_mut().find_map(BenefactorProcess::has_ended), None);
}

#[test]
fn a_certificate_that_was_revoked_is_refused_at_both_ends_and_a_bad_list_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let ours = pki(at, "ours", &["127.0.0.1", "gone"], YEAR);
    let with = manager(at, "with", Some(ours.join("127.0.0.1")));
    let gone = ours.join("gone");
    let key = at.join("with").join(files::KEY_FILE);
    let unknown = certificates::revoke(&ours, &["nobody".to_owned()]).unwrap_err();
    assert!(unknown.0.contains("`nobody` has no certificate in"), "{unknown}");
    run(async {
        ask(with.address(), &key, Some(&gone)).await.unwrap();
        let given = certificates::revoke(&ours, &["gone".to_owned()]).unwrap();
        assert_eq!(given, [ours.join("127.0.0.1"), gone.clone(), ours.join("mount")]);
        // The running manager takes the list up.
        until("it is refused", async || ask(with.address(), &key, Some(&gone)).await.is_err()).await;
        let here = "this process's certificate is refused by the other end: it was revoked";
        refused(
            with.address(),
            &key,
            Some(&gone),
            here,
            "its certificate is refused: it was revoked, as ca-crl.pem says",
        )
        .await;
        ask(with.address(), &key, Some(&ours.join("mount"))).await.unwrap();
        // Those that come later count.
        pki(at, "ours", &["gone"], YEAR);
        until("the next one counts", async || ask(with.address(), &key, Some(&gone)).await.is_ok()).await;
        // A server's own.
        certificates::revoke(&ours, &["127.0.0.1".to_owned()]).unwrap();
        until("its own", async || ask(with.address(), &key, Some(&ours.join("mount"))).await.is_err()).await;
        let here = "the server's certificate is refused: it was revoked, as ca-crl.pem says";
        refused(
            with.address(),
            &key,
            Some(&ours.join("mount")),
            here,
            "this server's certificate is refused by the other end",
        )
        .await;
    });
    for text in ["", "nothing", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"] {
        std::fs::write(gone.join("ca-crl.pem"), text).unwrap();
        let bad = Tls::read(&gone, true).unwrap_err();
        assert!(bad.0.contains("ca-crl.pem is no list of revoked certificates: "), "{bad}");
    }
}
