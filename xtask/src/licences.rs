//! The licence of every dependency, from the SPDX expressions that cargo knows. Works offline.

use cargo_metadata::Package;
use spdx::{Expression, ParseMode};

use crate::finding::Finding;
use crate::metadata;
use crate::tree::Tree;

/// Licences that go with Apache-2.0 in one binary. Copyleft is not among them.
const ACCEPTED: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Checks every package that cargo would build.
///
/// # Errors
/// If cargo cannot be asked.
pub fn check(tree: &Tree) -> anyhow::Result<Vec<Finding>> {
    Ok(metadata::with_dependencies(&tree.root)?.iter().filter_map(verdict).collect())
}

fn verdict(package: &Package) -> Option<Finding> {
    let name = format!("{} {}", package.name, package.version);
    let Some(expression) = &package.license else {
        return Some(Finding::of("Cargo.lock", format!("{name} names no licence")));
    };
    match accepts(expression) {
        Ok(true) => None,
        Ok(false) => Some(Finding::of("Cargo.lock", format!("{name} is under {expression}, which is not accepted"))),
        Err(error) => Some(Finding::of("Cargo.lock", format!("{name}: cannot read licence {expression:?}: {error}"))),
    }
}

/// Whether an SPDX expression can be satisfied with accepted licences alone.
fn accepts(expression: &str) -> anyhow::Result<bool> {
    // Before SPDX expressions, crates wrote `MIT/Apache-2.0` for a choice: `LAX` reads that too.
    let expression = Expression::parse_mode(expression, ParseMode::LAX)?;
    Ok(expression.evaluate(|requirement| ACCEPTED.contains(&requirement.to_string().as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_says() {
        for (expression, accepted) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("MIT/Apache-2.0", true),
            ("Apache-2.0 / MIT", true),
            ("MIT OR LGPL-2.1-or-later", true),
            ("MIT AND GPL-2.0-only", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("GPL-2.0-only OR (MIT AND GPL-3.0-only)", false),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0-only", true),
            ("GPL-2.0-only WITH Classpath-exception-2.0", false),
            // AND binds tighter than OR.
            ("MIT OR GPL-2.0-only AND GPL-3.0-only", true),
        ] {
            assert_eq!(accepts(expression).unwrap(), accepted, "{expression}");
        }
    }

    #[test]
    fn broken_expressions_are_errors() {
        for expression in ["", "MIT OR", "(MIT", "MIT Apache-2.0", "MIT WITH", "NOT-A-LICENCE"] {
            assert!(accepts(expression).is_err(), "{expression:?}");
        }
    }
}
