//! What a benefactor's metrics say.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use surgetank_pool_core::id::BenefactorId;

use super::Benefactor;
use super::counts::Counts;
use crate::chunks::{Alive, CHUNK};
use crate::metrics::{Labels, Page};

/// Metrics of a process's benefactors.
pub(crate) fn observe(all: &[(BenefactorId, Arc<Benefactor>)], page: &mut Page) {
    let all: Vec<(String, &Counts, Alive)> =
        all.iter().map(|(id, of)| (id.to_string(), &of.counts, of.alive())).collect();
    let of = |id: &str| vec![("benefactor", id.to_owned())];
    let with = |id: &str, media: &str| vec![("benefactor", id.to_owned()), ("media", media.to_owned())];
    let of_media = |what: fn(&Alive) -> (u64, u64)| {
        all.iter().flat_map(move |(id, _, alive)| {
            let (memory, ssd) = what(alive);
            [(with(id, "memory"), memory), (with(id, "ssd"), ssd)]
        })
    };
    page.gauge("benefactor_lent_bytes", "What a benefactor lends", of_media(|alive| (alive.of * CHUNK, alive.ssd.1)));
    page.gauge(
        "benefactor_free_bytes",
        "What of that has room for chunks",
        of_media(|alive| (alive.credits * CHUNK, alive.ssd.0)),
    );
    let held = of_media(|alive| alive.taken.iter().fold((0, 0), |sum, (_, memory, ssd)| (sum.0 + memory, sum.1 + ssd)));
    page.gauge("benefactor_held_bytes", "What chunks of files take of it", held);
    let gauge = |what: fn(&Alive) -> u64| {
        all.iter().map(|(id, _, alive)| (of(id), what(alive))).collect::<Vec<(Labels, u64)>>()
    };
    page.gauge("benefactor_held_chunks", "Chunks in memory", gauge(|alive| alive.of.saturating_sub(alive.credits)));
    page.gauge("benefactor_leaving", "Whether it takes nothing new", gauge(|alive| u64::from(alive.leaving)));
    page.gauge(
        "benefactor_ssd_garbage_bytes",
        "What is over on its SSD and keeps room still",
        gauge(|alive| alive.log.garbage),
    );
    page.counter("benefactor_put_chunks", "Chunks that clients have put", gauge(|alive| alive.puts));
    page.counter("benefactor_damaged_chunks", "Chunks that were found damaged", gauge(|alive| alive.damaged));
    page.counter("benefactor_scrubbed_bytes", "Bytes that scrubbing has read", gauge(|alive| alive.scrubbed.bytes));
    page.counter(
        "benefactor_scrub_passes",
        "Passes of scrubbing that have ended",
        gauge(|alive| alive.scrubbed.passes),
    );
    page.counter(
        "benefactor_ssd_written_bytes",
        "Bytes that were appended to its SSD's log",
        gauge(|alive| alive.log.written),
    );
    page.counter(
        "benefactor_ssd_copied_bytes",
        "Bytes that compaction has copied on its SSD",
        gauge(|alive| alive.log.copied),
    );
    let counter = |what: fn(&Counts) -> &AtomicU64| {
        all.iter().map(|(id, counts, _)| (of(id), what(counts).load(Ordering::Relaxed))).collect::<Vec<(Labels, u64)>>()
    };
    page.counter("benefactor_put_bytes", "Bytes of chunks that were put", counter(|counts| &counts.put_bytes));
    page.counter(
        "benefactor_put_refusals",
        "Chunks that were refused since there was no room: they come again",
        counter(|counts| &counts.put_refusals),
    );
    page.counter("benefactor_put_errors", "Chunks that came damaged", counter(|counts| &counts.put_errors));
    page.counter("benefactor_get_chunks", "Chunks that were read", counter(|counts| &counts.get_chunks));
    page.counter("benefactor_get_bytes", "Bytes of these", counter(|counts| &counts.get_bytes));
    page.counter("benefactor_get_errors", "Reads that found a chunk damaged", counter(|counts| &counts.get_errors));
    page.counter(
        "benefactor_drained_bytes",
        "Bytes that it has brought to targets",
        counter(|counts| &counts.drained_bytes),
    );
    page.counter(
        "benefactor_drain_errors",
        "Parts that it could not bring to a target",
        counter(|counts| &counts.drain_errors),
    );
}
