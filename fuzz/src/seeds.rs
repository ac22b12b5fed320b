//! Where the fuzzers start: what our own writers write, and random decisions for targets that read decisions.

use surgetank_cache::{Epoch, Owner};
use surgetank_daemon::healed;
use surgetank_daemon::journal::Journal;
use surgetank_daemon::owner;
use surgetank_model::Bytes;
use surgetank_model::random::Random;
use surgetank_provider::VolumeId;
use surgetank_rental::{OwnerRecord, RentalRecord, RentalStage, Slot};

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
        "assembly" => decisions(target, &[40, 120, 300, 600, 900]),
        "segment" => decisions(target, &[20, 60, 120, 250, 500]),
        "unreadable" => decisions(target, &[20, 40, 80, 160, 320]),
        "recovery" => decisions(target, &[30, 60, 120, 250, 500, 900, 1500]),
        "nbd" => decisions(target, &[20, 60, 120, 250, 500, 900]),
        "config" => configurations(),
        "allocation" => texts(&[include_str!("../../scenarios/caches.toml"), ALLOCATION, DEMANDS, PLAN]),
        "control" => texts(CONTROL),
        "answer" => texts(REPLIES),
        "clean" => texts(FOREIGN),
        "state" => state(),
        "units" => {
            let mut seeds = texts(UNITS);
            seeds.push(("catalog".to_owned(), include_bytes!("../../crates/model/src/catalog.toml").to_vec()));
            seeds
        }
        "provider" => provider(),
        "answers" => texts(ANSWERS),
        "requests" => texts(REQUESTS),
        "traces" => traces(),
        "packed" => PACKED.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect(),
        _ => Vec::new(),
    }
}

/// Every setting of the file of `allocate`, in few bytes, so that mutations meet them.
const ALLOCATION: &str = "slo=0.1\nsegment=\"1 MiB\"\nchange_max=0.5\nmargin=0.01\nhierarchy=\"inclusive\"\n\
    latency={level1=\"1 us\",level2=\"1 ms\",disk=\"9 ms\"}\n\
    server.level1=[{name=\"a\",cache=\"9 MiB\"}]\nserver.level2=[{name=\"b\",cache=\"99 MiB\"}]\n\
    [[app]]\nname=\"x\"\nlevel1=\"a\"\nlevel2=[\"b\"]\nslo=\"8 ms\"\naccesses_per_s=7\nmargin=0\n\
    mrc=[[\"1 MiB\",0.9],[\"20 MiB\",0.1]]\n\
    [[app]]\nname=\"y\"\nlevel1=\"a\"\nlevel2=[\"b\"]\nmrc=[[\"8 MiB\",0.5],[\"9 MiB\",0]]\n";

/// The file of `provision`, with measured nodes.
const NODES: &str = "[target]\nthroughput=\"15 GiB/s\"\nmode=\"in-job\"\nlink_divisor=100\nparity=\"4+1\"\nnodes_max=99\n\
    [[candidate]]\nmemory=\"2 GiB\"\nssd=\"4 GiB\"\nthroughput=\"0.8 GiB/s\"\n\
    [[candidate]]\nmemory=\"8 GiB\"\nthroughput=\"1 GiB/s\"\n\
    [price]\nmemory_gib_usd=5\nssd_gib_usd=1\nnode_usd=0.5\n";

const DEMANDS: &str = "demands_only=true\nserver.level2=[{name=\"b\",cache=\"9 B\"},{name=\"c\",cache=\"9 B\"}]\n\
    [[app]]\nname=\"x\"\nlevel2=[\"b\"]\ndemand=\"8 B\"\n\
    [[app]]\nname=\"y\"\nlevel2=[\"b\",\"c\"]\ndemand=\"9 B\"\n";

const PLAN: &str = "{\"apps\":[{\"name\":\"x\",\"level1_mib\":1.5,\"level2_mib\":{\"b\":0.25}}]}";

const CONTROL: &[&str] = &[
    "{\"command\":\"status\"}\n",
    "{\"command\":\"boost\",\"device\":\"data\"}\n{\"command\":\"drain\",\"device\":\"data\"}\n",
    "{\"command\":\"detach\",\"device\":\"data\",\"accept_loss\":true}\n{\"command\":\"gc\"}\n{\"command\":\"stop\"}",
    "{\"command\":\"resize\",\"device\":\"\\u0000\"}\nno\n\n[]\n",
];

