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
        // An example, which has no defaults.
        config.arrays.clear();
        config.devices.values_mut().for_each(|device| {
            device.read_cache = None;
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

/// A row of a table of keys in OPERATIONS: the section, as far as a file has one, the keys, and the cell of their defaults.
struct Row {
    section: String,
    keys: Vec<String>,
    default: String,
}

fn in_backticks(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn documented_keys() -> Vec<Row> {
    let text = read("docs/OPERATIONS.md");
    let (mut section, mut rows) = (None, Vec::new());
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match cells.as_slice() {
            ["", "top level", "default", ..] => section = Some(String::new()),
            ["", head, "default", ..] => section = Some(in_backticks(head)[0].replace("NAME", "data")),
            ["", keys, default, _, ..] => rows.extend(section.clone().map(|section| Row {
                section,
                keys: in_backticks(keys),
                default: (*default).to_owned(),
            })),
            _ => section = None,
        }
    }
    rows.retain(|row: &Row| !row.keys.is_empty());
    rows
}

/// The smallest configuration in which every documented section has a meaning, with a line more in one of them.
fn with_line(section: &str, more: &str) -> Config {
    let provider = match section {
        "[provider.host]" => {
            (section, "url = \"https://host.example:7420\"\nca_file = \"/ca\"\ntoken_file = \"/token\"")
        }
        "[provider.pool]" | "[provider.openstack]" | "[provider.aws]" | "[provider.gce]" | "[provider.azure]" => {
            (section, "")
        }
        _ => ("[provider.local]", ""),
    };
    let caching = if provider.0 == "[provider.local]" { "" } else { "bandwidth = \"128 MiB/s\"" };
    // Others have a type of the default's name, or do not know their types.
    let of_type = match provider.0 {
        "[provider.aws]" => "volume_type = \"gp3\"\n",
        "[provider.gce]" => "volume_type = \"pd-ssd\"\n",
        "[provider.azure]" => "volume_type = \"premium-ssd\"\n",
        _ => "",
    };
    let sections = [
        ("", ""),
        provider,
        ("[machine]", ""),
        ("[allocation]", "cache = \"1 GiB\""),
        ("[array.data]", &format!("{of_type}members = 2\nmember_size = \"10 GiB\"")),
        ("[device.data]", "backing = \"/dev/vdb\""),
        ("[device.data.backing_limits]", "bandwidth = \"33 MiB/s\""),
        ("[device.data.caching]", &format!("{of_type}{caching}")),
        ("[device.data.read_cache]", &format!("{of_type}members = 2\nmember_size = \"10 GiB\"")),
        ("[device.data.policy]", ""),
    ];
    assert!(sections.iter().any(|(head, _)| *head == section), "{section}");
    let lines = sections.map(|(head, lines)| format!("{head}\n{lines}\n{}\n", if head == section { more } else { "" }));
    Config::from_text(Path::new("OPERATIONS"), &lines.concat()).unwrap_or_else(|error| panic!("{more}: {error}"))
}

#[test]
fn documented_defaults_are_the_defaults() {
    use surgetank_policy::Preset;
    let (paper, adaptive) = (Preset::PAPER, Preset::ADAPTIVE);
    let delay = |preset: Preset| preset.boost_interval(std::time::Duration::from_secs(30)).as_secs();
    assert_eq!((delay(paper), delay(adaptive)), (0, 30));
    let mut compared = 0;
    for Row { section, keys, default } in documented_keys() {
        // What depends on the policy stays open in a checked configuration.
        let by_policy = match &*keys[0] {
            "split" => format!("`adaptive` {}, `paper` {}", adaptive.how.split, paper.how.split),
            "forecast" => format!("`adaptive` {}, `paper` {}", adaptive.when.forecast, paper.when.forecast),
            "boost_interval" => "`paper` `0 s`, `adaptive` the inactivity delay".to_owned(),
            _ => String::new(),
        };
        if !by_policy.is_empty() {
            assert_eq!(default, by_policy, "{}", keys[0]);
            continue;
        }
        let types =
            [("bandwidth", "128 MiB/s"), ("min_size", "1 MiB"), ("max_size", "16 TiB"), ("preallocate", "true")];
        let written = in_backticks(&default).into_iter().map(|value| value.replace("RUN", "/run/surgetank"));
        let written: Vec<String> = written.map(|value| value.replace("NAME", "data")).collect();
        let of_types = keys[0].starts_with("[provider.local.types");
        let pairs: Vec<(String, String)> = match &*written {
            // No default, or one in words.
            [] => continue,
            _ if default.starts_with("with ") => continue,
            _ if of_types => types.map(|(key, value)| (format!("types.fast.{key}"), value.to_owned())).into(),
            written if keys.len() > 1 && written.len() == 1 => {
                keys.iter().map(|key| (key.clone(), written[0].clone())).collect()
            }
            written => {
                // Where the provider has none but one section, it is the one; else the last that is named.
                let written = if keys.len() == 1 { &written[..1] } else { written };
                assert_eq!(keys.len(), written.len(), "{keys:?}: {default}");
                keys.iter().cloned().zip(written.iter().cloned()).collect()
            }
        };
        if of_types {
            assert_eq!(written, ["slow", "fast"]);
            assert!(default.contains("`fast` 128 MiB/s"), "{default}");
        }
        let number = |value: &str| value.parse::<f64>().is_ok() || matches!(value, "true" | "false");
        let quoted = |value: &str| if number(value) { value.to_owned() } else { format!("\"{value}\"") };
        let spelled = pairs.iter().map(|(key, value)| format!("{key} = {}\n", quoted(value))).collect::<String>();
        let (plain, spelled) = (with_line(&section, ""), with_line(&section, &spelled));
        assert_eq!(format!("{plain:#?}"), format!("{spelled:#?}"), "{section}: {pairs:?}");
        compared += pairs.len();
    }
    assert!(compared > 35, "{compared} defaults are documented");
}
