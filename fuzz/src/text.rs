//! What people and other processes write to us as text: configuration, control requests, state files, quantities.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::Value;
use surgetank_cache::Owner;
use surgetank_daemon::control::{Pending, Request, converse, read_answer};
use surgetank_daemon::healed;
use surgetank_daemon::journal::JournalState;
use surgetank_daemon::owner;
use surgetank_daemon::sweep::Swept;
use surgetank_daemon::{Config, StatusReport};
use surgetank_model::catalog::Catalog;
use surgetank_model::text as plain;
use surgetank_model::toml_error::{ConfigError, Source};
use surgetank_model::units::Span;
use surgetank_model::{Bandwidth, Bytes, Iops};
use surgetank_planner::allocation::{Allocation, AllocationFile, Placement, PreviousPlan, Scheme};
use surgetank_planner::points::Points;
use surgetank_planner::predict::Predictor;
use surgetank_planner::provision::{NodePlan, Problem, Provision, ProvisionFile};
use surgetank_planner::scenario::Scenario;
use surgetank_rental::owner::parse_epoch;
use surgetank_rental::resume::{self, Lookup, Resume};
use surgetank_rental::{OwnerRecord, Slot};

/// The daemon's configuration file; and the planner's files, which are TOML too.
pub fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    planner(&text);
    match Config::from_text(Path::new("file.toml"), &text) {
        Ok(config) => assert!(!config.devices.is_empty()),
        Err(error) => one_line(&error),
    }
}

/// What people are told of a mistake in a file.
fn one_line(error: &ConfigError) {
    let message = error.to_string();
    assert!(message.starts_with("file.toml") && !message.contains('\n'), "{message}");
}

/// Scenarios, calibration points, and a catalog laid over the built-in one. What is read is predicted from.
fn planner(text: &str) {
    static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::builtin);
    let source = Source { file: "file.toml".into(), text: text.to_owned() };
    match Scenario::parse(&source, &CATALOG) {
        Ok(scenario) => {
            if let Ok(predictor) = Predictor::new(&scenario) {
                let found = predictor.predict(scenario.caching.checkpoint_cache.unwrap_or_default());
                assert!(found.elastic.completion_s.is_finite() && found.elastic.cost_agbs >= 0.0);
            }
        }
        Err(error) => one_line(&error),
    }
    match Points::parse(&source) {
        Ok(points) => {
            let again = Source { file: "file.toml".into(), text: points.to_text() };
            let again = Points::parse(&again).expect("what is written is read");
            assert_eq!((again.setting, again.points.len()), (points.setting, points.points.len()));
        }
        Err(error) => one_line(&error),
    }
    if let Err(error) = CATALOG.with_file(&source) {
        one_line(&error);
    }
    match ProvisionFile::parse(source).and_then(|file| file.problem()) {
        Ok(problem) if problem.candidates.len() <= CANDIDATES_MAX => provision(&problem),
        Ok(_) => {}
        Err(error) => one_line(&error),
    }
}

/// Of more candidates a run takes too long.
const CANDIDATES_MAX: usize = 64;

/// The nodes of a pool: they deliver the target, and a longer checkpoint costs no more.
fn provision(problem: &Problem) {
    let answer = Provision::of(problem);
    assert_eq!(answer.best.is_some(), answer.infeasible.is_none());
    if let Some(best) = &answer.best {
        let missed = answer.target_gib_s - best.throughput_gib_s;
        let allowed = answer.target_gib_s * 1e-6 + best.nodes as f64 * 1e-9;
        assert!(missed <= allowed && best.nodes <= problem.target.nodes_max, "{best:?}");
    }
    assert!(answer.trade_off.is_sorted_by(|shorter, longer| longer.plan.cost_usd <= shorter.plan.cost_usd));
    let document = serde_json::to_string(&answer).expect("an answer is JSON");
    let plan = serde_json::from_str::<NodePlan>(&document);
    assert_eq!(plan.ok().map(|plan| plan.nodes), answer.best.map(|best| best.nodes));
}

/// Of more applications a run takes too long.
const APPLICATIONS_MAX: usize = 6;