/// What services answer.
const ANSWERS: &[&str] = &[
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 212\r\n\r\n{\"id\": \"vol-1\", \"state\": \"attached\", \
     \"volume_type\": \"fast\", \"size_bytes\": 1048576, \"tags\": {\"surgetank:owner\": \"o\"},\"device\": \
     \"/dev/disk/by-id/virtio-vol-1\", \"serial\": \"vol-1\", \"volumes\": [], \"change\": \"changed\"}",
    "HTTP/1.1 201 Created\r\nConnection: close\r\n\r\n{\"change\": \"identity\", \"volume\": {\"id\": \"vol-1\", \"state\": \
     \"creating\", \"volume_type\": \"fast\", \"size_bytes\": 1, \"tags\": {}, \"device\": null, \"serial\": null}}",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{\"volumes\": [{\"i\r\n6a\r\nd\": \"v/1\", \"state\": \"deleting\", \
     \"volume_type\": \"\", \"size_bytes\": 1, \"tags\": {}, \"device\": \"/etc/shadow\"}]}\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\n\r\n{\"id\": \"vol-1\", \"state\": \"available\", \"volume_type\": \"\", \"size_bytes\": 1, \"tags\": {\"k\": \
     \"\\n\"}, \"volumes\": []}",
    "HTTP/1.1 404 Not Found\r\n\r\n{\"error\": {\"kind\": \"not_found\", \"message\": \"gone\\n\\u001b\", \"volume\": \"vol-1\"}}",
    "HTTP/1.1 409 Conflict\r\n\r\n{\"error\": {\"kind\": \"conflict\", \"message\": \"\", \"volume\": \"vol-2\", \"state\": \"attached\"}}",
    "HTTP/1.1 401 Unauthorized\r\nContent-Length: 99999999999\r\n\r\n{\"error\": {\"kind\": \"unauthorized\", \"message\": \"\"}}",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
];

/// Whether the token is known, and what clients send.
const REQUESTS: &[&str] = &[
    "1GET /v1/volumes?key=k&value=v HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\n\r\n",
    "1POST /v1/volumes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\nContent-Length: 79\r\n\r\n{\"token\": \"t\", \
     \"volume_type\": \"fast\", \"size_bytes\": 1, \"tags\": {\"k\": \"\\u0001\"}}",
    "1PUT /v1/volumes/vol-1/attachment HTTP/1.1\r\nAuthorization: Bearer TOKEN\r\n\r\nDELETE /v1/volumes/vol-1/attachment \
     HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\n\r\n",
    "1PUT /v1/volumes/%2e%2e/tags HTTP/1.1\r\nAuthorization: Bearer TOKEN\r\nTransfer-Encoding: chunked\r\n\r\n1b\r\n\
     {\"key\": \"k\", \"value\": null}\r\n0\r\n\r\n",
    "0DELETE /v1/volumes/vol-1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer TOKEN\r\nExpect: 100-continue\r\n\r\n",
    "0GET / HTTP/1.0\r\n\r\n",
];

/// What daemons answer.
const REPLIES: &[&str] = &[
    "{\"ok\":{\"devices\":[],\"warnings\":[\"a\\nb \\u001b[2J\"]}}\n",
    "{\"error\":\"there is no device \\\"\\u202edta\\\": this daemon has data\"}\n",
    "{\"ok\":{\"deleted\":[\"vol-1\"],\"detached\":[],\"warnings\":[]}}\n",
    "{\"ok\":{\"size_bytes\":4096}}",
    "{\"ok\":[[1.5e300,-0],{\"a\u{7f}\":\"\u{9b}31m\u{2028}\"}]}\n{\"ok\":null}\n",
];

const FOREIGN: &[&str] = &[
    "no volume: \u{1b}]0;title\u{7}\u{1b}[2J\r\n1970-01-01T00:00:00Z  INFO all is well\n",
    "{\"a\": \"\u{7f}\u{9b}31m\u{202e}txt.exe\u{2066}\u{2028}\u{61c}\",\r\n\t\"b\\u001b\": [1, 2.5e-7]}",
    "größer, 大きい, גדול, 👩‍👩‍👧 C:\\n \\u{1b}",
];

const UNITS: &[&str] = &[
    "50 GiB\n1.5TiB\n0.3 GiB\n17 B",
    "33 MiB/s\n0.5 GB/s\n1 kB / s",
    "3000 IOPS\n1.0 iops",
    "30 s\n1.5 h\n250 us\n10 µs\n2 d",
    "-1 GiB\n1..2 s\n18446744073709551615 B\n999999999999999999999999 B\n.5 s\n٣ B",
];

/// "1 2 3", twice, in each compression; and as it is.
const PACKED: &[(&str, &[u8])] = &[
    ("raw", b"1 2 3\n1 2 3\n"),
    ("gzip", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x33\x54\x30\x52\x30\xe6\x32\x04\x93\x00\x4d\xe9\x36\x4b\x0c\x00\x00\x00"),
    ("xz", b"\xfd\x37\x7a\x58\x5a\x00\x00\x04\xe6\xd6\xb4\x46\x02\x00\x21\x01\x16\x00\x00\x00\x74\x2f\xe5\xa3\x01\x00\x0b\x31\x20\x32\x20\x33\x0a\x31\x20\x32\x20\x33\x0a\x00\xb5\xb4\xd4\x68\x11\x64\xff\x54\x00\x01\x24\x0c\xa6\x18\xd8\xd8\x1f\xb6\xf3\x7d\x01\x00\x00\x00\x00\x04\x59\x5a"),
    ("zstd", b"\x28\xb5\x2f\xfd\x04\x58\x61\x00\x00\x31\x20\x32\x20\x33\x0a\x31\x20\x32\x20\x33\x0a\xe5\x91\x01\x96"),
];

/// A format's number, strict or not, a piece's length; then the trace.
fn traces() -> Vec<Seed> {
    let msr = "128166372003061629,hm,1,Read,383496192,32768,1\n128166372016382155,hm,0,Write,2822144,4096,3\n";
    let csv = "time_s,op,offset_bytes,length_bytes,disk\n0.5,W,4096,512,a\n0.7,FF,0,0,b\n1,R,0,512,b\n";
    let fio = "fio version 2 iolog\n/d add\n/d open\n/d read 0 4096\n/d wait 250 0\n/d write 8192 512\n/d close\n";
    let blkparse =
        "  8,0 3 1 0.000001829 697 Q W 223490 + 8 [x]\n  8,0 1 2 0.5 0 C R 8 + 1 [0]\nCPU0 (8,0):\n Reads: 1\n";
    let records = |head: &[u8], size: usize| {
        let mut bytes: Vec<u8> = (0..3 * size as u8).collect();
        bytes.chunks_mut(size).for_each(|record| record[..head.len()].copy_from_slice(head));
        bytes
    };
    let old = [1, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0x2a, 0, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0];
    let new = [0x28, 0, 0, 2, 1, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
    let bodies: [(u8, Vec<u8>); 10] = [
        (0, b"1 2 3\n# no\n* no\n2 x 99999999999999999999\n".to_vec()),
        (0, b"a b c\na 7\n".to_vec()),
        (1, msr.into()),
        (2, csv.into()),
        (3, records(&old, 32)),
        (3, records(&new, 40)),
        (4, records(&[7, 0, 0, 0], 24)),
        (5, fio.into()),
        (6, blkparse.into()),
        (7, b"1 1 0 0\n7 3 0 1\n".to_vec()),
    ];
    let seed = |(index, (format, body)): (usize, (u8, Vec<u8>))| {
        let bytes = [&[format, index as u8 % 2, 7, 0], &body[..]].concat();
        (format!("trace-{index}"), bytes)
    };
    bodies.into_iter().enumerate().map(seed).collect()
}

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
    texts(&[small, large, &uncommented, caching, include_str!("../../scenarios/pool.toml"), NODES])
}

fn state() -> Vec<Seed> {
    let epoch = Epoch([0xa5; 16]);
    let volume = Some(VolumeId("vol-0000000000000001".to_owned()));
    let owners =
        [Owner::Backing, Owner::Cache { epoch }, Owner::Lost { epoch, ranges: vec![(0, 4096), (1 << 40, 512)] }];
    let records =
        owners.into_iter().map(|owner| owner::encode(&OwnerRecord { owner, volume: volume.clone(), ended: None }));
    let mut seeds: Vec<Seed> = records.enumerate().map(|(index, bytes)| (format!("owner-{index}"), bytes)).collect();
    let rental = RentalRecord {
        slot: Slot::CACHE,
        token: epoch.to_string(),
        volume_type: "fast".to_owned(),
        size: Bytes::from_gib(1),
        growing_to: None,
        started_unix_ms: 1_700_000_000_000,
        stage: RentalStage::Adopted,
        volume,
        epoch: Some(epoch.to_string()),
        disposable: false,
        discarded: Some(epoch.to_string()),
        missing: None,
    };
    // Journals are only made by opening one.
    let directory = tempfile::tempdir().expect("a directory");
    let named = healed::Named { id: healed::Id([0x5a; 16]), is_there: false };
    let mut healed = healed::Journal::new(directory.path(), named, 0);
    for ranges in [&[(0, 4096)][..], &[(8192, 512), (1 << 40, 512)]] {
        healed.append(ranges).expect("it can be written");
    }
    let bytes = std::fs::read(directory.path().join("healed.journal")).expect("it was written");
    seeds.push(("healed-0".to_owned(), bytes));
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
