//! How long a manager takes to place a file on some of 3,000 benefactors, as one JSON document: `cargo bench --package
//! surgetank-pool-core`, or with its bar `make bench ARGS=pool`.

#![expect(clippy::print_stdout, reason = "the answer")]
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "placement has no clock, its speed has")]

use std::time::Instant;

use surgetank_model::random::Random;
use surgetank_model::{Bandwidth, Bytes};
use surgetank_pool_core::id::{BenefactorId, Domain, Incarnation};
use surgetank_pool_core::placement::{Candidate, Lent, Media, Place, Protection, Request, place};

const BENEFACTORS: u32 = 3000;
const A_RACK: u32 = 40;
const FILES: u64 = 4000;

/// Of each class a third: memory and SSD, memory, SSD; as full as they are after a while.
fn candidates(random: &mut Random) -> Vec<Candidate> {
    let mut lent = |gib: u64, mib_s: u64| {
        let of = Bytes::from_gib(gib);
        let free = Bytes::from_mib(of.get() / (1 << 20) * (20 + random.below(80)) / 100);
        Lent { free, of, rate: Bandwidth::from_mib_s(mib_s), drain: Some(Bandwidth::from_mib_s(mib_s / 10)) }
    };
    (0..BENEFACTORS)
        .map(|id| Candidate {
            place: Place { id: BenefactorId(id), incarnation: Incarnation(1) },
            domain: Domain(id / A_RACK),
            memory: (id % 3 != 2).then(|| lent(64, 1000)),
            ssd: (id % 3 != 1).then(|| lent(512, 500)),
        })
        .collect()
}

fn main() {
    let mut random = Random::from_seed(1);
    let candidates = candidates(&mut random);
    let mut micros: Vec<f64> = (0..FILES)
        .map(|file| {
            let (bytes, copies) = (Bytes::from_mib(1 + random.below(4096)), 1 + (file % 3) as u32);
            let media = if file % 5 == 0 { Media::Ssd } else { Media::Any };
            let request = Request { bytes, protection: Protection::Copies(copies), media, width_max: 64, spread: file };
            let begun = Instant::now();
            let layout = place(&request, &candidates).expect("there is room for all of them");
            let took = begun.elapsed();
            std::hint::black_box(layout);
            took.as_secs_f64() * 1e6
        })
        .collect();
    micros.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| micros[((micros.len() - 1) as f64 * share) as usize];
    let mean = micros.iter().sum::<f64>() / micros.len() as f64;
    println!(
        "{{\"benefactors\": {BENEFACTORS}, \"files\": {FILES}, \"mean_us\": {mean:.1}, \"median_us\": {:.1}, \"p99_us\": {:.1}, \
         \"slowest_us\": {:.1}}}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