/// The file of `allocate`, and the answer of `allocate` itself as the plan that holds.
pub fn allocation(data: &[u8]) {
    let text = String::from_utf8_lossy(data).into_owned();
    if let Ok(previous) = serde_json::from_str::<PreviousPlan>(&text) {
        let _ = previous.plan();
    }
    let file = match AllocationFile::parse(Source { file: "file.toml".into(), text }) {
        Ok(file) => file,
        Err(error) => return one_line(&error),
    };
    if file.demands_only() {
        match Placement::of(&file) {
            Ok(placement) => assert_eq!(placement.feasible, placement.unplaced.is_empty()),
            Err(error) => one_line(&error),
        }
        return;
    }
    let problem = match file.problem(&BTreeMap::new()) {
        Ok(problem) if problem.applications().count() <= APPLICATIONS_MAX => problem,
        Ok(_) => return,
        Err(error) => return one_line(&error),
    };
    let Ok(answer) = Allocation::of(&problem, Scheme::Optimal, None) else { return };
    assert_eq!(answer.feasible, answer.infeasible.is_none());
    assert!(answer.fair_speedup > 0.0 && answer.apps.iter().all(|app| app.latency_ms > 0.0));
    assert!(answer.servers.iter().all(|server| server.shared_mib <= server.cache_mib));
    // It stays, as it is read back.
    let document = serde_json::to_string(&answer).expect("an answer is JSON");
    let previous: PreviousPlan = serde_json::from_str(&document).expect("an answer is a plan");
    let previous = previous.plan().expect("its shares are shares");
    let again = Allocation::of(&problem, Scheme::Optimal, Some(&previous));
    // Where changes are bounded the next plan may go further.
    assert!(answer.infeasible.is_some() || again.is_ok_and(|again| again.fair_speedup >= answer.fair_speedup * 0.999));
}

/// The control socket, both its ends.
pub fn control(data: &[u8]) {
    let mut answers = Vec::new();
    let mut asked = 0;
    let handler = |request: Request| {
        let text = serde_json::to_string(&request).expect("a request is JSON");
        assert_eq!(serde_json::from_str::<Request>(&text).ok(), Some(request));
        serde_json::from_str(&text).map_err(|error| error.to_string())
    };
    // Errors end the conversation: bytes that are no text.
    let ended = converse(data, &mut answers, &handler, &Pending::default());
    for line in answers.split_inclusive(|byte| *byte == b'\n') {
        assert!(serde_json::from_slice::<serde_json::Value>(line).is_ok(), "an answer is a line of JSON");
        asked += 1;
    }
    let lines = data.split_inclusive(|byte| *byte == b'\n').count();
    assert!(asked <= lines && (ended.is_err() || asked == lines || data.len() > 64 << 10));
    if let Ok(report) = serde_json::from_slice::<StatusReport>(data) {
        serde_json::to_string(&report).expect("a report is JSON");
    }
}

/// What a client reads from whoever listens on the control socket, and shows to people.
pub fn answer(data: &[u8]) {
    let read = |capacity| read_answer(BufReader::with_capacity(capacity, data)).map_err(|error| error.kind());
    let answer = read(data.len().max(1));
    assert_eq!(read(3), answer, "it is the same however it is cut");
    let said = match answer {
        Ok(Ok(value)) => {
            let document = serde_json::to_string_pretty(&value).expect("an answer is JSON");
            let shown = plain::json(&document);
            assert_eq!(serde_json::from_str::<Value>(&shown).ok(), serde_json::from_str(&document).ok());
            // Whatever it is: a report, or one sentence.
            let _ = serde_json::from_value::<StatusReport>(value.clone());
            let _ = serde_json::from_value::<Swept>(value);
            shown.replace('\n', "")
        }
        Ok(Err(why)) => plain::line(&why).into_owned(),
        Err(_) => return,
    };
    assert!(said.chars().all(plain::is_plain), "{said:?}");
}

