//! What programs read of files.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fuser::Errno;
use surgetank_pool::chunks::CHUNK;
use surgetank_pool::client::{self, Reader};
use tokio::time::Instant;

use crate::errno::{errno, stale};
use crate::files::{AHEAD, Chunk, File};
use crate::tree::Tree;

/// How long a reader goes on with the commit that it knows.
const FRESH: Duration = Duration::from_secs(1);
/// How long a chunk may take that nobody has asked for yet.
const AHEAD_MAX: Duration = Duration::from_secs(1);

impl Tree {
    pub(crate) async fn read(&self, handle: u64, offset: u64, length: usize) -> Result<Bytes, Errno> {
        if let Some(file) = self.files.at_target(handle) {
            let read = tokio::task::spawn_blocking(move || read_at(&file, offset, length));
            return read.await.map_err(|_| Errno::EIO)?.map_err(Errno::from);
        }
        let handle = self.handle(handle)?;
        self.has_its_locks(&handle)?;
        let file = &handle.file;
        let mut gate = self.gate(file).await;
        if let Some(writer) = &mut gate.writer {
            let mut found = Vec::with_capacity(length);
            while found.len() < length {
                let part = writer.read_at(offset + found.len() as u64, length - found.len()).await;
                match part.map_err(|error| told(&error))? {
                    part if part.is_empty() => break,
                    part => found.extend_from_slice(&part),
                }
            }
            return Ok(found.into());
        }
        let mut reader = match &gate.reader {
            Some((reader, since)) if since.elapsed() < FRESH => reader.clone(),
            _ => {
                let client = self.client().await?;
                let reader = client.read_node(file.inode, &file.what).await.map_err(|error| stale(&error))?;
                gate.reader = Some((reader.clone(), Instant::now()));
                reader
            }
        };
        drop(gate);
        read_ahead(file, &reader, offset);
        let mut found = Vec::new();
        while found.len() < length {
            let at = offset + found.len() as u64;
            let Some((begins, chunk)) = chunk(file, &mut reader, at).await.map_err(|error| told(&error))? else {
                break;
            };
            let from = usize::try_from(at - begins).unwrap_or(usize::MAX).min(chunk.len());
            let part = chunk.slice(from..chunk.len().min(from + length - found.len()));
            // Most reads lie in one chunk: its bytes are answered as they are.
            if found.is_empty() && (part.len() == length || begins + chunk.len() as u64 >= reader.size()) {
                return Ok(part);
            }
            if part.is_empty() {
                break;
            }
            found.reserve(length - found.len());
            found.extend_from_slice(&part);
        }
        Ok(found.into())
    }
}

/// Reads bytes; fewer only at the end of the file.
fn read_at(file: &std::fs::File, offset: u64, length: usize) -> std::io::Result<Bytes> {
    let mut bytes = vec![0; length];
    let mut done = 0;
    while done < length {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(done);
    Ok(bytes.into())
}

fn told(error: &client::Error) -> Errno {
    tracing::error!("{error}");
    errno(error)
}

/// The slot of a file's chunks that has the one that begins there, if any has.
fn slot(file: &File, begins: u64) -> &tokio::sync::Mutex<Option<Chunk>> {
    &file.chunks[usize::try_from(begins / CHUNK).unwrap_or_default() % file.chunks.len()]
}

/// Whoever reads a chunk after the one before it will read those behind it: they are fetched at the same time.
fn read_ahead(file: &Arc<File>, reader: &Reader, offset: u64) {
    let begins = offset - offset % CHUNK;
    let has = |begins: u64| match slot(file, begins).try_lock() {
        Ok(kept) => kept.as_ref().is_some_and(|(version, of, _)| (*version, *of) == (reader.version(), begins)),
        // It is being fetched, or taken from.
        Err(_) => true,
    };
    if begins == 0 || !has(begins - CHUNK) {
        return;
    }
    for at in (1..=AHEAD).map(|further| begins + further * CHUNK).filter(|at| *at < reader.size()) {
        if !has(at) {
            let (file, mut reader) = (Arc::clone(file), reader.clone());
            tokio::spawn(async move {
                // Whoever reads it later is told what is wrong, and nobody waits long for what may not be wanted.
                let _ = tokio::time::timeout(AHEAD_MAX, chunk(&file, &mut reader, at)).await;
            });
        }
    }
}

/// The chunk with a byte, from what was read last or from the pool; where it begins.
async fn chunk(file: &File, reader: &mut Reader, at: u64) -> Result<Option<(u64, Bytes)>, client::Error> {
    let begins = at - at % CHUNK;
    let mut kept = slot(file, begins).lock().await;
    if let Some((version, of, bytes)) = &*kept
        && (*version, *of) == (reader.version(), begins)
    {
        return Ok(Some((begins, bytes.clone())));
    }
    let Some((begins, bytes)) = reader.read_chunk(at).await? else { return Ok(None) };
    *kept = Some((reader.version(), begins, bytes.clone()));
    Ok(Some((begins, bytes)))
}
