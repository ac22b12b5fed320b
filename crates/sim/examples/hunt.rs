//! Temporary.
#![allow(clippy::all, clippy::disallowed_methods, clippy::print_stdout, missing_docs)]
use surgetank_sim::{Family, run};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let family = *Family::ALL.iter().find(|f| f.name() == args[1]).unwrap();
    let (from, to): (u64, u64) = (args[2].parse().unwrap(), args[3].parse().unwrap());
    std::panic::set_hook(Box::new(|_| ()));
    let (mut bad, mut total) = (0, surgetank_sim::Report::default());
    for seed in from..to {
        let t = std::time::Instant::now();
        let r = std::panic::catch_unwind(|| run(&family.scenario(seed)));
        match r {
            Ok(Ok(r)) => total += &r,
            Ok(Err(e)) => {
                bad += 1;
                println!("{seed}: ev {} {} {} | {}", e.event, e.at, e.what, e.status);
            }
            Err(_) => {
                bad += 1;
                println!("{seed}: panic")
            }
        }
        if t.elapsed().as_secs() > 2 {
            println!("{seed}: slow {:?}", t.elapsed());
        }
        if bad > 8 {
            break;
        }
    }
    println!("{} {bad} bad {:?}", args[1], total);
}
