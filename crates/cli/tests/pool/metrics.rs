//! What Prometheus reads of a pool, and that the dashboard and the alerts ask for nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use serde_json::Value;

use crate::etcd_server::Server;
use crate::place::{MIB, Place, Pool, Started, bytes, can_mount, done, refused, run, until};

/// An address on which nobody listens.
fn free() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// The head and the body of a scrape.
fn scrape(at: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn metrics(at: &str) -> String {
    let (head, body) = scrape(at, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    body
}

/// The value of a metric, with its labels.
fn value(page: &str, of: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(of)?.strip_prefix(' ')?.parse().ok())
}

/// All names that a page has values of.
fn names(page: &str) -> BTreeSet<String> {
    let values = page.lines().filter(|line| !line.starts_with('#'));
    values.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
}

/// All of our names in a text.
fn asked(text: &str) -> BTreeSet<String> {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter| !is_of_name(letter));
    words.filter(|word| word.starts_with("surgetank_pool_")).map(str::to_owned).collect()
}

fn packaged(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/monitoring").join(name)).unwrap()
}

#[test]
fn everything_that_the_dashboard_and_the_alerts_ask_for_is_served_and_documented() {
    if !can_mount() {
        return;
    }
    let Some(etcd) = Server::start(&[]) else { return };
    until("etcd listens", || TcpStream::connect(etcd.address).is_ok());
    let place = Place::new();
    let (directory, key, store) = (place.text("pool"), place.text("pool/key"), format!("etcd://{}", etcd.address));
    let [of_manager, of_one, of_two] = [free(), free(), free()];
    let arguments = ["pool", "manager", "--directory", &directory, "--listen", "127.0.0.1:0", "--store", &store];
    let (_manager, line) = Started::new(&[&arguments[..], &["--metrics", &of_manager]].concat());
    let address = line.split_once(": ").unwrap().0.to_owned();
    let at = address.strip_prefix("pool://").unwrap();
    let benefactor = |number: &str, metrics: &str| {
        let lends = ["pool", "benefactor", "--managers", at, "--memory", "64 MiB", "--listen", "127.0.0.1:0"];
        let more = ["--domain", number, "--id", number, "--key", &key, "--metrics", metrics];
        Started::new(&[&lends[..], &more].concat()).0
    };
    let _benefactors = [benefactor("1", &of_one), benefactor("2", &of_two)];
    until("both lend", || value(&metrics(&of_manager), "surgetank_pool_benefactors{state=\"joined\"}") == Some(2.0));
    done(&["pool", "quota", "set", "--user", "7", "--bytes", "1 GiB", "--files", "100", &address, "--token", &key]);
    let (point, target) = (place.text("mnt"), place.text("target"));
    done(&["mount", &address, &point, "--target", &target, "--token", &key]);
    fs::write(place.at("mnt/file"), bytes(1, 5 * MIB)).unwrap();
    let open = fs::File::create(place.at("mnt/open")).unwrap();
    done(&["pool", "wait", &place.text("mnt/file"), "--state", "drained"]);
    assert!(fs::read(place.at("mnt/file")).unwrap() == bytes(1, 5 * MIB));

    let page = metrics(&of_manager);
    for (of, is) in [
        ("surgetank_pool_store_up", 1.0),
        ("surgetank_pool_domains", 2.0),
        ("surgetank_pool_warden", 1.0),
        ("surgetank_pool_sessions", 1.0),
        ("surgetank_pool_written_files", 1.0),
        ("surgetank_pool_undrained_files", 0.0),
        ("surgetank_pool_lent_bytes{media=\"memory\"}", 2.0 * f64::from(63 << 20)),
        ("surgetank_pool_quota_limit_bytes{uid=\"7\"}", f64::from(1 << 30)),
        ("surgetank_pool_quota_used_files{uid=\"7\"}", 0.0),
    ] {
        assert_eq!(value(&page, of), Some(is), "{of}:\n{page}");
    }
    assert!(value(&page, "surgetank_pool_drained_bytes_total") >= Some(f64::from(5 << 20)), "{page}");
    let both = [metrics(&of_one), metrics(&of_two)];
    let put: f64 = both
        .iter()
        .zip(["1", "2"])
        .filter_map(|(page, id)| {
            value(page, &format!("surgetank_pool_benefactor_put_bytes_total{{benefactor=\"{id}\"}}"))
        })
        .sum();
    assert!(put >= f64::from(10 << 20), "two copies were put: {put}\n{}", both[0]);

    let served: BTreeSet<String> = both.iter().chain([&page]).flat_map(|page| names(page)).collect();
    let dashboard = packaged("surgetank-pool-dashboard.json");
    let panels: Value = serde_json::from_str(&dashboard).unwrap();
    assert!(panels["panels"].as_array().unwrap().len() > 10);
    for text in [dashboard, packaged("surgetank-pool.rules.yml")] {
        let lacking: Vec<String> = asked(&text).difference(&served).cloned().collect();
        assert!(lacking.is_empty(), "nobody serves {lacking:?}");
    }
    let manual = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/POOL.md")).unwrap();
    let documented: BTreeSet<&str> = manual.split('`').collect();
    let lacking: Vec<&String> = served.iter().filter(|name| !documented.contains(name.as_str())).collect();
    assert!(lacking.is_empty(), "docs/POOL.md does not name {lacking:?}");
    // What whoever reads it must not know is in none of it.
    let secret = fs::read_to_string(place.at("pool/key")).unwrap();
    assert!(!both.iter().chain([&page]).any(|page| page.contains(secret.trim())));

    // Its store is gone: the manager says so, and what it counts itself.
    drop(etcd);
    until("it is told", || value(&metrics(&of_manager), "surgetank_pool_store_up") == Some(0.0));
    assert!(value(&metrics(&of_manager), "surgetank_pool_drained_bytes_total").is_some());
    drop(open);
    let _ = run(&["umount", "--lazy", &point]);
}

#[test]
fn a_pool_of_one_process_serves_metrics_of_all_its_parts_where_it_is_told_and_nowhere_else() {
    let place = Place::new();
    let at = free();
    let pool = Pool::up_with(&place.at("pool"), "127.0.0.1:0", "2", &["--metrics", &at]);
    let page = metrics(&at);
    assert_eq!(value(&page, "surgetank_pool_store_up"), Some(1.0));
    for id in ["0", "1"] {
        let free = format!("surgetank_pool_benefactor_free_bytes{{benefactor=\"{id}\",media=\"memory\"}}");
        assert!(value(&page, &free) > Some(0.0), "{page}");
    }
    assert!(!names(&page).iter().any(|name| name.starts_with("surgetank_pool_store_quota")), "a file has no quota");
    assert!(scrape(&at, "/").0.starts_with("HTTP/1.1 404"));
    drop(pool);
    let directory = place.text("other");
    let up = |metrics: &str| {
        refused(&["pool", "up", "--directory", &directory, "--listen", "127.0.0.1:0", "--metrics", metrics])
    };
    for bad in ["9440", "nowhere:9440", "127.0.0.1:99999"] {
        let (code, told) = up(bad);
        assert!(code == 2 && told.contains(&format!("--metrics: `{bad}` is no address: write HOST:PORT")), "{told}");
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, told) = up(&taken.local_addr().unwrap().to_string());
    assert!(code == 2 && told.contains("choose another address or port"), "{told}");
}