/// What others wrote, on its way to a terminal or a log.
pub fn clean(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (line, lines, json) = (plain::line(&text), plain::lines(&text), plain::json(&text));
    assert!(line.chars().all(plain::is_plain));
    assert!(lines.replace(['\n', '\t'], "").chars().all(plain::is_plain));
    assert!(json.replace(['\n', '\t', '\r'], "").chars().all(plain::is_plain));
    for (cleaned, again) in [(&line, plain::line(&line)), (&lines, plain::lines(&lines)), (&json, plain::json(&json))] {
        assert_eq!(*cleaned, again, "what is clean stays as it is");
        assert!(cleaned.len() <= text.len() * 6 && cleaned.len() >= text.len());
    }
    assert_eq!(lines.lines().count(), text.lines().count());
    if let Ok(document) = serde_json::from_str::<Value>(&text) {
        assert_eq!(serde_json::from_str::<Value>(&json).ok(), Some(document), "it is the same document");
    }
}

/// The files in the state directory.
pub fn state(data: &[u8]) {
    if let Ok(record) = owner::decode(data) {
        assert_eq!(owner::decode(&owner::encode(&record)), Ok(record));
    }
    if let Ok(content) = healed::read(data) {
        assert!(content.ranges.len() * 16 <= data.len());
    }
    if let Ok(state) = JournalState::decode(data) {
        let written = state.encode().expect("a journal is JSON");
        let again = JournalState::decode(&written).expect("what was written is read");
        // Fractions may lose their last bit; what decisions hang on may not change.
        let decisive = |state: JournalState| (state.saved_unix_ms, state.backing, state.recovery_failed, state.rental);
        assert_eq!(decisive(again), decisive(state.clone()));
        journal(state);
    }
    let text = String::from_utf8_lossy(data);
    for word in text.split('"') {
        if let Some(epoch) = parse_epoch(word) {
            assert_eq!(epoch.to_string(), word.to_ascii_lowercase());
        }
    }
}

/// What a daemon that starts does with a journal.
fn journal(mut state: JournalState) {
    let mut owner = OwnerRecord::default();
    let rental = state.rental.clone();
    let rented = rental.is_some();
    let lookup = rental.as_ref().and_then(|rental| rental.volume.clone()).map_or(Lookup::Unnamed, |_| Lookup::Missing);
    let resumed = resume::decide("data", rental.as_ref(), &owner, &lookup);
    assert_eq!(resumed == Resume::Idle, rental.is_none(), "what is rented is deleted");
    if let Some(rental) = rental {
        let epoch = rental.epoch.as_deref().and_then(parse_epoch).unwrap_or_default();
        (owner.owner, owner.volume) = (Owner::Cache { epoch }, rental.volume.clone());
        let resumed = resume::decide("data", Some(&rental), &owner, &Lookup::Unknown(String::new()));
        assert_eq!(matches!(resumed, Resume::Refuse { .. }), rental.volume.is_none(), "what is dirty is read back");
    }
    state.forget_rental(Slot::CACHE, u64::MAX);
    assert!(
        state.rental.is_none() && state.unbooked.last().is_none_or(|over| !rented || over.until_unix_ms == u64::MAX)
    );
    JournalState::decode(&state.encode().expect("a journal is JSON")).expect("what was written is read");
}

/// Quantities with units, and the catalog of volume types.
pub fn units(data: &[u8]) {
    fn exact<T: std::str::FromStr + std::fmt::Display + PartialEq + std::fmt::Debug>(text: &str)
    where
        T::Err: std::fmt::Debug + std::fmt::Display,
    {
        match text.parse::<T>() {
            Ok(value) => assert_eq!(value.to_string().parse::<T>().expect("what is written is read"), value),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    let text = String::from_utf8_lossy(data);
    for line in text.lines() {
        exact::<Bytes>(line);
        exact::<Bandwidth>(line);
        exact::<Iops>(line);
        exact::<Span>(line);
    }
    if let Ok(catalog) = Catalog::parse(&text) {
        for volume_type in catalog.iter() {
            let size = volume_type.size.fit(Bytes::from_gib(100)).unwrap_or(Bytes::from_gib(100));
            let _ = (volume_type.limits_at(size), volume_type.price_per_hour(size), volume_type.credits_at(size));
        }
    }
}
