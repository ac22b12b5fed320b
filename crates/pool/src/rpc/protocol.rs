//! Which protocol both ends speak: each request and each reply says it.
//!
//! Releases of one protocol work together, so that a pool is upgraded while it is in use. Those of another are refused in one sentence, before
//! anything of a message is read: they would misunderstand each other.

/// The protocol of this release. It is another one whenever a message is encoded otherwise or means something else; the test below tells when it
/// has to be.
pub const PROTOCOL: u32 = 2;

/// In which header it is said.
pub(super) const HEADER: &str = "surgetank-pool-protocol";

/// Whether somebody speaks the protocol of this release, by what is in the header.
///
/// # Errors
/// The sentence that says it.
pub(super) fn check(who: &str, header: Option<&str>) -> Result<(), String> {
    let spoken = header.map(str::parse::<u32>);
    if spoken == Some(Ok(PROTOCOL)) {
        return Ok(());
    }
    let theirs = match spoken {
        Some(Ok(other)) => format!("protocol {other}"),
        Some(Err(_)) | None => "a protocol without a number, as earlier releases do".to_owned(),
    };
    Err(format!(
        "{who} speaks {theirs}, and this process protocol {PROTOCOL} of the pool: run releases of one protocol (docs/POOL.md#rolling-upgrades)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How messages are encoded, by the tables of all that are sent.
    fn encodings() -> u32 {
        let sources = [
            include_str!("../chunks.rs"),
            include_str!("../words.rs"),
            include_str!("../manager/protocol.rs"),
            include_str!("../security/token.rs"),
        ];
        let mut tables = String::new();
        for source in sources {
            let mut inside = false;
            for line in source.lines() {
                inside |= line.starts_with("wire_struct! {") || line.starts_with("wire_enum! {");
                if inside {
                    tables.extend(line.split_whitespace());
                }
                inside &= line != "}";
            }
        }
        crc32c::crc32c(tables.as_bytes())
    }

    #[test]
    fn who_encodes_messages_otherwise_speaks_another_protocol() {
        // Whoever changes what is sent counts PROTOCOL up, unless no release has spoken the present one, and writes down what follows from it.
        assert_eq!((PROTOCOL, encodings()), (2, 3_568_665_596), "messages have changed");
    }

    #[test]
    fn who_speaks_another_protocol_is_told_which() {
        assert_eq!(check("the caller", Some("2")), Ok(()));
        let told = check("the caller", Some("1")).unwrap_err();
        assert!(
            told.starts_with("the caller speaks protocol 1, and this process protocol 2 of the pool: run releases"),
            "{told}"
        );
        for other in [None, Some("new"), Some("")] {
            let told = check("node1:7440", other).unwrap_err();
            assert!(told.starts_with("node1:7440 speaks a protocol without a number"), "{told}");
        }
    }
}
