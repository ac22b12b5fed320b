//! An NBD server for QEMU: one client at a time, one request after the other.
//!
//! NBD (`docs/REFERENCES.md`): fixed newstyle, simple replies, flush and FUA.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::Context;

/// The longest request that is taken.
const REQUEST_MAX: u32 = 32 << 20;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Flags are there; flush; FUA.
const FLAGS: u16 = 1 | 1 << 2 | 1 << 3;
const EINVAL: u32 = 22;
const EIO: u32 = 5;

/// What is served. Errors go to the client: `InvalidInput` as EINVAL, all others as EIO.
pub trait Medium: Send + 'static {
    /// In bytes; it does not change.
    fn size(&self) -> u64;

    /// Reads.
    ///
    /// # Errors
    /// The client's.
    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>>;

    /// Writes; `forced`: it is durable once it is answered.
    ///
    /// # Errors
    /// The client's.
    fn write(&mut self, offset: u64, data: Vec<u8>, forced: bool) -> io::Result<()>;

    /// Makes durable what was answered.
    ///
    /// # Errors
    /// The client's.
    fn flush(&mut self) -> io::Result<()>;
}

/// Whom the server talks to, and whether it ends.
#[derive(Debug, Default)]
struct Client {
    stream: Option<UnixStream>,
    ending: bool,
}

/// A medium, served on a Unix socket as long as this lives. Dropping it hangs up.
#[derive(Debug)]
pub struct Server<M> {
    medium: Arc<Mutex<M>>,
    socket: PathBuf,
    client: Arc<Mutex<Client>>,
    listener: Option<JoinHandle<()>>,
}

impl<M: Medium> Server<M> {
    /// Serves a medium.
    ///
    /// # Errors
    /// If there cannot be a socket.
    pub fn start(socket: PathBuf, medium: M) -> anyhow::Result<Self> {
        let listener = UnixListener::bind(&socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
        let medium = Arc::new(Mutex::new(medium));
        let client = Arc::new(Mutex::new(Client::default()));
        let (shared, known) = (Arc::clone(&medium), Arc::clone(&client));
        let listener = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let mut client = lock(&known);
                if client.ending {
                    return;
                }
                client.stream = stream.try_clone().ok();
                drop(client);
                // A client that goes away in the middle of something is no trouble of ours.
                let _ = serve(stream, &shared);
            }
        });
        Ok(Self { medium, socket, client, listener: Some(listener) })
    }

    /// Where clients connect.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The medium, between two requests.
    pub fn medium(&self) -> MutexGuard<'_, M> {
        lock(&self.medium)
    }
}

impl<M> Drop for Server<M> {
    fn drop(&mut self) {
        let mut client = lock(&self.client);
        client.ending = true;
        if let Some(stream) = client.stream.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(client);
        // Wakes the listener, which looks whether this is the end.
        let _ = UnixStream::connect(&self.socket);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection, from greeting to end.
fn serve<M: Medium>(mut stream: UnixStream, medium: &Mutex<M>) -> io::Result<()> {
    let size = lock(medium).size();
    if !greet(&mut stream, size)? {
        return Ok(());
    }
    loop {
        let magic = u32::from_be_bytes(take(&mut stream)?);
        let flags = u16::from_be_bytes(take(&mut stream)?);
        let command = u16::from_be_bytes(take(&mut stream)?);
        let handle: [u8; 8] = take(&mut stream)?;
        let offset = u64::from_be_bytes(take(&mut stream)?);
        let length = u32::from_be_bytes(take(&mut stream)?);
        if magic != REQUEST_MAGIC || length > REQUEST_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let fits = offset.checked_add(u64::from(length)).is_some_and(|end| end <= size);
        let mut reply = Vec::new();
        let done = match command {
            0 if fits => lock(medium).read(offset, length as usize).map(|data| reply = data),
            1 => {
                let mut data = vec![0; length as usize];
                stream.read_exact(&mut data)?;
                if fits {
                    lock(medium).write(offset, data, flags & 1 != 0)
                } else {
                    Err(io::ErrorKind::InvalidInput.into())
                }
            }
            2 => return Ok(()),
            3 => lock(medium).flush(),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        };
        let error = match done {
            Ok(()) => 0,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => EINVAL,
            Err(_) => EIO,
        };
        let mut answer = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
        answer.extend_from_slice(&u32::to_be_bytes(error));
        answer.extend_from_slice(&handle);
        if error == 0 {
            answer.extend_from_slice(&reply);
        }
        stream.write_all(&answer)?;
    }
}

fn take<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Options, until the client goes on to requests (true) or away.
fn greet(stream: &mut UnixStream, size: u64) -> io::Result<bool> {
    let mut hello = MAGIC.to_be_bytes().to_vec();
    hello.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    hello.extend_from_slice(&3u16.to_be_bytes()); // fixed newstyle, no zeroes
    stream.write_all(&hello)?;
    let _client_flags: [u8; 4] = take(stream)?;
    loop {
        let magic = u64::from_be_bytes(take(stream)?);
        let option = u32::from_be_bytes(take(stream)?);
        let length = u32::from_be_bytes(take(stream)?);
        if magic != OPTION_MAGIC || length > 65_536 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        let mut reply = |kind: u32, data: &[u8]| {
            let mut answer = REPLY_MAGIC.to_be_bytes().to_vec();
            answer.extend_from_slice(&option.to_be_bytes());
            answer.extend_from_slice(&kind.to_be_bytes());
            answer.extend_from_slice(&(data.len() as u32).to_be_bytes());
            answer.extend_from_slice(data);
            stream.write_all(&answer)
        };
        const ACKNOWLEDGED: u32 = 1;
        const INFORMATION: u32 = 3;
        const UNSUPPORTED: u32 = (1 << 31) + 1;
        match option {
            // Information and its variant that goes on to requests; any name will do.
            6 | 7 => {
                let mut export = 0u16.to_be_bytes().to_vec();
                export.extend_from_slice(&size.to_be_bytes());
                export.extend_from_slice(&FLAGS.to_be_bytes());
                reply(INFORMATION, &export)?;
                reply(ACKNOWLEDGED, &[])?;
                if option == 7 {
                    return Ok(true);
                }
            }
            2 => {
                reply(ACKNOWLEDGED, &[])?;
                return Ok(false);
            }
            _ => reply(UNSUPPORTED, &[])?,
        }
    }
}
