//! Shares for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use surgetank_planner::allocation::{Allocation, AppShare, Placement, SchemeResult};
use surgetank_report::Table;
use surgetank_report::number::gibibytes;

/// Rows that a terminal shows; JSON has all.
const ROWS_MAX: usize = 64;

/// MiB with the unit that suits.
pub fn size(mib: f64) -> String {
    if mib == 0.0 { "0".to_owned() } else { gibibytes(mib / 1024.0) }
}

/// "78.4 MiB of st1, 3 MiB of st2".
fn parts(of: &BTreeMap<String, f64>) -> String {
    let parts: Vec<String> = of.iter().map(|(server, mib)| format!("{} of {server}", size(*mib))).collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

/// Three decimals, or as many as it takes to tell a short latency from nothing.
pub fn milliseconds(ms: f64) -> String {
    if ms < 0.1 { format!("{ms:.5} ms") } else { format!("{ms:.3} ms") }
}

/// A part of a whole: "5.12 %".
pub fn percent(ratio: f64) -> String {
    let text = format!("{:.2} %", 100.0 * ratio);
    // What rounds to nothing has no sign.
    if text == "-0.00 %" { "0.00 %".to_owned() } else { text }
}

fn row(app: &AppShare) -> [String; 8] {
    [
        app.name.clone(),
        format!("{} of {}", size(app.level1_mib), app.level1),
        parts(&app.level2_mib),
        milliseconds(app.latency_ms),
        milliseconds(app.fair_latency_ms),
        milliseconds(app.bound_ms),
        percent(app.slo_margin),
        if app.slo_met { "kept" } else { "broken" }.to_owned(),
    ]
}

/// What each application has.
pub fn shares<'a>(apps: impl IntoIterator<Item = &'a AppShare>) -> Table {
    Table::of("application | level 1 | level 2 | latency | fair share's | bound | margin | SLO")
        .words(3)
        .with(apps.into_iter().map(row))
}

fn scheme_row(one: &SchemeResult, apps: usize) -> [String; 4] {
    [
        if one.fell_back { format!("{} (no answer: the fair share)", one.name) } else { one.name.to_owned() },
        format!("{:.4}", one.fair_speedup),
        one.below_optimum.map_or_else(|| "unknown".to_owned(), percent),
        format!("{} of {apps}", apps - one.slo_broken.len()),
    ]
}

/// Every scheme.
pub fn schemes(answer: &Allocation) -> Table {
    Table::of("scheme | fair speedup | below the optimum | SLOs kept")
        .with(answer.schemes.iter().map(|one| scheme_row(one, answer.apps.len())))
}

/// What else is to be said, in sentences.
pub fn notes(answer: &Allocation) -> Vec<String> {
    let mut notes = Vec::new();
    if answer.change_exceeded {
        notes.push("Shares change by more than change_max: within it no shares meet all SLOs.".to_owned());
    }
    let split: Vec<&str> = answer.need_split().map(|app| &*app.name).collect();
    if !split.is_empty() && answer.infeasible.is_none() {
        notes.push(format!(
            "Latencies are those of shares that are split in two where that misses less (Talus). Without a split the SLO of {} \
             would not hold: unsplit_latency_ms in --json has what accesses would take.",
            split.join(", ")
        ));
    }
    match (answer.mlms_below_optimum, answer.schemes.iter().find(|one| one.name == "mlms")) {
        (Some(below), Some(mlms)) => {
            let broken = match mlms.slo_broken.as_slice() {
                [] => "breaks no SLO".to_owned(),
                broken => format!("breaks the SLO of {}", broken.join(", ")),
            };
            notes.push(format!("mlms, the paper's algorithm, is {} below the optimum and {broken}.", percent(below)));
        }
        (None, Some(_)) => {}
        (_, None) => notes
            .push("With so many applications mlms is not simulated beside the answer: --scheme mlms does.".to_owned()),
    }
    notes
}

/// The answer.
pub fn allocation(answer: &Allocation) -> String {
    let mut text = format!("{}\n", shares(answer.apps.iter().take(ROWS_MAX)));
    if let Some(left) = answer.apps.len().checked_sub(ROWS_MAX).filter(|left| *left > 0) {
        let _ = writeln!(text, "{left} more in --json");
    }
    let _ =
        write!(text, "\nFair speedup {:.4} by {} shares.\n\n{}\n", answer.fair_speedup, answer.scheme, schemes(answer));
    for note in notes(answer) {
        let _ = write!(text, "\n{note}");
    }
    text
}

/// Where demands have their place.
pub fn placement(placement: &Placement) -> String {
    let rows = placement.apps.iter().map(|app| [app.name.clone(), parts(&app.level2_mib), size(app.demand_mib)]);
    let servers =
        placement.servers.iter().map(|server| [server.name.clone(), size(server.shared_mib), size(server.cache_mib)]);
    format!(
        "{}\n\n{}",
        Table::of("application | place | demand").words(2).with(rows),
        Table::of("server | shared out | cache").with(servers)
    )
}
