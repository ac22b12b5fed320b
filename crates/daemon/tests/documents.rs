//! Configurations that the documents show to users are valid.

use std::path::{Path, PathBuf};

use surgetank_daemon::config::Config;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// A commented-out default, as the example has them: `# key = value   # why`, or a section.
fn uncommented(example: &str) -> String {
    let line = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if rest.starts_with('[') || rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')) => {
            rest.to_owned()
        }
        _ => line.to_owned(),
    };
    example.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_packaged_example_is_valid() {
    let path = "packaging/surgetank.toml";
    Config::from_text(Path::new(path), &read(path)).unwrap();
}

#[test]
fn its_commented_defaults_are_valid_and_what_they_say() {
    let path = Path::new("packaging/surgetank.toml");
    let text = read("packaging/surgetank.toml");
    let all = uncommented(&text);
    assert!(all.matches("\n# ").count() < 8, "few lines stay comments:\n{all}");
    // Limits that have no default are not defaults.
    let with_limits = ["quota_bytes", "iops", "usd_per_day", "max_size", "budget"];
    let defaults: String = uncommented(
        &text.lines().filter(|line| !with_limits.iter().any(|key| line.contains(key))).collect::<Vec<_>>().join("\n"),
    );
    Config::from_text(path, &all).unwrap();
    let (plain, spelled) = (Config::from_text(path, &text).unwrap(), Config::from_text(path, &defaults).unwrap());
    // Prices and limits aside, spelling out the defaults changes nothing; sizes' lower bound is ours.
    let shown = |config: &Config| {
        let mut config = config.clone();
        config.devices.values_mut().for_each(|device| {
            if let Some(caching) = device.caching.as_mut() {
                caching.size.0 = surgetank_model::Bytes::from_gib(1);
            }
        });
        format!("{config:#?}")
    };
    assert_eq!(shown(&plain), shown(&spelled));
}

#[test]
fn configurations_in_the_documents_are_valid() {
    let mut found = 0;
    for path in ["README.md", "docs/OPERATIONS.md"] {
        for block in read(path).split("```toml\n").skip(1) {
            let block = block.split("```").next().unwrap();
            Config::from_text(Path::new(path), block).unwrap_or_else(|error| panic!("{path}: {error}\n{block}"));
            found += 1;
        }
    }
    assert!(found > 0, "the README shows a configuration");
}
