//! Damage at rest.

use std::path::Path;

/// Changes a byte of a chunk that lies in a directory of segments, 5,000 bytes behind its beginning.
pub fn damage(directory: &Path, beginning: &[u8]) {
    for entry in std::fs::read_dir(directory).expect("it is there") {
        let path = entry.expect("it is readable").path();
        if path.extension().is_none_or(|extension| extension != "chunks") {
            continue;
        }
        let content = std::fs::read(&path).expect("it is readable");
        // What a record has begins at 128 bytes behind the beginning of a block.
        let at = (128..content.len()).step_by(4096).find(|at| content[*at..].starts_with(beginning));
        if let Some(at) = at {
            let file = std::fs::OpenOptions::new().write(true).open(&path).expect("it is writable");
            let changed = [content[at + 5000] ^ 1];
            std::os::unix::fs::FileExt::write_all_at(&file, &changed, (at + 5000) as u64).expect("it is written");
            return;
        }
    }
    panic!("no segment in {} has it", directory.display());
}
