//! Writes the seeds into `fuzz/corpus`: `cargo run -p surgetank-fuzz --example seeds`.

use std::fs;
use std::path::Path;

use surgetank_fuzz::{TARGETS, seeds};

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, _) in TARGETS {
        let directory = corpus.join(target);
        fs::create_dir_all(&directory)?;
        for (name, bytes) in seeds::of(target) {
            fs::write(directory.join(name), bytes)?;
        }
    }
    Ok(())
}
