//! `make economy`: what elastic devices cost in money beside volumes that are as fast, for typical loads on each provider of the
//! catalog, as `docs/ECONOMY.md` and its picture.
//!
//! All figures follow from the catalog: the planner's comparison, and the simulator's run of what it found. A test holds the
//! committed document to what is generated.

mod loads;
mod picture;
mod simulated;
mod text;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use surgetank_model::Catalog;
use surgetank_planner::economy::{Economy, compare};

use self::loads::Case;
use crate::flags::absolute;
use crate::output::say;

/// Providers with prices.
const PROVIDERS: [&str; 3] = ["aws", "gcp", "azure"];

/// Flags of `economy`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Where ECONOMY.md and pictures/economy.svg go
    #[arg(long, default_value = "docs", value_parser = absolute)]
    out: PathBuf,
}

/// A case at a provider.
struct Found {
    provider: &'static str,
    case: Case,
    economy: Economy,
}

impl Arguments {
    /// Writes both files.
    pub fn run(&self) -> anyhow::Result<bool> {
        for (file, text) in generate()? {
            let file = self.out.join(file);
            let folder = file.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
            std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
            say(&format!("wrote {}", file.display()));
        }
        Ok(true)
    }
}

/// The files, each with its text.
fn generate() -> anyhow::Result<[(&'static str, String); 2]> {
    let catalog = Catalog::builtin();
    let of_provider = |provider| {
        let catalog = &catalog;
        loads::all().into_iter().map(move |case| Found {
            provider,
            economy: compare(catalog, provider, &case.load),
            case,
        })
    };
    let found: Vec<Found> = PROVIDERS.into_iter().flat_map(of_provider).collect();
    let simulated = simulated::all(&catalog, &found)?;
    let papers = simulated::papers(&catalog)?;
    Ok([
        ("ECONOMY.md", text::document(&catalog, &found, &simulated, papers)),
        ("pictures/economy.svg", picture::draw(&catalog, &found).file()?),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_document_is_what_is_generated() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        for (file, text) in generate().unwrap() {
            let committed = std::fs::read_to_string(docs.join(file)).unwrap_or_default();
            let line = committed.lines().zip(text.lines()).position(|(one, other)| one != other);
            assert!(committed == text, "docs/{file} is not what is generated, from line {line:?} on: run make economy");
        }
    }
}
