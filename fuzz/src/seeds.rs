//! Where the fuzzers start: what our own writers write, and random decisions for targets that read decisions.

use surgetank_cache::{Epoch, Owner};
use surgetank_daemon::journal::{Journal, Rental, Stage};
use surgetank_daemon::owner::OwnerRecord;
use surgetank_model::Bytes;
use surgetank_model::random::Random;
use surgetank_provider::VolumeId;

/// A name and its bytes.
pub type Seed = (String, Vec<u8>);

/// Random decisions of several lengths.
fn decisions(target: &str, lengths: &[usize]) -> Vec<Seed> {
    let mut random = Random::from_seed(target.bytes().fold(7, |seed, byte| seed * 31 + u64::from(byte)));
    let seed = |(index, length): (usize, &usize)| {
        let bytes = (0..*length).map(|_| random.next_u64() as u8).collect();
        (format!("decisions-{index}"), bytes)
    };
    lengths.iter().enumerate().map(seed).collect()
}

fn texts(texts: &[&str]) -> Vec<Seed> {
    texts.iter().enumerate().map(|(index, text)| (format!("text-{index}"), text.as_bytes().to_vec())).collect()
}

/// The seeds of one target; none if it is not known.
#[must_use]
pub fn of(target: &str) -> Vec<Seed> {
    match target {
        "superblocks" => decisions(target, &[8, 40, 80, 160]),
        "table" => decisions(target, &[8, 40, 100, 200]),
        "segment" => decisions(target, &[20, 60, 120, 250, 500]),
        "recovery" => decisions(target, &[30, 60, 120, 250, 500, 900, 1500]),
        "nbd" => decisions(target, &[20, 60, 120, 250, 500, 900]),
        "config" => configurations(),
        "control" => texts(CONTROL),
        "state" => state(),
        "units" => {
            let mut seeds = texts(UNITS);
            seeds.push(("catalog".to_owned(), include_bytes!("../../crates/model/src/catalog.toml").to_vec()));
            seeds
        }
        "provider" => provider(),
        _ => Vec::new(),
    }
}

const CONTROL: &[&str] = &[
    "{\"command\":\"status\"}\n",
    "{\"command\":\"boost\",\"device\":\"data\"}\n{\"command\":\"drain\",\"device\":\"data\"}\n",
    "{\"command\":\"detach\",\"device\":\"data\",\"accept_loss\":true}\n{\"command\":\"gc\"}\n{\"command\":\"stop\"}",
    "{\"command\":\"resize\",\"device\":\"\\u0000\"}\nno\n\n[]\n",
];

const UNITS: &[&str] = &[
    "50 GiB\n1.5TiB\n0.3 GiB\n17 B",
    "33 MiB/s\n0.5 GB/s\n1 kB / s",
    "3000 IOPS\n1.0 iops",
    "30 s\n1.5 h\n250 us\n10 µs\n2 d",
    "-1 GiB\n1..2 s\n18446744073709551615 B\n999999999999999999999999 B\n.5 s\n٣ B",
];

fn configurations() -> Vec<Seed> {
    let small = "[device.data]\nbacking = \"/dev/vdb\"\n";
    let large = include_str!("../../packaging/surgetank.toml");
    // The packaged file is mostly commented out: once more with the examples in force.
    let uncommented: String =
        large.lines().map(|line| format!("{}\n", line.strip_prefix("#").unwrap_or(line))).collect();
    let caching = "state_directory = \"/s\"\nsweep_interval = \"5 min\"\n[provider.local]\ndirectory = \"/v\"\n\
                   attach_latency = \"2 s\"\n[provider.local.types.fast]\nbandwidth = \"200 MiB/s\"\n\
                   [provider.local.faults]\nseed = 7\nfail_after = 0.25\n[device.data]\nbacking = \"1 GiB\"\n\
                   [device.data.caching]\ntype = \"fast\"\nsize = \"1 GiB\"\n";
    texts(&[small, large, &uncommented, caching])
}

fn state() -> Vec<Seed> {
    let epoch = Epoch([0xa5; 16]);
    let volume = Some(VolumeId("vol-0000000000000001".to_owned()));
    let owners =
        [Owner::Backing, Owner::Cache { epoch }, Owner::Lost { epoch, ranges: vec![(0, 4096), (1 << 40, 512)] }];
    let records = owners.into_iter().map(|owner| OwnerRecord { owner, volume: volume.clone() }.encode());
    let mut seeds: Vec<Seed> = records.enumerate().map(|(index, bytes)| (format!("owner-{index}"), bytes)).collect();
    let rental = Rental {
        token: epoch.to_string(),
        volume_type: "fast".to_owned(),
        size: Bytes::from_gib(1),
        started_unix_ms: 1_700_000_000_000,
        stage: Stage::Adopted,
        volume,
        epoch: Some(epoch.to_string()),
        disposable: false,
    };
    // A journal is only made by opening one.
    let directory = tempfile::tempdir().expect("a directory");
    let mut journal = Journal::open(directory.path()).expect("a new journal");
    seeds.push(("journal-0".to_owned(), journal.state().encode().expect("it is JSON")));
    journal.update(|state| state.rental = Some(rental)).expect("it can be written");
    seeds.push(("journal-1".to_owned(), journal.state().encode().expect("it is JSON")));
    seeds
}

fn provider() -> Vec<Seed> {
    let record = |id: &str, state: &str, made: bool| {
        format!(
            "{{\"format\":1,\"id\":\"{id}\",\"token\":\"t\",\"volume_type\":\"fast\",\"size_bytes\":4096,\
             \"tags\":{{\"k\":\"v\"}},\"made\":{made},\"state\":\"{state}\",\"since_ms\":0,\"latency_ms\":5}}"
        )
    };
    let (one, two) = ("vol-0000000000000001", "vol-0000000000000002");
    let directory = |files: [&str; 7]| {
        let mut bytes = Vec::new();
        for file in files {
            bytes.extend((file.len() as u16).to_le_bytes());
            bytes.extend(file.as_bytes());
        }
        bytes.extend([9, 8, 1, 7, 1, 8, 2, 8, 0, 0, 1, 1, 1, 2, 2, 0, 3, 6, 5, 4, 1, 2]);
        bytes
    };
    let mut seeds = Vec::new();
    for (index, state) in
        ["creating", "available", "attaching", "attached", "detaching", "deleting"].into_iter().enumerate()
    {
        let bytes = directory([
            &record(one, state, true),
            &record(two, state, index % 2 == 0),
            "{",
            "image",
            "image",
            "x",
            "y",
        ]);
        seeds.push((format!("directory-{index}"), bytes));
    }
    seeds
}
