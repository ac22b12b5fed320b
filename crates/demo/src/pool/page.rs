//! A run of the demo of a pool for people.

use surgetank_report::number::thousands;
use surgetank_report::{Page, Table};

use super::{ModeOutcome, PoolOutcome};

fn mode(outcome: &PoolOutcome, name: &str) -> ModeOutcome {
    outcome.modes.get(name).copied().unwrap_or_default()
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
        match outcome.killed {
            1 => "1 benefactor was".to_owned(),
            killed => format!("{killed} benefactors were"),
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

/// The page.
pub fn html(outcome: &PoolOutcome) -> String {
    let pool = mode(outcome, "pool");
    let cards = [
        (times(outcome), "as fast as straight to the slow file system"),
        (format!("{:.1} s", pool.checkpoint_s), "until the writers could go on"),
        (format!("{:.1} s", pool.drain_s.unwrap_or_default()), "later the slow file system had everything"),
        (thousands(outcome.lost_bytes as f64), "bytes lost, with a benefactor killed in the middle"),
    ];
    let page = Page::new("surgetank demo --pool", "A checkpoint through a staging pool", &verdict(outcome));
    let page = page.cards(&cards).table(&table(outcome)).note(FOOTNOTE);
    page.section("Parameters").facts(&outcome.parameters).html(&format!(", {}", outcome.date))
}
