//! A run of the demo of a pool for people.

use surgetank_report::chart::{Axis, Colour, Mark, Picture, Plot};
use surgetank_report::number::{count, thousands};
use surgetank_report::{Failure, Page, Table};

use super::{ModeOutcome, PoolOutcome};

const HEIGHT: u32 = 220;

fn mode(outcome: &PoolOutcome, name: &str) -> ModeOutcome {
    outcome.modes.get(name).cloned().unwrap_or_default()
}

fn times(outcome: &PoolOutcome) -> String {
    format!("{:.1} ×", mode(outcome, "direct").checkpoint_s / mode(outcome, "pool").checkpoint_s.max(1e-9))
}

fn table(outcome: &PoolOutcome) -> Table {
    let row = |(name, found): (&&str, &ModeOutcome)| {
        [
            (*name).to_owned(),
            format!("{:.1} s", found.checkpoint_s),
            thousands(found.mib_s),
            found.drain_s.map_or_else(|| "–".to_owned(), |drain_s| format!("{drain_s:.1} s")),
        ]
    };
    Table::of("mode | checkpoint | MiB/s | drained after").with(outcome.modes.iter().map(row))
}

fn verdict(outcome: &PoolOutcome) -> String {
    let verified = match outcome.verified {
        true => "every byte was read back and matched".to_owned(),
        false => format!("{} bytes are LOST", thousands(outcome.lost_bytes as f64)),
    };
    format!(
        "Through the pool the checkpoint was {} as fast as straight to the slow file system; {} killed while it was written; {verified}.",
        times(outcome),
        match (outcome.killed, outcome.managers_killed) {
            (0, 0) => "nothing was".to_owned(),
            (killed, managers) =>
                format!("{} and {} were", count(killed as usize, "benefactor"), count(managers as usize, "manager")),
        },
    )
}

const FOOTNOTE: &str = "Checkpoint: from the first write until every writer's fsync and close have returned. Drained after: from then on until the slow file \
                        system had every byte, without the writers. All benefactors are on this machine.";

/// The table and the verdict, for a terminal.
#[must_use]
pub fn text(outcome: &PoolOutcome) -> String {
    format!("{}\n\n{}\n{FOOTNOTE}", table(outcome), verdict(outcome))
}

/// What the writers have written, and what the slow volume has, over time.
fn progress(outcome: &PoolOutcome) -> Picture {
    let (direct, pool) = (mode(outcome, "direct"), mode(outcome, "pool"));
    let points = || [&direct, &pool].into_iter().flat_map(|mode| mode.written.iter().chain(&mode.at_target));
    let until_s = points().map(|(at_s, _)| *at_s).fold(1.0, f64::max);
    let highest = points().map(|(_, mib)| *mib).fold(1.0, f64::max) * 1.05;
    // What was written stays so.
    let lasting = |points: &[(f64, f64)]| {
        let last = points.last().map(|(_, mib)| (until_s, *mib));
        std::iter::once((0.0, 0.0)).chain(points.iter().copied()).chain(last).collect::<Vec<_>>()
    };
    let killed = pool.killed_at_s.map(|at_s| Mark::line(vec![(at_s, 0.0), (at_s, highest)], Colour::INK.faint(0.3), 1));
    let plot = |caption: &str| Plot::new(caption, HEIGHT, Axis::seconds(until_s), Axis::linear("MiB", 0.0..highest));
    let lines = |mode: &ModeOutcome| {
        let area = Mark::Area { points: lasting(&mode.at_target), colour: Colour::GREEN };
        [area, Mark::line(lasting(&mode.written), Colour::BLUE, 2)]
    };
    Picture::new("A checkpoint over time")
        .entry(Colour::BLUE, "written by the programs")
        .entry(Colour::GREEN, "written to the slow volume")
        .plot(plot("direct").marks(lines(&direct)))
        .plot(plot("pool").marks(lines(&pool)).marks(killed))
}

/// The page.
///
/// # Errors
/// If a picture cannot be drawn.
pub fn html(outcome: &PoolOutcome) -> Result<String, Failure> {
    let pool = mode(outcome, "pool");
    let cards = [
        (times(outcome), "as fast as straight to the slow file system"),
        (format!("{:.1} s", pool.checkpoint_s), "until the writers could go on"),
        (format!("{:.1} s", pool.drain_s.unwrap_or_default()), "later the slow file system had everything"),
        (thousands(outcome.lost_bytes as f64), "bytes lost, with a benefactor and the manager killed in the middle"),
    ];
    let page = Page::new("surgetank demo --pool", "A checkpoint through a staging pool", &verdict(outcome));
    let page = page.cards(&cards).table(&table(outcome)).note(FOOTNOTE);
    let page = page.section("Over time").picture(&progress(outcome))?.note(
        "The programs go on when their lines end. Thin vertical line: a benefactor and the manager are killed. The slow volume also gets what its \
         file system writes for itself.",
    );
    Ok(page.section("Parameters").facts(&outcome.parameters).html(&format!(", {}", outcome.date)))
}
